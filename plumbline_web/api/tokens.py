"""Routes of tokens. A token makes no tokens, a session does: a leaked one cannot outlive itself."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Router, Status

from plumbline_web.accounts.domain import create_token, revoke_token
from plumbline_web.accounts.enums import Role, Scope
from plumbline_web.accounts.models import Token
from plumbline_web.accounts.tokens import LONGEST_DAYS, LONGEST_NAME
from plumbline_web.api.access import TOKEN, PageAccess, access, caller
from plumbline_web.api.body import describe_body, read_object, take_text, take_whole
from plumbline_web.api.errors import invalid
from plumbline_web.api.schemas import Error, Me, NewToken, TokenIn
from plumbline_web.api.schemas import Token as TokenOut

router = Router(tags=["tokens"])

API_VERSION = 1


@router.get(
    "/me",
    auth=access(Scope.READ),
    response={200: Me, 401: Error},
    summary="Who is calling, and what answers",
    operation_id="read_me",
)
def read_me(request: HttpRequest) -> dict[str, Any]:
    """A client's first call: it says whether the token is right and which version answers."""
    user = caller(request)
    token = Token.objects.filter(pk=request.META[TOKEN]).first() if TOKEN in request.META else None
    return {
        "username": user.username,
        "role": user.role,
        "scopes": None if token is None else token.scopes,
        "plumbline": version("plumbline"),
        "api": API_VERSION,
    }


@router.get(
    "/tokens",
    auth=access(Scope.READ),
    response={200: list[TokenOut], 401: Error},
    summary="List one's own tokens",
    operation_id="list_tokens",
)
def list_tokens(request: HttpRequest) -> list[dict[str, Any]]:
    """Without their secrets, which are not kept."""
    return [_show(token) for token in caller(request).tokens.all()[:500]]


@router.post(
    "/tokens",
    auth=[PageAccess(Role.VIEWER)],
    response={201: NewToken, 400: Error, 401: Error, 403: Error, 409: Error},
    openapi_extra=describe_body(TokenIn),
    summary="Make a token",
    operation_id="create_token",
)
def create(request: HttpRequest) -> Status[dict[str, Any]]:
    """From a session alone. The answer holds the secret, this once."""
    values = read_object(request, known=("name", "scopes", "days"))
    errors: dict[str, str] = {}
    name = take_text(values, "name", errors, longest=LONGEST_NAME)
    days = take_whole(values, "days", errors, low=1, high=LONGEST_DAYS)
    scopes = values.get("scopes")
    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        errors["scopes"] = f"is not a list of names; choose among {', '.join(Scope.values)}"
    if errors:
        raise invalid(errors)
    assert isinstance(scopes, list)
    token, secret = create_token(caller(request), name=name, scopes=scopes, days=days)
    return Status(201, _show(token) | {"secret": secret})


@router.delete(
    "/tokens/{int:token}",
    auth=access(Scope.READ),
    response={200: TokenOut, 401: Error, 404: Error},
    summary="Revoke a token",
    operation_id="revoke_token",
)
def revoke(request: HttpRequest, token: int) -> dict[str, Any]:
    """From a session: one's own, or anyone's for an administrator. By a token: that token itself and no other."""
    user = caller(request)
    if TOKEN in request.META:
        may = user.tokens.filter(pk=request.META[TOKEN])
    else:
        may = Token.objects.all() if user.has_role(Role.ADMINISTRATOR) else user.tokens.all()
    found = get_object_or_404(may, pk=token)
    revoke_token(found, by=user)
    return _show(found)


def _show(token: Token) -> dict[str, Any]:
    return {
        "id": token.pk,
        "name": token.name,
        "hint": token.hint,
        "scopes": token.scopes,
        "created_at": _utc(token.created_at),
        "expires_at": _utc(token.expires_at),
        "used_at": _utc(token.used_at),
        "revoked_at": _utc(token.revoked_at),
    }


def _utc(at: datetime | None) -> datetime | None:
    return None if at is None else at.astimezone(UTC)
