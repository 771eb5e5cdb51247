"""Where environments lie, what each is, and which name means which.

environments/
  built/<key>/             a virtual environment; the key is that of its resolved packages
  built/<key>/environment.json   written last: without it the build was broken off
  built/<key>/used         touched with every use
  names/<name>.json        a key, the path of somebody else's Python, or the image of a container
  <key>.lock, <key>.log    who builds it now, and what pip said
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from checks.errors import BadRequest
from workers.environments.containers import PYTHON
from workers.environments.recipes import LeftOut
from workers.report.files import write_whole

DIRECTORY = "PLUMBLINE_ENVIRONMENTS"
"""Environment variable with the directory of all environments; `plumbline/environments` in the XDG data home else."""

MANIFEST = "environment.json"
USED = "used"
KEY_LENGTH = 12
"""hexadecimal digits of a SHA-256: one collision in 10⁷ environments is as likely as not, and the lists are compared"""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}")


@dataclass(frozen=True)
class Built:
    """What is installed in an environment that was built here."""

    key: str
    requested: tuple[str, ...]
    """as asked for, the framework first"""
    python: str
    """full version"""
    packages: tuple[str, ...]
    """`name==version`, sorted"""
    created: str
    """ISO 8601, UTC"""
    size_bytes: int
    left_out: tuple[LeftOut, ...] = ()
    """what its recipe does without on this machine"""


@dataclass(frozen=True)
class Named:
    """What a name means: an environment that was built here, a Python of someone else's, or an image of a container."""

    name: str
    python: Path
    built: Built | None
    image: str | None = None
    """of a container, whose Python it then is"""


class Store:
    """The directory of all environments."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = default_directory() if path is None else path

    def directory(self, key: str) -> Path:
        return self.path / "built" / key

    def log(self, key: str) -> Path:
        return self.path / f"{key}.log"

    def read(self, key: str) -> Built | None:
        """What was built under a key; None where nothing was, not to its end, or its manifest was damaged."""
        try:
            found = json.loads((self.directory(key) / MANIFEST).read_text(encoding="utf-8"))
            lists = {name: tuple(found[name]) for name in ("requested", "packages")}
            return Built(**{**found, **lists, "left_out": tuple(LeftOut(**each) for each in found.get("left_out", ()))})
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError):
            return None  # to build it again installs nothing that is there, and says anew what it holds

    def complete(self, built: Built) -> None:
        """Say that an environment is whole."""
        write_whole(self.directory(built.key) / MANIFEST, json.dumps(asdict(built), indent=1))

    def name(self, name: str, *, key: str | None = None, python: Path | None = None, image: str | None = None) -> None:
        """Give a name to an environment, to someone else's Python or to an image; what it meant before is forgotten.

        Raises:
            BadRequest: the name cannot be one of a file and an argument.
        """
        check_name(name)
        (self.path / "names").mkdir(parents=True, exist_ok=True)
        meaning = {"key": key} if python is None else {"python": str(python)}
        if image is not None:
            meaning = {"image": image}
        write_whole(self.path / "names" / f"{name}.json", json.dumps(meaning))

    def find(self, name: str) -> Named:
        """What a name means.

        Raises:
            BadRequest: there is no such name, or what it means is gone.
        """
        known = self.list_names()
        if name not in known:
            remedy = f"use one of {', '.join(known)}" if known else "make one with plumbline env create"
            raise BadRequest("environment", f"there is no environment {name!r}", remedy)
        meaning = json.loads((self.path / "names" / f"{name}.json").read_text(encoding="utf-8"))
        if "image" in meaning:
            return Named(name, Path(PYTHON), None, image=meaning["image"])
        if "python" in meaning:
            return Named(name, Path(meaning["python"]), None)
        built = self.read(meaning["key"])
        if built is None:
            raise BadRequest("environment", f"{name} is gone or half built", "run plumbline env create again")
        return Named(name, python_of(self.directory(built.key)), built)

    def find_requested(self, requested: tuple[str, ...]) -> Iterator[tuple[str, Built]]:
        """The names of whole environments that were asked for in these words, and what they are."""
        for name in self.list_names():
            try:
                built = self.find(name).built
            except BadRequest:
                continue  # gone, or half built: another may do, and else it is gone on with
            if built is not None and built.requested == requested:
                yield name, built

    def list_names(self) -> tuple[str, ...]:
        return tuple(sorted(file.stem for file in (self.path / "names").glob("*.json")))

    def list_keys(self) -> tuple[str, ...]:
        """Of whole and half-built environments."""
        return tuple(sorted(folder.name for folder in (self.path / "built").glob("*") if folder.is_dir()))

    def names_of(self, key: str) -> tuple[str, ...]:
        found = []
        for name in self.list_names():
            meaning = json.loads((self.path / "names" / f"{name}.json").read_text(encoding="utf-8"))
            if meaning.get("key") == key:
                found.append(name)
        return tuple(found)

    def touch(self, key: str) -> None:
        """Note that an environment is used now."""
        (self.directory(key) / USED).touch()

    def last_used(self, key: str) -> float:
        """Seconds since 1970."""
        used = self.directory(key) / USED
        return (used if used.exists() else self.directory(key)).stat().st_mtime

    def forget(self, name: str) -> None:
        (self.path / "names" / f"{name}.json").unlink(missing_ok=True)

    def delete(self, key: str) -> int:
        """Remove an environment from the disk, its manifest first; the bytes that are free now."""
        folder = self.directory(key)
        (folder / MANIFEST).unlink(missing_ok=True)
        size = measure(folder)
        shutil.rmtree(folder, ignore_errors=True)
        self.log(key).unlink(missing_ok=True)
        self._lock(key).unlink(missing_ok=True)
        return size

    def _lock(self, key: str) -> Path:
        return self.path / f"{key}.lock"

    @contextlib.contextmanager
    def hold(self, key: str, *, waiting: Callable[[], None]) -> Iterator[None]:
        """One builder at a time; `waiting` is called once where another one is at it. A dead one holds nothing."""
        self.path.mkdir(parents=True, exist_ok=True)
        told = False
        while True:
            with self._lock(key).open("w") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if not told:
                        waiting()
                    told = True
                    fcntl.flock(file, fcntl.LOCK_EX)
                if _is_at(file, self._lock(key)):  # else whoever held it removed the environment, and the lock with it
                    yield
                    return


def default_directory() -> Path:
    """Where environments lie unless PLUMBLINE_ENVIRONMENTS says otherwise."""
    if named := os.environ.get(DIRECTORY):
        return Path(named)
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "plumbline" / "environments"


def make_key(*, python: str, packages: tuple[str, ...], left_out: tuple[LeftOut, ...] = ()) -> str:
    """The key of a resolved list of packages on a Python, and of what was left out of it."""
    text = "\n".join((python, *sorted(packages), *sorted(f"without {each.name}" for each in left_out)))
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def python_of(directory: Path) -> Path:
    """The interpreter of a virtual environment."""
    return directory / "bin" / "python"


def check_name(name: str) -> None:
    """Raise BadRequest for a name that cannot be one of a file and an argument."""
    if not NAME.fullmatch(name):
        found = f"{name!r} is not a name"
        raise BadRequest("name", found, "use letters, digits, dots, dashes, underscores and plus, 80 at most")


def _is_at(file: IO[str], path: Path) -> bool:
    """Whether an open file is still the one of that path."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def measure(folder: Path) -> int:
    """Bytes of all files under a directory; what vanishes meanwhile is not counted."""
    total = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, file)).st_size
    return total
