"""A data directory: everything that one installation keeps, held by one `plumbline up` at a time."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from checks.errors import BadRequest

LOCK = "up.lock"
"""Also what tells a data directory from any other."""

LONGEST_SOCKET_PATH = 107
"""Bytes of `sun_path` without its final zero, unix(7); PostgreSQL and Redis refuse a longer one."""

LONGEST_SOCKET_NAME = "postgres/.s.PGSQL.5432.lock"

SECRET_BYTES = 48
"""64 characters in base 64; Django asks for 50."""


@dataclass(frozen=True)
class DataDirectory:
    """An installation's directory while its lock is held."""

    path: Path
    sockets: Path
    """holds `postgres/` and `redis/`; elsewhere where `path` is too long for a socket"""

    @property
    def postgres(self) -> Path:
        return self.path / "postgres"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def data(self) -> Path:
        """artefacts and scratch files"""
        return self.path / "data"

    @property
    def beat(self) -> Path:
        return self.path / "beat"


def default_directory() -> Path:
    """`plumbline` in the XDG data home."""
    home = os.environ.get("XDG_DATA_HOME") or ""
    return (Path(home) if os.path.isabs(home) else Path.home() / ".local" / "share") / "plumbline"


@contextmanager
def hold_directory(path: Path) -> Iterator[DataDirectory]:
    """Make the directory where it is missing, and hold its lock; the kernel frees it however this process ends.

    Raises:
        BadRequest: another `up` holds it, it is something else's directory, or it cannot be written.
    """
    path = Path(os.path.abspath(path))
    try:
        _make_directory(path)
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BadRequest("data", f"{path} cannot be used: {error.strerror}", "name another directory") from error
    try:
        _take(lock, path)
        directory = DataDirectory(path, _make_sockets(path))
        for folder in (directory.logs, directory.data, directory.beat):
            folder.mkdir(mode=0o700, exist_ok=True)
        try:
            yield directory
        finally:
            _remove_sockets(path)
    finally:
        os.close(lock)


def _make_directory(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (path / LOCK).exists() and any(path.iterdir()):
        raise BadRequest("data", f"{path} holds files that are not Plumbline's", "name a new or an empty directory")


def _take(lock: int, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode().strip() or "unknown"
        raise BadRequest(
            "data", f"{path} is in use by process {holder}", "stop that one first, or name another directory"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _make_sockets(path: Path) -> Path:
    _remove_sockets(path)
    sockets = path / "sockets"
    if len(os.fsencode(sockets / LONGEST_SOCKET_NAME)) <= LONGEST_SOCKET_PATH:
        sockets.mkdir(mode=0o700)
        return sockets
    # A new directory of an unforeseeable name: nobody can have put one there beforehand.
    short = Path(tempfile.mkdtemp(prefix="plumbline-"))
    sockets.symlink_to(short)
    return short


def _remove_sockets(path: Path) -> None:
    """Also those of an `up` that was killed, which the link remembers."""
    sockets = path / "sockets"
    target = sockets.resolve()
    if sockets.is_symlink():
        sockets.unlink()
    shutil.rmtree(target, ignore_errors=True)


def read_secret_key(directory: DataDirectory) -> str:
    """The key that signs sessions, made once, readable by its owner alone."""
    file = directory.path / "secret-key"
    if not file.exists():
        handle, draft = tempfile.mkstemp(dir=directory.path)  # mode 600
        with os.fdopen(handle, "w") as stream:
            stream.write(secrets.token_urlsafe(SECRET_BYTES))
        os.replace(draft, file)
    return file.read_text()
