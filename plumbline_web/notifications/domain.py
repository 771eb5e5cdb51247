"""Telling people what they should know: in the app, by e-mail, and other programs by webhook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol

from django.conf import settings
from django.core.validators import validate_email
from django.db import transaction
from django.utils import timezone

from plumbline_web.accounts.errors import Refused
from plumbline_web.accounts.models import User
from plumbline_web.notifications.enums import Kind
from plumbline_web.notifications.models import Delivery, Notification, Preference, Webhook
from plumbline_web.notifications.sending import send_soon

LONGEST_TEXT = 300


class Numbered(Protocol):
    """A row that people call by a number: V-12, F-3, P-45."""

    @property
    def number(self) -> str: ...


def notify(
    kind: Kind,
    *,
    about: Numbered,
    text: str,
    address: str,
    to: Iterable[User] = (),
    by: User | None = None,
    key: str = "",
) -> None:
    """Tell `to`, as each of them wishes, and the webhooks of that kind; call it inside the transaction of the change.

    `text`: a sentence without what only some may see. `address`: path of the page that shows it. `by`: who did it, and
    need not be told. `key`: equal for the same news, which is told once however often this is called; of what may
    happen again none. Nothing leaves before the transaction has ended well.
    """
    text = text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
    people = {person.pk: person for person in to if person.is_active and (by is None or person.pk != by.pk)}
    if key:
        told = Notification.objects.filter(kind=kind, key=key, person__in=people).values_list("person_id", flat=True)
        people = {pk: person for pk, person in people.items() if pk not in set(told)}
    wishes = {each.person_id: each for each in Preference.objects.filter(kind=kind, person__in=people)}
    rows = []
    for pk, person in people.items():
        wish = wishes.get(pk) or Preference(person=person, kind=kind)
        if wish.in_app or wish.by_email:
            rows.append(
                Notification(
                    person=person,
                    kind=kind,
                    about=about.number,
                    text=text,
                    address=address,
                    key=key,
                    in_app=wish.in_app,
                )
            )
    Notification.objects.bulk_create(rows)
    now = timezone.now()
    by_email = [row for row in rows if row.person_id in wishes and wishes[row.person_id].by_email]
    letters = [Delivery(notification=row, kind=kind, next_at=now) for row in by_email]
    send_soon([*letters, *_address_webhooks(kind, about=about, text=text, address=address, key=key, now=now)])


def _address_webhooks(
    kind: Kind, *, about: Numbered, text: str, address: str, key: str, now: datetime
) -> list[Delivery]:
    hooks = Webhook.objects.filter(is_active=True, kinds__contains=[kind])
    if key:
        hooks = hooks.exclude(
            pk__in=Delivery.objects.filter(kind=kind, key=key, webhook__isnull=False).values("webhook")
        )
    body = {
        "kind": kind.value,
        "about": about.number,
        "text": text,
        "url": f"{settings.ORIGIN}{address}",
        "at": now.isoformat(timespec="seconds"),
    }
    return [Delivery(webhook=hook, kind=kind, key=key, body=body, next_at=now) for hook in hooks]


def count_unread(person: User, *, most: int) -> int:
    """How many the person has not read; `most` + 1 for more than that."""
    unread = Notification.objects.filter(person=person, read_at__isnull=True, in_app=True)
    return unread[: most + 1].count()


def mark_read(notification: Notification) -> None:
    """What was read once stays read."""
    Notification.objects.filter(pk=notification.pk, read_at__isnull=True).update(read_at=timezone.now())


def mark_all_read(person: User, *, until: int) -> int:
    """Mark what the person was shown, up to number `until`; how many that were."""
    rows = Notification.objects.filter(person=person, read_at__isnull=True, in_app=True, pk__lte=until)
    return rows.update(read_at=timezone.now())


@transaction.atomic
def set_preferences(person: User, *, email: str, wishes: Mapping[Kind, tuple[bool, bool]]) -> None:
    """`wishes`: kind → whether in the app, whether by e-mail.

    Raises:
        Refused: e-mail is wished for, and no address, or one that is none, was given.
    """
    if not email and any(by_email for _, by_email in wishes.values()):
        raise Refused("invalid", "E-mail is ticked, and no address given; give one, or untick it.", field="email")
    if email:
        validate_email(email)
    person.email = email
    person.save(update_fields=["email"])
    for kind, (in_app, by_email) in wishes.items():
        Preference.objects.update_or_create(person=person, kind=kind, defaults={"in_app": in_app, "by_email": by_email})
