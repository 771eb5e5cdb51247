"""The Celery tasks: ids in, domain called."""

from __future__ import annotations

from datetime import UTC, datetime

from celery import shared_task

from plumbline_web.notifications.senders import attempt_beside
from plumbline_web.notifications.sending import DELIVER, forget_old, list_due


@shared_task(name=DELIVER)
def deliver(delivery_id: int) -> None:
    """Begin to send one message."""
    attempt_beside(delivery_id)


@shared_task(name="plumbline.deliveries")
def deliver_due() -> None:
    """Begin to send the messages whose pause is over, and those whose worker died."""
    for pk in list_due(datetime.now(UTC)):
        attempt_beside(pk)


@shared_task(name="plumbline.forget_notifications")
def forget() -> None:
    """Delete what is long read and long sent."""
    forget_old(datetime.now(UTC))
