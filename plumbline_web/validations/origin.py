"""What the manifest of an uploaded capture says of the process that was recorded: bounded, and without its host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

LONGEST_TEXT = 100
"""Characters of a name or a version; what is longer is none."""

MOST_PACKAGES = 2000
LONGEST_RUN_S = 10 * 365 * 86400.0
HIGHEST_EXIT = 255


@dataclass(frozen=True)
class Origin:
    """Where an uploaded capture comes from, as far as it says so itself; nothing here names a host, path or person."""

    description: str
    """world size, devices, versions of Python and torch"""
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    device: str = "CPU"
    exit_code: int = 0
    """of the recorded command, as a shell gives it; 128 + n for signal n"""
    elapsed_s: float | None = None


def read_origin(manifest: Mapping[str, Any]) -> Origin:
    """Read what a manifest of unknown origin says; what is of another kind than the format's is left out."""
    environment = _mapping(manifest.get("environment"))
    packages = dict(_read_packages(_mapping(environment.get("packages"))))
    python = _text(environment.get("python"))
    gpus = [name for name in map(_text, _list(_mapping(environment.get("hardware")).get("gpus"))) if name]
    device = gpus[0] if gpus else "CPU"
    ranks = manifest.get("world_size")
    count = ranks if isinstance(ranks, int) and not isinstance(ranks, bool) and ranks > 0 else 0
    parts = [f"{count:,} rank{'' if count == 1 else 's'}" if count else "no recorded rank"]
    parts.append(f"{len(gpus)} × {device} in sight" if gpus else device)
    parts += [f"Python {python}"] if python else []
    parts += [f"{name} {packages[name]}" for name in ("torch", "transformers") if name in packages]
    return Origin(
        description=", ".join(parts),
        python=python,
        packages=packages,
        device=device,
        exit_code=_read_exit(manifest.get("exit_code")),
        elapsed_s=_measure(manifest.get("started"), manifest.get("finished")),
    )


def _read_packages(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, version in list(found.items())[:MOST_PACKAGES]:
        if _text(name) and _text(version):
            yield name, version


def _read_exit(value: object) -> int:
    """A negative code is a signal's, as subprocess has it."""
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return min(128 - value if value < 0 else value, HIGHEST_EXIT)


def _measure(started: object, finished: object) -> float | None:
    try:
        seconds = (datetime.fromisoformat(str(finished)) - datetime.fromisoformat(str(started))).total_seconds()
    except (ValueError, TypeError):
        return None
    return seconds if 0 <= seconds <= LONGEST_RUN_S else None


def _text(value: object) -> str:
    fits = isinstance(value, str) and len(value) <= LONGEST_TEXT and value.isprintable()
    return value if fits and isinstance(value, str) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value[:1024] if isinstance(value, list) else []
