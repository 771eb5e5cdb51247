"""Database and broker addresses, from the form in which they are written to the one that Django and Celery read."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured


def read_database_url(url: str) -> dict[str, Any]:
    """Turn `postgresql://user:password@host:port/name?host=/socket/directory` into Django's DATABASES entry.

    Raises:
        ImproperlyConfigured: another scheme, or no database name.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ImproperlyConfigured(
            f"DATABASE_URL: {parts.scheme or 'no scheme'} is not PostgreSQL; write postgresql://user@host:5432/name"
        )
    name = unquote(parts.path.lstrip("/"))
    if not name:
        raise ImproperlyConfigured("DATABASE_URL: names no database; write postgresql://user@host:5432/name")
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.get("host", parts.hostname or ""),
        "PORT": str(parts.port or query.get("port", "")),
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }


def broker_url(url: str) -> str:
    """Celery writes a Unix socket as `redis+socket://`; redis-py as `unix://`. Both are taken."""
    return url.replace("unix://", "redis+socket://", 1) if url.startswith("unix://") else url


def redis_url(broker: str) -> str:
    """The broker's address as redis-py reads it: a Unix socket's database is its `db`, Celery's `virtual_host`."""
    if not broker.startswith("redis+socket://"):
        return broker
    return broker.replace("redis+socket://", "unix://", 1).replace("virtual_host=", "db=", 1)
