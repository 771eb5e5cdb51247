"""Strict reading of a JSON Lines file: every value is taken by its field, and what is left over is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from checks.errors import BadRequest

_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?")
_URL = re.compile(r"https://[^\s<>\"]+")


def read_lines(file: Path) -> Iterator[Line]:
    """The objects of a file, one a line.

    Raises:
        BadRequest: a file that cannot be read, a line that is not a JSON object, or no line at all.
    """
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(file.name, f"cannot be read ({error})", "install Plumbline again") from None
    if not content.strip():
        raise BadRequest(file.name, "holds no line", "install Plumbline again")
    for number, text in enumerate(content.rstrip("\n").split("\n"), start=1):
        where = f"{file.name}, line {number}"
        try:
            value = json.loads(text)
        except ValueError as error:
            raise BadRequest(where, f"is not JSON ({error})", "write one JSON object a line") from None
        if not isinstance(value, dict):
            raise BadRequest(where, f"is {_kind(value)}", "write one JSON object a line")
        yield Line(where, value)


@dataclass(frozen=True)
class Line:
    """One object whose fields are taken one by one; `end` refuses those that nobody took."""

    place: str
    values: Mapping[str, Any]
    taken: set[str] = field(default_factory=set)

    def where(self, name: str) -> str:
        return f"{self.place}, {name}"

    def refuse(self, name: str, found: str, remedy: str) -> BadRequest:
        """The error of one field."""
        return BadRequest(self.where(name), found, remedy)

    def within(self, value: Mapping[str, Any], name: str) -> Line:
        """An object inside this one, whose fields are told with its name."""
        return Line(self.where(name), value)

    def end(self) -> None:
        """Raise BadRequest where a field is left that has no meaning."""
        for name in self.values:
            if name not in self.taken:
                raise self.refuse(name, "there is no such field", "leave it out")

    def text(self, name: str) -> str:
        value = self._take(name)
        if not isinstance(value, str) or not value.strip():
            raise self.refuse(name, f"is {_kind(value)}", "write a text that is not empty")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self._take(name) is None else self.text(name)

    def boolean(self, name: str) -> bool:
        value = self._take(name)
        if not isinstance(value, bool):
            raise self.refuse(name, f"is {_kind(value)}", "write true or false")
        return value

    def choice(self, name: str, among: tuple[str, ...]) -> str:
        value = self.text(name)
        if value not in among:
            raise self.refuse(name, f"{value!r} is none of its values", f"write {', '.join(among[:-1])} or {among[-1]}")
        return value

    def slug(self, name: str) -> str:
        value = self.text(name)
        if not _SLUG.fullmatch(value):
            raise self.refuse(name, f"{value!r} is no slug", "write small letters, digits and single hyphens")
        return value

    def date(self, name: str) -> str:
        value = self.text(name)
        if not _DATE.fullmatch(value):
            raise self.refuse(name, f"{value!r} is no date", "write YYYY-MM or YYYY-MM-DD")
        return value

    def url(self, name: str) -> str:
        return self._check_url(self.text(name), name)

    def optional_url(self, name: str) -> str:
        """Empty for null."""
        return "" if self._take(name) is None else self.url(name)

    def urls(self, name: str) -> tuple[str, ...]:
        return tuple(self._check_url(value, name) for value in self.texts(name))

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._take(name)
        if not isinstance(value, list) or not all(isinstance(each, str) and each.strip() for each in value):
            raise self.refuse(name, f"is {_kind(value)}, or not of texts", "write a list of texts")
        return tuple(value)

    def objects(self, name: str) -> tuple[Mapping[str, Any], ...]:
        value = self._take(name)
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self.refuse(name, f"is {_kind(value)}, or not of objects", "write a list of objects")
        return tuple(value)

    def mapping(self, name: str) -> Mapping[str, str]:
        value = self._take(name)
        if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            raise self.refuse(name, f"is {_kind(value)}, or not of texts", "write an object of texts")
        return value

    def package(self, value: str, name: str) -> str:
        """A package's name as PEP 503 normalises it."""
        normal = canonicalize_name(value)
        if value != normal:
            raise self.refuse(name, f"{value!r} is not normalised", f"write {normal!r}")
        return value

    def specifier(self, value: str, name: str) -> SpecifierSet:
        """A PEP 440 specifier set that leaves some release out."""
        try:
            parsed = SpecifierSet(value)
        except InvalidSpecifier:
            raise self.refuse(name, f"{value!r} is no specifier of PEP 440", "write one like '>=4.46,<5.13'") from None
        if not len(parsed):
            raise self.refuse(name, "holds no bound, and so every release", "leave the range out where it is unknown")
        return parsed

    def _take(self, name: str) -> Any:
        if name not in self.values:
            raise self.refuse(name, "is missing", "add it")
        self.taken.add(name)
        return self.values[name]

    def _check_url(self, value: str, name: str) -> str:
        if not _URL.fullmatch(value):
            raise self.refuse(name, f"{value!r} is no address", "write one that begins with https://")
        return value


def _kind(value: Any) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    if value == "":
        return "an empty text"
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return kinds[type(value)]
