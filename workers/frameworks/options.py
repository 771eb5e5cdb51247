"""A framework's own options: those that an adapter names beside the settings every framework shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from checks.errors import BadRequest
from checks.spec import RunSpec
from checks.suggesting import nearest

TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}

Value = bool | int | float | str


@dataclass(frozen=True)
class Option:
    """One option that an adapter hands on to its framework."""

    kind: type[bool] | type[int] | type[float] | type[str] | tuple[str, ...]
    """what its value is; a tuple lists the words it can be, and str takes any text"""
    meaning: str
    """what it does, in a few words, for a message and a page"""


def read_options(spec: RunSpec, known: Mapping[str, Option]) -> dict[str, Value]:
    """Return the options of `spec` that are `known`, typed, in the order in which they were given.

    Raises:
        BadRequest: an option without `=`, given twice, unknown to the framework, or of another kind of value.
    """
    read: dict[str, Value] = {}
    for text in spec.options:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name or not value:
            raise BadRequest("options", f"{text!r} is not name=value", "write it so, several separated by commas")
        if name in read:
            raise BadRequest("options", f"{name} is given twice", "give it once")
        if name not in known:
            raise BadRequest("options", f"{spec.framework} is run with no option {name!r}", _suggest(name, known))
        read[name] = _read(name, value, known[name])
    return read


def _read(name: str, text: str, option: Option) -> Value:
    kind = option.kind
    if isinstance(kind, tuple):
        if text not in kind:
            raise BadRequest("options", f"{name} cannot be {text!r}", f"set it to {' or '.join(kind)}")
        return text
    if kind is bool:
        if text.lower() not in TRUTH:
            raise BadRequest("options", f"{name} cannot be {text!r}", "set it to true or false")
        return TRUTH[text.lower()]
    try:
        return kind(text)
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise BadRequest("options", f"{name} cannot be {text!r}", f"give it {noun}") from None


def _suggest(name: str, known: Mapping[str, Option]) -> str:
    if not known:
        return "leave it out: this framework has no options of its own here"
    near = nearest(name, known) or list(known)
    return "use " + " or ".join(near)
