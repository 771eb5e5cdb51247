"""Notifications by e-mail, over the server that the environment names."""

from __future__ import annotations

import smtplib

from django.conf import settings
from django.core.mail import EmailMessage

from plumbline_web.notifications.models import Notification


class MailFailed(RuntimeError):
    """A message that no server took, with the reason."""


def is_on() -> bool:
    """Whether this installation sends e-mail at all."""
    return bool(settings.EMAIL_HOST)


def send_mail(notification: Notification) -> str:
    """Hand one message to the server; what happened.

    Raises:
        MailFailed: this installation sends none, the person has no address, or the server refused or does not answer.
    """
    person = notification.person
    if not is_on():
        raise MailFailed("this installation sends no e-mail; its administrator sets PLUMBLINE_MAIL")
    if not person.email:
        raise MailFailed(f"{person.username} has given no address")
    body = (
        f"{notification.text}\n\n{settings.ORIGIN}{notification.address}\n\n"
        f"You asked for this: {settings.ORIGIN}/notifications/preferences/\n"
    )
    message = EmailMessage(
        subject=f"[Plumbline] {notification.get_kind_display()}: {notification.about}", body=body, to=[person.email]
    )
    try:
        message.send()
    except (OSError, smtplib.SMTPException) as error:
        raise MailFailed(f"{settings.EMAIL_HOST} did not take it: {type(error).__name__}: {error}"[:400]) from error
    return f"taken by {settings.EMAIL_HOST}"
