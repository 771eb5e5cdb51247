"""Exact pins of a requirements file or of `pip freeze` output.

Format: https://pip.pypa.io/en/stable/reference/requirements-file-format/. Comments, continued lines, hashes, extras,
markers and nested files (`-r`, `-c`) are understood; options of pip say nothing about releases and are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from checks.errors import BadRequest
from workers.audit.files import FIELD, read_text
from workers.audit.inventory import Inventory, Pin, Unjudged, collect

MAX_FILES = 100
"""Nested files beyond these are refused; real trees have a handful."""

_COMMENT = re.compile(r"(^|\s)#.*$")
_INCLUDE = re.compile(r"(?:-r|--requirement|-c|--constraint)(?:\s*=\s*|\s+|(?<=-[rc]))(?P<file>\S.*)")
_EDITABLE = re.compile(r"(-e|--editable)\b")
_TRAILING_OPTION = re.compile(r"\s+--(hash|config-settings|global-option)\b.*$")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_PATH = re.compile(r"[./~\\]|[A-Za-z]:[\\/]|.*\.(whl|zip|tar\.gz)$")


def read_requirements(file: Path, text: str) -> Inventory:
    """The pins of a file whose text was read already, and of those that it includes.

    Raises:
        BadRequest: nothing in it is a requirement, no exact pin, two that differ, or an included file that cannot be
            read.
    """
    found = list(_read(file, text, seen={file.resolve()}))
    requirements = [each for each in found if isinstance(each, Pin) or each.why != NOT_A_REQUIREMENT]
    if not requirements:
        raise BadRequest(FIELD, f"{file} holds no requirement", "give the output of `pip freeze`")
    pins = [each for each in found if isinstance(each, Pin)]
    pinned = {pin.name for pin in pins}
    unjudged = (each for each in found if isinstance(each, Unjudged) and _name(each.text) not in pinned)
    return collect(str(file), pins, unjudged)


NOT_A_REQUIREMENT = "it is no requirement"
NOT_EXACT = "it names no exact version"
OTHER_PLATFORM = "its marker does not hold for this Python"


def _read(file: Path, text: str, *, seen: set[Path]) -> Iterator[Pin | Unjudged]:
    for number, line in _logical_lines(text):
        include = _INCLUDE.fullmatch(line)
        if include is not None:
            yield from _read_include(include["file"].strip("\"' "), file, number, seen=seen)
        elif _EDITABLE.match(line) or _ADDRESS.match(line):
            yield Unjudged(line, file, number, "it is an address or a path, not a release")
        elif not line.startswith("-"):
            yield _read_requirement(_TRAILING_OPTION.sub("", line), file, number)


def _read_include(name: str, file: Path, number: int, *, seen: set[Path]) -> Iterator[Pin | Unjudged]:
    if _ADDRESS.match(name):
        yield Unjudged(name, file, number, "it is a file elsewhere, which is not fetched")
        return
    included = file.parent / name
    if included.resolve() in seen:
        return
    if len(seen) >= MAX_FILES:
        raise BadRequest(FIELD, f"{file} includes more than {MAX_FILES} files", "give the output of `pip freeze`")
    seen.add(included.resolve())
    try:
        text = read_text(included)
    except BadRequest as error:
        raise BadRequest(f"{file}, line {number}", error.found, error.remedy) from None
    yield from _read(included, text, seen=seen)


def _read_requirement(line: str, file: Path, number: int) -> Pin | Unjudged:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        why = "it is an address or a path, not a release" if _PATH.match(line) else NOT_A_REQUIREMENT
        return Unjudged(line, file, number, why)
    if requirement.url is not None:
        return Unjudged(line, file, number, "it is an address or a path, not a release")
    if not _holds(requirement):
        return Unjudged(line, file, number, OTHER_PLATFORM)
    version = _exact(requirement)
    if version is None:
        return Unjudged(line, file, number, NOT_EXACT)
    return Pin(canonicalize_name(requirement.name), version, file, number)


def _holds(requirement: Requirement) -> bool:
    if requirement.marker is None:
        return True
    try:
        return requirement.marker.evaluate({"extra": ""})
    except UndefinedEnvironmentName:
        return True  # judged rather than passed over


def _exact(requirement: Requirement) -> str | None:
    specifiers = list(requirement.specifier)
    if len(specifiers) != 1 or specifiers[0].operator not in ("==", "==="):
        return None
    version = specifiers[0].version
    return None if version.endswith(".*") else version


def _name(text: str) -> str | None:
    """The normalised name that a line asks for; None where it names none."""
    try:
        return canonicalize_name(Requirement(text).name)
    except InvalidRequirement:
        return None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Number of the first line, and the text of the lines that a backslash joins, without comments and blanks."""
    begun, parts = 0, []
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        begun = begun or number
        continued = line.endswith("\\") and not line.lstrip().startswith("#") and number < len(lines)
        parts.append(line[:-1] if line.endswith("\\") and continued else line)
        if continued:
            continue
        joined = _COMMENT.sub("", " ".join(parts)).strip()
        if joined:
            yield begun, joined
        begun, parts = 0, []
