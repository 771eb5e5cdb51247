"""Pages for a role."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]


def signed_in(request: HttpRequest) -> User:
    """The person of a request that LoginRequiredMiddleware let through."""
    assert isinstance(request.user, User)
    return request.user


def requires(role: Role) -> Callable[[View[P]], View[P]]:
    """Refuse, with 403, whoever has not `role`."""

    def decorate(view: View[P]) -> View[P]:
        @wraps(view)
        def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
            user = signed_in(request)
            if not user.has_role(role):
                raise PermissionDenied(
                    f"This needs the role {role.value}, and you are {user.role}; ask an administrator."
                )
            return view(request, *args, **kwargs)

        return guarded

    return decorate
