"""One signed POST to an address that an administrator gave: no redirect followed, no private address reached.

What is signed, and how a receiver checks it, is on docs/notifications.md; a receiver's half is `verify`.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

TIMEOUT_S = 10.0
"""For connecting, and for each read."""

DEADLINE_S = 30.0
"""For all of it: a receiver that sends a byte now and then holds no worker."""

MOST_ANSWER_BYTES = 300
"""of the answer's body that is kept, for whoever looks for the cause"""

SIGNATURE = "X-Plumbline-Signature"
TIMESTAMP = "X-Plumbline-Timestamp"

LARGEST_SKEW_S = 300
"""By which a receiver's clock may differ before it calls a message old."""


class PostFailed(RuntimeError):
    """A message that was not taken, with what happened."""


class AddressRefused(PostFailed):
    """An address that nothing is sent to."""


def sign(body: bytes, *, secret: str, timestamp: int) -> str:
    """`sha256=` and HMAC-SHA256 (RFC 2104) in hex of the time in seconds, a full stop, and the body.

    >>> sign(b"{}", secret="s", timestamp=1)[:20]
    'sha256=b253639bcd705'
    """
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256)
    return f"sha256={digest.hexdigest()}"


def verify(body: bytes, *, secret: str, headers: Mapping[str, str], now: float) -> bool:
    """Whether a message came from who has the secret, within LARGEST_SKEW_S of `now`, unchanged."""
    timestamp = headers.get(TIMESTAMP, "")
    if not (timestamp.isascii() and timestamp.isdecimal()) or abs(now - int(timestamp)) > LARGEST_SKEW_S:
        return False
    return hmac.compare_digest(sign(body, secret=secret, timestamp=int(timestamp)), headers.get(SIGNATURE, ""))


def post_signed(url: str, document: Mapping[str, Any], *, secret: str) -> str:
    """Send a document as JSON; the answer's status.

    Raises:
        PostFailed: an address that is refused, no connection, no answer in time, or another status than 2xx.
    """
    body = json.dumps(document, ensure_ascii=False).encode()
    timestamp = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Plumbline",
        "X-Plumbline-Delivery": str(document["id"]),
        "X-Plumbline-Event": str(document["kind"]),
        TIMESTAMP: str(timestamp),
        SIGNATURE: sign(body, secret=secret, timestamp=timestamp),
    }
    try:
        return _post(url, body, headers)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise PostFailed(f"no answer: {type(error).__name__}: {error}"[:400]) from error


def check_address(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of an address that may be one of a webhook.

    Raises:
        AddressRefused: another scheme, no host, or a name and password within it.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise AddressRefused(f"{url[:100]!r} is no address; write https://host/path") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise AddressRefused(f"{url[:100]!r} is no address for a webhook; write https://host/path")
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)


def find_address(host: str, port: int) -> str:
    """The IP address of a host, every one of which must be public, unless the settings allow private ones.

    The connection is made to this very address: a name that changes its address in between leads nowhere else.

    Raises:
        AddressRefused: one of its addresses is private, of this machine or of a local network.
        OSError: the name has no address.
    """
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if not settings.WEBHOOK_PRIVATE:
        for address in found:
            if not _is_public(address):
                raise AddressRefused(
                    f"{host} leads to {address}, which is private; set PLUMBLINE_WEBHOOK_PRIVATE=1 to allow that"
                )
    return found[0]


def _is_public(address: str) -> bool:
    known = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(known, ipaddress.IPv6Address):
        # An IPv4 address in IPv6's clothes: mapped, 6to4, and Teredo's client.
        inner = known.ipv4_mapped or known.sixtofour or (known.teredo[1] if known.teredo else None)
        if inner is not None and not _is_public(str(inner)):
            return False
    return known.is_global and not known.is_multicast


def _post(url: str, body: bytes, headers: Mapping[str, str]) -> str:
    scheme, host, port = check_address(url)
    address = find_address(host, port)
    connection = (
        _PinnedHTTPS(host, port, timeout=TIMEOUT_S, context=ssl.create_default_context())
        if scheme == "https"
        else _PinnedHTTP(host, port, timeout=TIMEOUT_S)
    )
    connection.address = address
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    late = threading.Event()
    timer = threading.Timer(DEADLINE_S, _cut, (connection, late))
    timer.daemon = True
    timer.start()
    try:
        connection.request("POST", path, body=body, headers=dict(headers))
        answer = connection.getresponse()
        text = answer.read(MOST_ANSWER_BYTES).decode("utf-8", errors="replace").strip()
    finally:
        timer.cancel()
        connection.close()
    if late.is_set():
        raise PostFailed(f"no whole answer within {DEADLINE_S:.0f} s")
    said = f"{answer.status} {answer.reason}"
    if not 200 <= answer.status < 300:
        told = "; redirects are not followed" if 300 <= answer.status < 400 else f": {text}" if text else ""
        raise PostFailed(f"{said}{told}")
    return said


def _cut(connection: _PinnedHTTP | _PinnedHTTPS, late: threading.Event) -> None:
    late.set()
    if connection.sock is not None:
        try:
            connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            late.set()  # it was closed by itself a moment before


class _PinnedHTTP(http.client.HTTPConnection):
    """Connects to `address`, and speaks to the host of the URL."""

    address = ""

    def connect(self) -> None:
        self.sock = socket.create_connection((self.address, self.port), self.timeout)


class _PinnedHTTPS(http.client.HTTPSConnection):
    """The same with TLS, whose certificate must be the host's."""

    address = ""

    def __init__(self, host: str, port: int, *, timeout: float, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._tls = context

    def connect(self) -> None:
        plain = socket.create_connection((self.address, self.port), self.timeout)
        self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
