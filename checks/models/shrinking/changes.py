"""A config on its way from a published model to a small one, and what happened to each of its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

from checks.errors import BadRequest

Action = Literal["kept", "shrunk", "dropped"]


@dataclass(frozen=True)
class Change:
    """One setting: what it was, what it became, and why; `before` equals `after` where it was kept."""

    name: str
    action: Action
    before: Any
    after: Any
    why: str


@dataclass(frozen=True)
class Shrunk:
    """`config`: the content of the small model's config.json; `changes`: in the order in which they were decided."""

    config: Mapping[str, Any]
    changes: tuple[Change, ...]


@dataclass
class Draft:
    """A config being shrunk: rules read `original`, write `config`, and note what they did.

    `layers`, `hidden_size`, `head_dim`: of the small model, once the rules that decide them have run.
    """

    original: Mapping[str, Any]
    config: dict[str, Any]
    vocabulary: int
    changes: list[Change] = field(default_factory=list)
    layers: int = 0
    hidden_size: int = 0
    head_dim: int = 0

    def number(self, *names: str) -> int | None:
        """The first of these settings that is a whole number; None where none is."""
        found = self.named(*names)
        return None if found is None else int(self.original[found])

    def named(self, *names: str) -> str | None:
        """The first of these names whose setting is a whole number."""
        return next((name for name in names if is_whole(self.original.get(name))), None)

    def put(self, name: str, value: Any, why: str) -> None:
        """Give a setting its small value, and say whether that is its old one."""
        before = self.original.get(name)
        self.config[name] = value
        action: Action = "kept" if before == value else "shrunk"
        self.changes = [change for change in self.changes if change.name != name]
        self.changes.append(Change(name, action, before, value, why))

    def put_where_there(self, names: Iterable[str], value: Any, why: str) -> None:
        """The same value for every one of these settings that the config has as a number."""
        for name in names:
            if is_whole(self.original.get(name)):
                self.put(name, value, why)

    def drop(self, name: str, why: str) -> None:
        before = self.config.pop(name)
        self.changes.append(Change(name, "dropped", before, None, why))

    def refuse(self, name: str, why: str, remedy: str) -> BadRequest:
        """The error that says that this setting cannot be shrunk."""
        return BadRequest(f"model config {name}", f"is {self.original.get(name)!r}, {why}", remedy)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a setting is a whole number above 0 (booleans are none)."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def round_to(value: float, multiple: int) -> int:
    """The nearest multiple of `multiple`, at least one."""
    return max(1, round(value / multiple)) * multiple
