"""What is audited: releases, where each of them is written, and the lines that say no exact release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from checks.errors import BadRequest


@dataclass(frozen=True)
class Pin:
    """One exact release that a file asks for; `line` counts from 1."""

    name: str
    version: str
    file: Path
    line: int


@dataclass(frozen=True)
class Unjudged:
    """A line that asks for a package without saying which release, and why it could not be judged."""

    text: str
    file: Path
    line: int
    why: str


@dataclass(frozen=True)
class Inventory:
    """Releases by normalised name. `pins` tells where a file asks for them; an interpreter's have none."""

    source: str
    packages: Mapping[str, str]
    pins: Mapping[str, Pin]
    unjudged: tuple[Unjudged, ...]


def collect(source: str, pins: Iterable[Pin], unjudged: Iterable[Unjudged]) -> Inventory:
    """An inventory of pins.

    Raises:
        BadRequest: two pins of one package that differ, or no pin at all.
    """
    by_name: dict[str, Pin] = {}
    for pin in pins:
        earlier = by_name.setdefault(pin.name, pin)
        if earlier.version != pin.version:
            found = (
                f"pins {pin.name} to {earlier.version} in {earlier.file}, line {earlier.line}, and to {pin.version} in "
                f"{pin.file}, line {pin.line}"
            )
            raise BadRequest("requirements", found, "keep one of them")
    if not by_name:
        raise BadRequest(
            "requirements", f"{source} pins no package to an exact version", "give the output of `pip freeze`"
        )
    packages = {name: pin.version for name, pin in sorted(by_name.items())}
    return Inventory(source, packages, by_name, tuple(unjudged))
