"""Taking out of a report what names this house: pure text in, text and counts out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

PATH, HOST, USER, MODEL = "path", "host", "user", "model"
KINDS = (PATH, HOST, USER, MODEL)
REPLACEMENTS: Mapping[str, str] = {PATH: "<path>", HOST: "<host>", USER: "<user>", MODEL: "<model>"}

NO_NAMES = frozenset(
    {
        *("root", "user", "admin", "administrator", "localhost", "test", "runner", "ubuntu", "nobody", "path", "host"),
        *("model", "models", "checkpoint", "checkpoints", "latest", "final", "best", "base", "output", "outputs"),
        *("data", "dataset", "train", "trainer", "training", "plumbline", "transformers", "torch", "python"),
    }
)
"""Names that name nobody: "root cause" must stay."""
SHORTEST = 3
"""characters of a name that is looked for: shorter ones are parts of half the words"""
DISTINCT = 6
"""From so many characters on a name is looked for inside longer words too; a shorter one stands alone."""

PUBLIC_PATHS = ("/dev/", "/proc/self", "/usr/bin/env")

# A path begins at a root or a home, and not inside an address, a relative path or an expression; or at a drive.
_ABSOLUTE = re.compile(
    r"(?<![\w./}\]-])(?<!<path>)(?<!<model>)(?:file://)?~?(?:/(?:[\w.@+~=%,#-]|\\ )+){2,}/?"
    r"|(?<!\w)~/[\w.@+~=%,#-]+/?"
    r"|(?<!\w)[A-Za-z]:(?:\\{1,2}[\w.@+~=%,#-]+)+\\?"
)
_PACKAGE = re.compile(r"(?:site|dist)-packages/(.+)$")
_STDLIB = re.compile(r"/python3\.\d+/((?!site-packages|dist-packages).+)$")
_ADDRESS = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+", re.ASCII)
_BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = re.compile(rf"(?<![\w.])(?!127\.0\.0\.1\b|0\.0\.0\.0\b)(?:{_BYTE}\.){{3}}{_BYTE}(?!\.?\w)")
_IPV6 = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}(?![\w:])")


@dataclass(frozen=True)
class Private:
    """The names of this house, by kind."""

    paths: Collection[str] = ()
    hosts: Collection[str] = ()
    users: Collection[str] = ()
    models: Collection[str] = ()


@dataclass
class Redactor:
    """Takes out names and paths, text by text, and counts what it took. `kept`: kinds that stay."""

    private: Private
    kept: Collection[str] = ()
    removed: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        # A model's whole name before the path that it is; every path before the names of people and machines in it.
        where = [name for name in self.private.models if "/" in name]
        self._first = _pattern(where, anywhere=True)
        named = ((PATH, self.private.paths), (MODEL, self.private.models), (HOST, self.private.hosts))
        self._then = [
            (kind, _pattern(names, anywhere=kind == PATH)) for kind, names in (*named, (USER, self.private.users))
        ]

    def clean(self, text: str) -> str:
        """The text without what is not ticked."""
        text = self._take(MODEL, self._first, text)
        if PATH not in self.kept:
            text = _ABSOLUTE.sub(self._shorten, text)
        for kind, pattern in (*self._then, (USER, _ADDRESS), (HOST, _IPV4), (HOST, _IPV6)):
            text = self._take(kind, pattern, text)
        return text

    def _take(self, kind: str, pattern: re.Pattern[str] | None, text: str) -> str:
        if pattern is None or kind in self.kept:
            return text
        return pattern.sub(self._count(kind), text)

    def _count(self, kind: str) -> Callable[[re.Match[str]], str]:
        def replace(match: re.Match[str]) -> str:
            self.removed[kind] += 1
            return REPLACEMENTS[kind]

        return replace

    def _shorten(self, match: re.Match[str]) -> str:
        """A file of a package keeps its place in the package, which its owners need."""
        path = match.group()
        if path.startswith(PUBLIC_PATHS):
            return path
        self.removed[PATH] += 1
        inside = _PACKAGE.search(path) or _STDLIB.search(path)
        end = "." if path.endswith(".") else ""  # of a sentence
        return f"{REPLACEMENTS[PATH]}/{inside.group(1)}" if inside else f"{REPLACEMENTS[PATH]}{end}"


def _pattern(names: Collection[str], *, anywhere: bool) -> re.Pattern[str] | None:
    """One expression for all names, longest first, so that nothing is left of the longer of two."""
    wanted = {name for name in names if len(name) >= SHORTEST and name.lower() not in NO_NAMES}
    if not wanted:
        return None
    parts = []
    for name in sorted(wanted, key=lambda name: (-len(name), name)):
        alone = not anywhere and len(name) < DISTINCT
        parts.append(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])" if alone else re.escape(name))
    return re.compile("|".join(parts), re.IGNORECASE)
