"""Addresses of database, broker and mail server, from the form in which they are written to what is read of them."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class MailServer:
    """Where e-mail is handed in; without a host none is sent. `tls`: "start", "always", or empty for none."""

    host: str
    port: int
    user: str
    password: str
    tls: str


def read_mail_url(url: str) -> MailServer:
    """Read `smtp://user:password@host:587?tls=start`; `tls=always` speaks TLS from the first byte.

    Raises:
        ImproperlyConfigured: another scheme, no host, or another word for `tls`.
    """
    if not url:
        return MailServer("", 25, "", "", "")
    parts = urlsplit(url)
    tls = {key: values[-1] for key, values in parse_qs(parts.query).items()}.get("tls", "")
    if parts.scheme != "smtp" or not parts.hostname or tls not in ("", "start", "always"):
        raise ImproperlyConfigured(
            "PLUMBLINE_MAIL: is no mail server; write smtp://user:password@host:587?tls=start, or tls=always"
        )
    port = parts.port or {"": 25, "start": 587, "always": 465}[tls]
    return MailServer(parts.hostname, port, unquote(parts.username or ""), unquote(parts.password or ""), tls)
