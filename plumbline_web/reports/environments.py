"""The Pythons that a script can be run in: the framework's own on this installation, and named environments."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from checks.errors import BadRequest
from plumbline_web.catalog.installed import ASK, PACKAGES, interpreter_of
from workers.environments.store import Store
from workers.frameworks.interpreter import framework_python

OWN = ""
"""Name of the framework's own environment."""

UNCOUNTED = frozenset({"plumbline-capture"})
"""Packages that a script does not use: an environment may lack them, or have others."""

ASK_LIMIT_S = 60.0

ALSO_ASKED = ("torch", "ray", "deepspeed", "bitsandbytes", "liger-kernel", "flash-attn", "transformer-engine")
"""Releases that a report tells beside those that decide an environment."""


@dataclass(frozen=True)
class Choice:
    """An environment as a form offers it."""

    name: str
    title: str
    packages: Mapping[str, str]
    python: str = ""


@dataclass(frozen=True)
class Installed:
    """What a Python has."""

    path: str
    python: str
    packages: Mapping[str, str]


def list_choices(framework: str) -> tuple[Choice, ...]:
    """The framework's own environment first, then those that have a name and are whole."""
    own = interpreter_of(framework)
    choices = [Choice(OWN, f"{framework}'s own: {_title(own.packages)}", own.packages, own.python)]
    store = Store()
    for name in store.list_names():
        try:
            built = store.find(name).built
        except BadRequest:
            continue  # gone, or half built
        if built is None:
            choices.append(Choice(name, f"{name} (a Python of someone else's)", {}))
            continue
        packages = dict(each.split("==", 1) for each in built.packages if "==" in each)
        choices.append(Choice(name, name, packages, built.python))
    return tuple(choices)


def find_python(framework: str, name: str) -> str:
    """The interpreter of an environment.

    Raises:
        BadRequest: it is not here.
    """
    return framework_python(framework) if name == OWN else str(Store().find(name).python)


def ask_installed(path: str, *, package: str = "") -> Installed:
    """What a Python has of the packages that matter; it is asked, for an environment may have been changed.

    Raises:
        BadRequest: it does not run.
    """
    names = sorted({*PACKAGES, *ALSO_ASKED, *([package] if package else ())})
    try:
        done = subprocess.run(
            [path, "-I", "-c", ASK, *names], capture_output=True, text=True, check=True, timeout=ASK_LIMIT_S
        )
        python, packages = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise BadRequest("environment", f"its Python does not run ({error})", "run plumbline env check") from error
    return Installed(path, python, packages)


def list_differences(
    *, python: str, packages: Mapping[str, str], wanted_python: str, wanted: Mapping[str, str]
) -> tuple[str, ...]:
    """In what an environment is not the one that is asked for; `wanted`: the packages that must be the same."""
    found = []
    if python != wanted_python:
        found.append(f"python {python} instead of {wanted_python}")
    for name in sorted(set(wanted) - UNCOUNTED):
        if packages.get(name) != wanted[name]:
            found.append(f"{name} {packages.get(name, 'missing')} instead of {wanted[name]}")
    return tuple(found)


def is_newer(release: str, than: str) -> bool:
    """Whether a release is later than another; False where either cannot be read."""
    try:
        return Version(release) > Version(than)
    except InvalidVersion:
        return False


def exists(name: str) -> bool:
    return name == OWN or (Store().path / "names" / f"{Path(name).name}.json").is_file()


def _title(packages: Mapping[str, str]) -> str:
    shown = [
        f"{name} {packages[name]}" for name in ("transformers", "trl", "megatron-core", "torch") if name in packages
    ]
    return ", ".join(shown) or "nothing of the frameworks"
