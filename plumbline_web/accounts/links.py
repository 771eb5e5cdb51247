"""Links that sign a person in once: the first administrator's, and those of invitations."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.errors import Refused
from plumbline_web.accounts.models import SignInLink, User
from plumbline_web.accounts.secrets import create_secret, digest_secret
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject

LINK_LIFETIME = timedelta(hours=24)

FIRST_ADMINISTRATOR = "admin"


class InvalidLink(ValueError):
    """The link signs nobody in; the text says why and what to do."""


def create_first_administrator_link() -> str | None:
    """The secret of a new link for the first administrator; None once an administrator has signed in.

    Makes the user `admin` if there is no administrator. Older unused links of that user end.
    """
    with transaction.atomic():
        administrators = User.objects.select_for_update().filter(role=Role.ADMINISTRATOR, is_active=True)
        if administrators.filter(last_login__isnull=False).exists():
            return None
        user = administrators.order_by("pk").first() or _create_first_administrator()
        return _create(user, by=None)


def create_link(user: User, *, by: User | None) -> str:
    """The secret of a new link for `user`; older unused ones of theirs end. `by`: None for the server's operator.

    Raises:
        Refused: `by` is no administrator, or the user is deactivated.
    """
    if by is not None and not by.has_role(Role.ADMINISTRATOR):
        raise Refused("forbidden", "Only an administrator makes sign-in links; ask one.")
    if not user.is_active:
        raise Refused("illegal_state", f"{user.username} is deactivated; activate the account first.")
    with transaction.atomic():
        return _create(user, by=by)


def find_link(secret: str) -> SignInLink:
    """The link of a secret, without using it: mail scanners open links before people do.

    Raises:
        InvalidLink: it is unknown, used or expired, or its user is deactivated.
    """
    return _check(SignInLink.objects.select_related("user").filter(digest=digest_secret(secret)).first())


def sign_in_with(secret: str) -> User:
    """Use a link, once; the person that it signs in.

    Raises:
        InvalidLink: it is unknown, used or expired, or its user is deactivated.
    """
    with transaction.atomic():
        links = SignInLink.objects.select_for_update(of=("self",)).select_related("user")
        link = _check(links.filter(digest=digest_secret(secret)).first())
        link.used_at = link.user.last_login = timezone.now()
        link.save(update_fields=["used_at"])
        link.user.save(update_fields=["last_login"])
        record(Subject.USER, link.user, "signed in by link", actor=link.user)
    return link.user


def _check(link: SignInLink | None) -> SignInLink:
    if link is None:
        raise InvalidLink("This sign-in link is unknown; check that it was copied as a whole, or ask for a new one.")
    if link.used_at is not None:
        raise InvalidLink(f"This sign-in link was used on {_show(link.used_at)}; ask for a new one.")
    if link.expires_at <= timezone.now():
        raise InvalidLink(
            f"This sign-in link ended on {_show(link.expires_at)}, by its age or because a newer one was made; "
            "ask for a new one."
        )
    if not link.user.is_active:
        raise InvalidLink(f"The account {link.user.username} is deactivated; ask an administrator.")
    return link


def _create(user: User, *, by: User | None) -> str:
    now = timezone.now()
    user.sign_in_links.filter(used_at__isnull=True, expires_at__gt=now).update(expires_at=now)
    secret = create_secret()
    SignInLink.objects.create(user=user, digest=digest_secret(secret), expires_at=now + LINK_LIFETIME)
    record(Subject.USER, user, "got a sign-in link", actor=by)
    return secret


def _create_first_administrator() -> User:
    user, _ = User.objects.get_or_create(username=FIRST_ADMINISTRATOR)
    user.role = Role.ADMINISTRATOR
    user.is_active = True
    user.set_unusable_password()
    user.save()
    record(Subject.USER, user, "made an administrator, because there was none")
    return user


def _show(at: object) -> str:
    return f"{at:%d %B %Y at %H:%M} UTC"
