"""Releases that another environment of the store holds already are linked into a new one, not unpacked again.

A wheel's files are never written to once installed (pip removes before it writes), so that two environments can share
them: with torch alone that saves most of a gigabyte, and the minute that Python takes to compile it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution
from pathlib import Path

from packaging.utils import canonicalize_name

from workers.environments.store import Store, python_of

BIN = "bin"
INFORMATION = ".dist-info"


def link_packages(folder: Path, *, packages: Sequence[str], python: str, store: Store) -> tuple[str, ...]:
    """Link what the store's whole environments hold of `packages` into a bare one; those that are there now.

    `packages`: `name==version`; `python`: the full version, which a donor must share.
    """
    wanted = {package for package in packages if "==" in package and " @ " not in package}
    found: list[str] = []
    for key in store.list_keys():
        donor = store.read(key)
        if donor is None or donor.python != python or not wanted.intersection(donor.packages):
            continue
        source = store.directory(key)
        for information in _site(source).glob(f"*{INFORMATION}"):
            # As wheels name it; reading the metadata of hundreds of distributions takes seconds.
            title, _, version = information.name.removesuffix(INFORMATION).rpartition("-")
            name = f"{canonicalize_name(title)}=={version}"
            if name in wanted and _link(Distribution.at(information), source=source, target=folder):
                wanted.discard(name)
                found.append(name)
    return tuple(sorted(found))


def _site(folder: Path) -> Path:
    """The directory of installed packages of a virtual environment."""
    return next((folder / "lib").glob("python3*")) / "site-packages"


def _link(distribution: Distribution, *, source: Path, target: Path) -> bool:
    """Link all files of a distribution; False where it does not list them, or its environment is being removed."""
    listed = distribution.files
    if not listed:
        return False
    site, root = _site(source), source.resolve()
    try:
        for each in _with_compiled(site, [site / file for file in listed]):
            place = Path(os.path.normpath(each))
            if not place.is_relative_to(source) and not place.is_relative_to(root):
                return False
            _link_file(place, target / place.relative_to(source), source=source, target=target)
    except FileNotFoundError:
        return False
    return True


def _with_compiled(site: Path, files: Iterable[Path]) -> Iterable[Path]:
    """The files, and beside each module what Python has compiled of it since."""
    for file in files:
        yield file
        if file.suffix == ".py":
            yield from (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc")


def _link_file(file: Path, place: Path, *, source: Path, target: Path) -> None:
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if file.parent.name == BIN and file.parent.parent == source:
        # A script names the Python that runs it.
        place.write_bytes(file.read_bytes().replace(os.fsencode(python_of(source)), os.fsencode(python_of(target)), 1))
        shutil.copymode(file, place)
        return
    try:
        os.link(file, place)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links, or with too many of this file
        shutil.copy2(file, place)
