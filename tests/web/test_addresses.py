"""Addresses in every form in which they may be written."""

from __future__ import annotations

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured

from plumbline_web.addresses import broker_url, read_database_url, read_mail_url, redis_url


@pytest.mark.parametrize(
    ("written", "broker", "client", "database"),
    [
        ("redis://h:6379/3", "redis://h:6379/3", "redis://h:6379/3", 3),
        ("unix:///run/r.sock", "redis+socket:///run/r.sock", "unix:///run/r.sock", 0),
        ("redis+socket:///r.sock?virtual_host=4", "redis+socket:///r.sock?virtual_host=4", "unix:///r.sock?db=4", 4),
    ],
)
def test_one_address_of_redis_is_read_by_celery_and_by_redis_py(
    written: str, broker: str, client: str, database: int
) -> None:
    assert broker_url(written) == broker
    assert redis_url(broker) == client
    options = redis.Redis.from_url(client).connection_pool.connection_kwargs
    assert options.get("db", 0) == database


def test_a_database_on_a_socket_is_read() -> None:
    read = read_database_url("postgresql://anna:p%40ss@/plumb?host=/run/pg&port=5433")
    assert {key: read[key] for key in ("NAME", "USER", "PASSWORD", "HOST", "PORT")} == {
        "NAME": "plumb",
        "USER": "anna",
        "PASSWORD": "p@ss",
        "HOST": "/run/pg",
        "PORT": "5433",
    }


@pytest.mark.parametrize("url", ["mysql://x/y", "postgresql://host/", "nothing"])
def test_another_database_is_refused(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL: "):
        read_database_url(url)


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("", ("", 25, "", "", "")),
        ("smtp://mail.example.org", ("mail.example.org", 25, "", "", "")),
        ("smtp://a:p%40ss@mail.example.org?tls=start", ("mail.example.org", 587, "a", "p@ss", "start")),
        ("smtp://mail.example.org:2465?tls=always", ("mail.example.org", 2465, "", "", "always")),
    ],
)
def test_a_mail_server_is_read(url: str, read: tuple[str, int, str, str, str]) -> None:
    server = read_mail_url(url)
    assert (server.host, server.port, server.user, server.password, server.tls) == read


@pytest.mark.parametrize("url", ["https://mail.example.org", "smtp://", "smtp://mail.example.org?tls=perhaps"])
def test_what_is_no_mail_server_is_refused(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="PLUMBLINE_MAIL: is no mail server; write smtp://"):
        read_mail_url(url)
