"""Messages on their way: attempted, tried again with growing pauses, given up, each under a lease.

An attempt is claimed in one short transaction and ends in another, and the network is talked to between them: a worker
that dies in between leaves a message that becomes due again. A receiver may therefore see one twice, with one id.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from celery import current_app
from django.db import transaction
from django.utils import timezone

from plumbline_web.notifications.enums import DeliveryState
from plumbline_web.notifications.mail import MailFailed, send_mail
from plumbline_web.notifications.models import Delivery, Notification
from plumbline_web.notifications.posting import PostFailed, post_signed
from workers.queues import CONTROL

DELIVER = "plumbline.deliver"

PAUSES_S = (30, 120, 600, 3_600, 21_600)
"""After each attempt that failed but the last: half a minute to six hours, together long enough for an outage of a
night's first half."""

MOST_ATTEMPTS = len(PAUSES_S) + 1

LEASE_S = 120
"""For which an attempt counts as running; the network is given up long before."""

MOST_AT_ONCE = 200
"""Messages that one sweep looks at."""

KEPT_DAYS = 180
"""For which what was read, and what was delivered or given up, is kept."""


def send_soon(deliveries: Sequence[Delivery]) -> None:
    """Write the messages, and send them once the transaction has ended well."""
    made = Delivery.objects.bulk_create(deliveries)
    for delivery in made:
        transaction.on_commit(partial(_dispatch, delivery.pk), robust=True)


def list_due(now: datetime) -> list[int]:
    """Messages whose pause is over, and those whose worker died."""
    due = Delivery.objects.filter(state=DeliveryState.WAITING, next_at__lte=now).order_by("next_at")
    return list(due.values_list("pk", flat=True)[:MOST_AT_ONCE])


def attempt(pk: int) -> None:
    """Try to send one message, unless somebody does, it was sent, or its pause is not over."""
    delivery = _claim(pk, now=timezone.now())
    if delivery is None:
        return
    try:
        answer = _send(delivery)
    except (MailFailed, PostFailed) as error:
        _end_attempt(delivery, str(error), went_well=False)
    else:
        _end_attempt(delivery, answer, went_well=True)


@transaction.atomic
def repeat(delivery: Delivery) -> bool:
    """Begin anew with a message that was given up; whether it was one."""
    found = Delivery.objects.filter(pk=delivery.pk, state=DeliveryState.FAILED).update(
        state=DeliveryState.WAITING, attempts=0, next_at=timezone.now(), ended_at=None
    )
    if found:
        transaction.on_commit(partial(_dispatch, delivery.pk), robust=True)
    return bool(found)


def forget_old(now: datetime) -> None:
    """Delete what was read, and messages that ended, KEPT_DAYS ago."""
    before = now - timedelta(days=KEPT_DAYS)
    Delivery.objects.filter(ended_at__lt=before).delete()
    Notification.objects.filter(read_at__lt=before).delete()


def _dispatch(pk: int) -> None:
    """Where the broker does not answer, the message goes out with those that are due."""
    current_app.send_task(DELIVER, args=[pk], queue=CONTROL)


@transaction.atomic
def _claim(pk: int, *, now: datetime) -> Delivery | None:
    delivery = (
        Delivery.objects.select_for_update(skip_locked=True, of=("self",))
        .filter(pk=pk, state=DeliveryState.WAITING, next_at__lte=now)
        .select_related("webhook", "notification__person")
        .first()
    )
    if delivery is None:
        return None
    delivery.attempts += 1
    delivery.next_at = now + timedelta(seconds=LEASE_S)
    delivery.save(update_fields=["attempts", "next_at"])
    return delivery


def _send(delivery: Delivery) -> str:
    if delivery.webhook is not None:
        body = {"id": str(delivery.uuid), **delivery.body}
        return post_signed(delivery.webhook.url, body, secret=delivery.webhook.secret)
    assert delivery.notification is not None
    return send_mail(delivery.notification)


def _end_attempt(delivery: Delivery, answer: str, *, went_well: bool) -> None:
    """Write what the attempt met; nothing where its lease ended and another one began."""
    now = timezone.now()
    changes: dict[str, object] = {"answer": answer[:500]}
    if went_well:
        changes |= {"state": DeliveryState.DELIVERED, "ended_at": now}
    elif delivery.attempts >= MOST_ATTEMPTS:
        changes |= {"state": DeliveryState.FAILED, "ended_at": now}
    else:
        changes["next_at"] = now + timedelta(seconds=PAUSES_S[delivery.attempts - 1])
    Delivery.objects.filter(pk=delivery.pk, attempts=delivery.attempts, state=DeliveryState.WAITING).update(**changes)
