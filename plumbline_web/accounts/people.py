"""People: inviting them, their roles, and leaving."""

from __future__ import annotations

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.errors import Refused
from plumbline_web.accounts.links import create_link
from plumbline_web.accounts.models import User
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject


def invite(username: str, *, role: Role, by: User) -> tuple[User, str]:
    """Make an account without a password, and the secret of its first sign-in link.

    Raises:
        Refused: `by` is no administrator, or the name is taken or malformed.
    """
    _require_administrator(by)
    user = User(username=username.strip(), role=role)
    user.set_unusable_password()
    try:
        user.clean_fields(exclude=["password"])
    except ValidationError as error:
        raise Refused("invalid", " ".join(error.messages), field="username") from None
    # Names that differ in case alone would be taken for one another.
    if User.objects.filter(username__iexact=user.username).exists():
        raise Refused("invalid", f"There is an account {user.username} already; choose another name.", field="username")
    with transaction.atomic():
        user.save()
        record(Subject.USER, user, f"invited as {role.value}", actor=by)
        return user, create_link(user, by=by)


def list_triagers() -> QuerySet[User]:
    """Everyone who may decide about findings, by name."""
    roles = [role for role in Role if role.includes(Role.TRIAGER)]
    return User.objects.filter(is_active=True, role__in=roles).order_by("username")


def set_role(user: User, *, role: Role, by: User) -> None:
    """Give a person another role.

    Raises:
        Refused: `by` is no administrator, or it is the last administrator's role that would go.
    """
    _require_administrator(by)
    with transaction.atomic():
        _lock_administrators()
        user.refresh_from_db()
        if user.role == role:
            return
        if role != Role.ADMINISTRATOR:
            _keep_one_administrator(user)
        before, user.role = user.role, role
        user.save(update_fields=["role"])
        record(Subject.USER, user, f"role changed from {before} to {role.value}", actor=by)


def deactivate(user: User, *, by: User) -> None:
    """End a person's access: sessions, links and tokens. What they did stays theirs.

    Raises:
        Refused: `by` is no administrator, or it is the last administrator.
    """
    _require_administrator(by)
    with transaction.atomic():
        _lock_administrators()
        user.refresh_from_db()
        if not user.is_active:
            return
        _keep_one_administrator(user)
        now = timezone.now()
        user.is_active = False
        user.save(update_fields=["is_active"])
        user.tokens.filter(revoked_at__isnull=True).update(revoked_at=now)
        user.sign_in_links.filter(used_at__isnull=True, expires_at__gt=now).update(expires_at=now)
        record(Subject.USER, user, "deactivated", actor=by)


def activate(user: User, *, by: User) -> None:
    """Let a deactivated person sign in again; their tokens stay revoked.

    Raises:
        Refused: `by` is no administrator.
    """
    _require_administrator(by)
    with transaction.atomic():
        user.refresh_from_db()
        if user.is_active:
            return
        user.is_active = True
        user.save(update_fields=["is_active"])
        record(Subject.USER, user, "activated", actor=by)


def set_password(user: User, password: str, *, current: str = "") -> None:
    """Set the person's own password; `current` must be right where there is one.

    Raises:
        Refused: the current one is wrong, or the new one too weak.
    """
    if user.has_usable_password() and not user.check_password(current):
        raise Refused("invalid", "The current password is wrong; type it again.", field="current")
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise Refused("invalid", " ".join(error.messages), field="password") from None
    with transaction.atomic():
        user.set_password(password)
        user.save(update_fields=["password"])
        record(Subject.USER, user, "set a password", actor=user)


def _require_administrator(by: User) -> None:
    if not by.has_role(Role.ADMINISTRATOR):
        raise Refused("forbidden", "Only an administrator changes accounts; ask one.")


def _lock_administrators() -> None:
    """Two administrators that demote each other at once must not both succeed."""
    list(User.objects.select_for_update().filter(role=Role.ADMINISTRATOR).order_by("pk").values_list("pk"))


def _keep_one_administrator(user: User) -> None:
    others = User.objects.filter(role=Role.ADMINISTRATOR, is_active=True).exclude(pk=user.pk)
    if user.has_role(Role.ADMINISTRATOR) and not others.exists():
        raise Refused("illegal_state", f"{user.username} is the last administrator; make another one first.")
