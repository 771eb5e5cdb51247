"""Tokens: what a program shows instead of a person's session."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from plumbline_web.accounts.enums import Role, Scope
from plumbline_web.accounts.errors import Refused
from plumbline_web.accounts.models import Token, User
from plumbline_web.accounts.secrets import create_secret, digest_secret
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject

PREFIX = "plb_"
"""What secret scanners can look for."""

HINT_CHARACTERS = 10

LONGEST_DAYS = 365

LONGEST_NAME = 100

MOST_TOKENS = 50
"""Of one person that are valid at a time."""

USED_AT_EVERY = timedelta(minutes=1)
"""A program that polls each second writes once a minute."""

ROLE_OF_SCOPE = {
    Scope.READ: Role.VIEWER,
    Scope.SUBMIT: Role.SUBMITTER,
    Scope.UPLOAD: Role.SUBMITTER,
    Scope.TRIAGE: Role.TRIAGER,
}
"""The role that a scope needs: a token never does more than its owner."""


class InvalidToken(ValueError):
    """The token opens nothing; the text says why and what to do."""


def create_token(user: User, *, name: str, scopes: Sequence[str], days: int) -> tuple[Token, str]:
    """Make a token of `user`; the row and the secret, which is shown this once.

    Raises:
        Refused: an empty or overlong name, no or unknown scopes, one beyond the user's role, days out of bounds.
    """
    name = name.strip()
    if not 0 < len(name) <= LONGEST_NAME or "\0" in name:
        raise Refused("invalid", f"A name of {len(name)} characters was given; give 1 to {LONGEST_NAME}.", field="name")
    if not 1 <= days <= LONGEST_DAYS:
        raise Refused("invalid", f"{days} days were given; give 1 to {LONGEST_DAYS}.", field="days")
    chosen = _read_scopes(user, scopes)
    now = timezone.now()
    secret = create_secret(prefix=PREFIX)
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)  # two requests must not both see room for one
        if user.tokens.filter(revoked_at__isnull=True, expires_at__gt=now).count() >= MOST_TOKENS:
            raise Refused("illegal_state", f"You have {MOST_TOKENS} valid tokens; revoke one first.")
        token = Token.objects.create(
            user=user,
            name=name,
            hint=secret[:HINT_CHARACTERS],
            digest=digest_secret(secret),
            scopes=[scope.value for scope in chosen],
            expires_at=now + timedelta(days=days),
        )
        record(Subject.TOKEN, token, f"made, for {', '.join(token.scopes)}", actor=user)
    return token, secret


def revoke_token(token: Token, *, by: User) -> None:
    """End a token now; a second time changes nothing.

    Raises:
        Refused: it is someone else's, and `by` is no administrator.
    """
    if token.user_id != by.pk and not by.has_role(Role.ADMINISTRATOR):
        raise Refused("forbidden", "This token belongs to someone else; ask its owner or an administrator.")
    with transaction.atomic():
        changed = Token.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=timezone.now())
        if changed:
            record(Subject.TOKEN, token, "revoked", actor=by)
    token.refresh_from_db()


def authenticate_token(secret: str) -> Token:
    """The valid token of a secret, with its user.

    Raises:
        InvalidToken: it is unknown, revoked or expired, or its user is deactivated.
    """
    token = Token.objects.select_related("user").filter(digest=digest_secret(secret)).first()
    now = timezone.now()
    if token is None:
        raise InvalidToken("The token is unknown; check that it was copied as a whole, or make one under Account.")
    if token.revoked_at is not None:
        raise InvalidToken(f"The token {token.hint}… was revoked; make a new one under Account.")
    if token.expires_at <= now:
        raise InvalidToken(f"The token {token.hint}… expired on {token.expires_at:%d %B %Y}; make a new one.")
    if not token.user.is_active:
        raise InvalidToken(f"The account {token.user.username} is deactivated; ask an administrator.")
    Token.objects.filter(Q(used_at__isnull=True) | Q(used_at__lt=now - USED_AT_EVERY), pk=token.pk).update(used_at=now)
    return token


def scopes_of(user: User) -> tuple[Scope, ...]:
    """What a token of the user may be made for."""
    return tuple(scope for scope, role in ROLE_OF_SCOPE.items() if user.has_role(role))


def _read_scopes(user: User, scopes: Sequence[str]) -> tuple[Scope, ...]:
    unknown = [scope for scope in scopes if scope not in Scope.values]
    if unknown or not scopes:
        found = f"{unknown[0]!r} is no scope" if unknown else "No scope was given"
        raise Refused("invalid", f"{found}; choose among {', '.join(Scope.values)}.", field="scopes")
    chosen = tuple(scope for scope in Scope if scope.value in scopes)
    for scope in chosen:
        if not user.has_role(ROLE_OF_SCOPE[scope]):
            raise Refused(
                "forbidden",
                f"The scope {scope.value} needs the role {ROLE_OF_SCOPE[scope].value}, and you are {user.role}; "
                "leave it out, or ask an administrator.",
                field="scopes",
            )
    return chosen
