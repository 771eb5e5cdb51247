"""Who may call a route: a token in the Authorization header, or the session of a page with its CSRF token."""

from __future__ import annotations

from django.http import HttpRequest
from ninja.security import HttpBearer, SessionAuth
from ninja.utils import check_csrf

from plumbline_web.accounts.enums import Role, Scope
from plumbline_web.accounts.models import User
from plumbline_web.accounts.tokens import InvalidToken, authenticate_token
from plumbline_web.api.errors import ApiError

TOKEN = "plumbline.token"
"""Key of `request.META` under which the calling token's id stands; no header of a request can be named so."""


class TokenAccess(HttpBearer):
    """`Authorization: Bearer <token>`; a wrong token is refused even where there is a session."""

    openapi_name = "token"

    def __init__(self, scope: Scope, role: Role) -> None:
        super().__init__()
        self.scope = scope
        self.role = role

    def __call__(self, request: HttpRequest) -> User | None:
        header = request.headers.get("Authorization")
        if header is None:
            return None
        scheme, _, secret = header.partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise ApiError(401, "The Authorization header is not a token; write Authorization: Bearer <token>.")
        return self.authenticate(request, secret.strip())

    def authenticate(self, request: HttpRequest, token: str) -> User:
        try:
            found = authenticate_token(token)
        except InvalidToken as error:
            raise ApiError(401, str(error)) from None
        if self.scope.value not in found.scopes:
            has = ", ".join(found.scopes)
            raise ApiError(403, f"The token has the scopes {has}, and this needs {self.scope.value}; make another one.")
        check_role(found.user, self.role)
        request.user = found.user
        request.META[TOKEN] = found.pk
        return found.user


class PageAccess(SessionAuth):
    """The session cookie; what changes something needs the X-CSRFToken header too."""

    openapi_name = "session"

    def __init__(self, role: Role) -> None:
        super().__init__(csrf=False)  # checked below, in the API's own words
        self.openapi_name = "session"
        self.role = role

    def authenticate(self, request: HttpRequest, key: str | None) -> User | None:
        user = request.user
        if not isinstance(user, User):
            return None
        if check_csrf(request) is not None:
            raise ApiError(403, "The CSRF token is missing or wrong; send it as X-CSRFToken, or use an API token.")
        check_role(user, self.role)
        return user


def access(scope: Scope, role: Role = Role.VIEWER) -> list[TokenAccess | PageAccess]:
    """What a route's `auth` takes: a token with `scope`, or a session; of a person with `role` either way."""
    return [TokenAccess(scope, role), PageAccess(role)]


def check_role(user: User, role: Role) -> None:
    """Raise 403 where the person has not the role."""
    if not user.has_role(role):
        raise ApiError(403, f"This needs the role {role.value}, and you are {user.role}; ask an administrator.")


def caller(request: HttpRequest) -> User:
    """The person behind a request that `access` let through."""
    assert isinstance(request.user, User)
    return request.user
