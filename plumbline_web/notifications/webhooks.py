"""The verbs of webhooks: an administrator's."""

from __future__ import annotations

from collections.abc import Sequence

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from plumbline_web.accounts.errors import Refused
from plumbline_web.accounts.models import User
from plumbline_web.accounts.secrets import create_secret
from plumbline_web.notifications.enums import Kind
from plumbline_web.notifications.models import Delivery, Webhook
from plumbline_web.notifications.posting import AddressRefused, check_address
from plumbline_web.notifications.sending import send_soon

MOST_WEBHOOKS = 20

SHORTEST_SECRET, LONGEST_SECRET = 16, 100


@transaction.atomic
def create_webhook(*, url: str, secret: str, kinds: Sequence[Kind], by: User) -> tuple[Webhook, str]:
    """Add one; it, and its secret, which is drawn where none is given.

    Raises:
        Refused: an address that is none, no kind, a secret of another length, or more than MOST_WEBHOOKS.
    """
    try:
        check_address(url)
    except AddressRefused as error:
        raise Refused("invalid", f"{error}.", field="url") from error
    if not kinds:
        raise Refused("invalid", "Nothing is ticked; choose what it is told of.", field="kinds")
    if secret and not SHORTEST_SECRET <= len(secret) <= LONGEST_SECRET:
        told = f"A secret of {len(secret)} characters was given; give {SHORTEST_SECRET} to {LONGEST_SECRET}, or none."
        raise Refused("invalid", told, field="secret")
    if Webhook.objects.count() >= MOST_WEBHOOKS:
        raise Refused("illegal_state", f"There are {MOST_WEBHOOKS} webhooks; remove one first.")
    chosen = secret or create_secret()
    hook = Webhook.objects.create(url=url, secret=chosen, kinds=[kind.value for kind in kinds], created_by=by)
    return hook, chosen


@transaction.atomic
def remove_webhook(hook: Webhook) -> None:
    """Remove one with its messages; those that wait are not sent."""
    hook.delete()


@transaction.atomic
def switch_webhook(hook: Webhook, *, active: bool) -> None:
    """Stop telling it, or begin again; what was not told meanwhile is not made up for."""
    hook.is_active = active
    hook.save(update_fields=["is_active"])


@transaction.atomic
def try_webhook(hook: Webhook) -> None:
    """Send a message that says nothing but that it came."""
    now = timezone.now()
    body = {
        "kind": "test",
        "about": "",
        "text": "This is a trial.",
        "url": f"{settings.ORIGIN}/",
        "at": now.isoformat(timespec="seconds"),
    }
    send_soon([Delivery(webhook=hook, kind="test", body=body, next_at=now)])
