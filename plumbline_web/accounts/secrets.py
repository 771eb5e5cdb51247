"""Secrets that are handed out once, and the digests that are kept of them."""

from __future__ import annotations

import hashlib
import secrets

SECRET_BYTES = 32
"""256 random bits: a plain SHA-256 is enough, because there is nothing to guess that a slow hash would protect."""


def create_secret(*, prefix: str = "") -> str:
    """A new URL-safe secret."""
    return prefix + secrets.token_urlsafe(SECRET_BYTES)


def digest_secret(secret: str) -> str:
    """SHA-256 in hex. Rows are found by it, so that no comparison takes longer for a nearly right secret."""
    return hashlib.sha256(secret.encode("utf-8", errors="surrogatepass")).hexdigest()
