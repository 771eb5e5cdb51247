"""A limit on guessing passwords, counted in Redis, which all web processes share."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from functools import cache

import redis
from django.conf import settings
from django.http import HttpRequest

from plumbline_web.addresses import redis_url

log = logging.getLogger(__name__)

WINDOW_S = 15 * 60
"""How long a failure counts."""


@dataclass(frozen=True)
class Limit:
    """`most` failures of one key within the window."""

    key: str
    most: int


class TooManyAttempts(Exception):
    """Guessing has to wait; `wait_s` says how long."""

    def __init__(self, wait_s: int) -> None:
        minutes = max(1, round(wait_s / 60))
        unit = "minute" if minutes == 1 else "minutes"
        super().__init__(
            f"Too many wrong passwords; wait {minutes} {unit}, or ask an administrator for a sign-in link."
        )
        self.wait_s = wait_s


def check_attempts(username: str, *, address: str) -> None:
    """Raise TooManyAttempts where too many passwords were wrong lately.

    Counted by person and address together, so that nobody is locked out from elsewhere; by address alone, against one
    password tried on many names; and by person alone, against many addresses.
    """
    try:
        for limit in _limits(username, address):
            if int(_client().get(limit.key) or 0) >= limit.most:
                raise TooManyAttempts(max(1, int(_client().ttl(limit.key))))
    except redis.RedisError as error:
        # Signing in must not depend on the broker; passwords have at least 12 characters.
        log.warning("wrong passwords are not counted, because Redis does not answer: %s", error)


def count_failure(username: str, *, address: str) -> None:
    """Count one wrong password."""
    try:
        with _client().pipeline() as pipe:
            for limit in _limits(username, address):
                pipe.incr(limit.key)
                pipe.expire(limit.key, WINDOW_S)
            pipe.execute()
    except redis.RedisError as error:
        log.warning("a wrong password was not counted, because Redis does not answer: %s", error)


def forget_failures(username: str, *, address: str) -> None:
    """A right password clears what the same person failed from the same address."""
    try:
        _client().delete(_limits(username, address)[0].key)
    except redis.RedisError as error:
        log.warning("wrong passwords were not forgotten, because Redis does not answer: %s", error)


def client_address(request: HttpRequest) -> str:
    """Where a request comes from: behind a trusted proxy, the address that this proxy appended."""
    if settings.SECURE_PROXY_SSL_HEADER is not None:
        forwarded = request.headers.get("X-Forwarded-For", "").rsplit(",", 1)[-1].strip()
        if forwarded:
            return forwarded
    return str(request.META.get("REMOTE_ADDR", ""))


def _limits(username: str, address: str) -> tuple[Limit, Limit, Limit]:
    person = hashlib.sha256(username.strip().lower().encode("utf-8", errors="replace")).hexdigest()[:32]
    return (
        Limit(f"plumbline:sign-in:{person}:{address}", 5),
        Limit(f"plumbline:sign-in:from:{address}", 30),
        Limit(f"plumbline:sign-in:as:{person}", 50),
    )


@cache
def _client() -> redis.Redis:
    return redis.Redis.from_url(redis_url(settings.CELERY_BROKER_URL), socket_timeout=2, socket_connect_timeout=2)
