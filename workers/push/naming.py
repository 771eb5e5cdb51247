"""What of a push's names can be refused on the machine that sends: before a byte of a capture has been read."""

from __future__ import annotations

import re

from checks.errors import BadRequest
from checks.models.resolve import PREFIX, find_family

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,49}", re.ASCII)


def check_framework(name: str) -> None:
    """Raise BadRequest for what is no name of a framework; it may be one that no adapter here runs."""
    if not NAME.fullmatch(name):
        found = f"{name[:60]!r} is no name of a framework"
        raise BadRequest("framework", found, "write it in small letters, as its package is called")


def check_model(name: str) -> None:
    """Raise BadRequest for a tiny family that there is none of; a path is the server's."""
    if name.startswith(PREFIX):
        find_family(name.removeprefix(PREFIX))


def check_checks(names: tuple[str, ...] | None) -> None:
    """Raise BadRequest for a name that no check and no level has."""
    if names is not None:
        from checks.registry import find_checks  # late: it takes seconds

        find_checks(names)
