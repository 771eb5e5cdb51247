"""What people should know, how each wants to hear of it, and the messages that leave this installation."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Index, Q, UniqueConstraint

from plumbline_web.notifications.enums import DeliveryState, Kind


class Notification(models.Model):
    """One row = one thing that one person should know."""

    person = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notifications")
    kind = models.CharField(max_length=12, choices=Kind)
    about = models.CharField(max_length=24)
    """number of what it is about: V-12, F-3, P-45"""
    text = models.CharField(max_length=300)
    """a sentence"""
    address = models.CharField(max_length=300)
    """path of the page that shows it"""
    key = models.CharField(max_length=100, blank=True)
    """equal for the same news: it is told once. Empty: always told"""
    in_app = models.BooleanField(default=True)
    """False: wanted by e-mail alone"""
    created_at = models.DateTimeField(auto_now_add=True)
    read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            UniqueConstraint(fields=["person", "kind", "key"], condition=~Q(key=""), name="notification_told_once"),
        ]
        indexes: ClassVar[list[Index]] = [
            # the count beside the bell, on every page
            Index(fields=["person"], condition=Q(read_at__isnull=True, in_app=True), name="notification_unread"),
            # a person's list
            Index(fields=["person", "-id"], condition=Q(in_app=True), name="notification_of_a_person"),
        ]

    def __str__(self) -> str:
        return self.text


class Preference(models.Model):
    """One row = how one person wants to hear of one kind; without a row in the app, and by no e-mail."""

    person = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="preferences")
    kind = models.CharField(max_length=12, choices=Kind)
    in_app = models.BooleanField(default=True)
    by_email = models.BooleanField(default=False)

    class Meta:
        constraints = [UniqueConstraint(fields=["person", "kind"], name="preference_once_a_kind")]


class Webhook(models.Model):
    """One row = one address of another program that is told of some kinds, whoever they concern here."""

    url = models.URLField(max_length=500)
    secret = models.CharField(max_length=100)
    """signs what is sent; kept as it is, because signing needs it"""
    kinds = ArrayField(models.CharField(max_length=12, choices=Kind))
    is_active = models.BooleanField(default=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="webhooks")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["pk"]

    def __str__(self) -> str:
        return self.url

    @property
    def titles(self) -> tuple[str, ...]:
        """Of its kinds, as a person reads them."""
        return tuple(str(Kind(kind).label) for kind in self.kinds)


class Delivery(models.Model):
    """One row = one message that leaves: to a webhook, or of one notification by e-mail."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True)
    """by which the receiver knows a repeated attempt again"""
    webhook = models.ForeignKey(Webhook, null=True, blank=True, on_delete=models.CASCADE, related_name="deliveries")
    notification = models.ForeignKey(
        Notification, null=True, blank=True, on_delete=models.CASCADE, related_name="deliveries"
    )
    kind = models.CharField(max_length=12)
    """of what it tells; "test" for a trial"""
    key = models.CharField(max_length=100, blank=True)
    body = models.JSONField(default=dict)
    """of a webhook's message"""
    state = models.CharField(max_length=9, choices=DeliveryState, default=DeliveryState.WAITING)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_at = models.DateTimeField()
    """of one that waits: when it is attempted; while an attempt runs, when that one counts as lost"""
    answer = models.CharField(max_length=500, blank=True)
    """what the last attempt met"""
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            UniqueConstraint(fields=["webhook", "kind", "key"], condition=~Q(key=""), name="delivery_once_a_webhook"),
            models.CheckConstraint(
                condition=Q(webhook__isnull=False, notification__isnull=True)
                | Q(webhook__isnull=True, notification__isnull=False),
                name="delivery_has_one_way",
            ),
        ]
        indexes: ClassVar[list[Index]] = [
            # what is due
            Index(fields=["next_at"], condition=Q(state="waiting"), name="delivery_due"),
            # a webhook's last messages
            Index(fields=["webhook", "-id"], name="delivery_of_a_webhook"),
        ]
