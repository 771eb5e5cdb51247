"""What the registry knows of one fault."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from checks.verdict import Pattern

_FILES = Path(__file__).parents[1]


@dataclass(frozen=True)
class Fault:
    """One fault: its file, the problem it is modelled on, and the check that must see it."""

    slug: str
    summary: str
    problem: str | None
    """slug of the catalogue's problem; None where only `url` tells of it"""
    url: str
    check: str
    pattern: Pattern
    settings: tuple[str, ...] = ()
    """settings, as `name=value`, without which the fault has nothing to act on"""

    @property
    def file(self) -> Path:
        """The file to preload; it defines `install()`."""
        return _FILES / f"{self.slug.replace('-', '_')}.py"

    @property
    def marker(self) -> str:
        """How a line of the run's log begins that says that the fault took effect."""
        return f"fault in force: {self.slug}: "
