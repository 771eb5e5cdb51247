"""Exact releases of a lock file in TOML: uv.lock, poetry.lock, pdm.lock and pylock.toml.

The last is standard (https://packaging.python.org/en/latest/specifications/pylock-toml/); all list tables named
`package` or `packages` with a name and a version.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from checks.errors import BadRequest
from workers.audit.files import FIELD
from workers.audit.inventory import Inventory, Pin, Unjudged, collect

_TABLE = re.compile(r"^\[\[(packages?)\]\]\s*(#.*)?$", re.MULTILINE)


def is_lock(text: str) -> bool:
    """Whether a text looks like a lock file in TOML: no requirement begins with two brackets."""
    return _TABLE.search(text) is not None


def read_lock(file: Path, text: str) -> Inventory:
    """The releases that a lock file names.

    Raises:
        BadRequest: not TOML, a package without a name, no release, or two of one package.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadRequest(FIELD, f"{file} is no TOML ({error})", "make the lock file again") from None
    found = list(_read(file, text, document))
    pins = [each for each in found if isinstance(each, Pin)]
    return collect(str(file), pins, (each for each in found if isinstance(each, Unjudged)))


def _read(file: Path, text: str, document: dict[str, Any]) -> Iterator[Pin | Unjudged]:
    begins = [(match[1], text.count("\n", 0, match.start()) + 1) for match in _TABLE.finditer(text)]
    for key in ("package", "packages"):
        lines = [number for name, number in begins if name == key]
        tables = document.get(key, [])
        for index, table in enumerate(tables):
            number = lines[index] if len(lines) == len(tables) else 1  # a table written in another way
            name, version = table.get("name"), table.get("version")
            if not isinstance(name, str):
                raise BadRequest(f"{file}, line {number}", "a package has no name", "make the lock file again")
            if isinstance(version, str):
                yield Pin(canonicalize_name(name), version, file, number)
            else:
                yield Unjudged(name, file, number, "it names no exact version")
