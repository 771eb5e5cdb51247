"""What a package index says of a framework's releases, over its JSON API (https://docs.pypi.org/api/json/)."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import httpx2 as httpx
from django.conf import settings
from packaging.version import InvalidVersion, Version

DEFAULT_INDEX = "https://pypi.org/pypi"
"""`PACKAGE_INDEX` in the settings names another one."""

TIMEOUT_S = 15.0

MOST_BYTES = 32 << 20
"""The document of a package with thousands of files is a few MB."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)


class IndexUnreachable(RuntimeError):
    """The index gave no answer that can be read; `str()` says why, in one sentence."""


def index_address() -> str:
    return str(getattr(settings, "PACKAGE_INDEX", "") or DEFAULT_INDEX).rstrip("/")


def find_newest_release(package: str) -> str | None:
    """The newest release that has files and is neither a pre-release nor withdrawn; None where there is none.

    Raises:
        IndexUnreachable: no answer, an error, or no JSON.
    """
    if not _NAME.fullmatch(package):
        raise IndexUnreachable(f"{package!r} is no package's name, so no index was asked.")
    releases = _fetch(f"{index_address()}/{quote(package)}/json").get("releases")
    if not isinstance(releases, dict):
        raise IndexUnreachable(f"The package index {index_address()} lists no releases of {package}.")
    versions = [version for text, files in releases.items() if (version := _read(text, files)) is not None]
    return str(max(versions)) if versions else None


def is_newer(release: str, *, than: str) -> bool:
    """Whether a release comes after another; after one that is no version, always."""
    try:
        return Version(release) > Version(than)
    except InvalidVersion:
        return True


def _read(text: str, files: object) -> Version | None:
    try:
        version = Version(text)
    except InvalidVersion:
        return None
    kept = isinstance(files, list) and any(isinstance(file, dict) and not file.get("yanked") for file in files)
    return version if kept and not version.is_prerelease else None


def _fetch(address: str) -> dict[str, Any]:
    try:
        with httpx.stream("GET", address, timeout=TIMEOUT_S, follow_redirects=True) as response:
            response.raise_for_status()
            body = b""
            for piece in response.iter_bytes():
                body += piece
                if len(body) > MOST_BYTES:
                    raise IndexUnreachable(f"{address} answered with more than {MOST_BYTES:,} bytes.")
        document = json.loads(body)
    except httpx.HTTPStatusError as error:
        raise IndexUnreachable(f"{address} answered {error.response.status_code}.") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise IndexUnreachable(f"{address} did not answer ({type(error).__name__}).") from None
    except (ValueError, RecursionError):
        raise IndexUnreachable(f"{address} answered with what is no JSON.") from None
    if not isinstance(document, dict):
        raise IndexUnreachable(f"{address} answered with what is no JSON object.")
    return document
