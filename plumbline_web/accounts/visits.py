"""Visits: what the overview calls new is newer than the last page of the visit before."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from django.db.models import Case, F, Q, When
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from plumbline_web.accounts.models import User

SILENCE = timedelta(minutes=30)
"""After it, the next page begins a new visit."""

SEEN_EVERY = timedelta(minutes=1)
"""A page that refreshes itself each second writes once a minute."""


class Visits:
    """Middleware, after AuthenticationMiddleware: notes when a person was here. Programs with tokens do not visit."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.user.is_authenticated:
            note_visit(request.user)
        return self.get_response(request)


def note_visit(user: User) -> None:
    """Move `seen_at`, and `visited_at` where a visit begins; at most one write a minute, whoever comes first."""
    now = timezone.now()
    if user.seen_at is not None and user.seen_at > now - SEEN_EVERY:
        return
    begins = Q(seen_at__lt=now - SILENCE)
    User.objects.filter(Q(seen_at__isnull=True) | Q(seen_at__lte=now - SEEN_EVERY), pk=user.pk).update(
        # the person's last sign of life before this visit
        visited_at=Case(When(begins, then=F("seen_at")), default=F("visited_at")),
        seen_at=now,
    )
    user.refresh_from_db(fields=["visited_at", "seen_at"])
