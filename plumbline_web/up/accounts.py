"""The system account that PostgreSQL runs as where Plumbline runs as root: PostgreSQL refuses to run as root."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from checks.errors import BadRequest

ACCOUNT = "plumbline"
"""Made where it is missing: one of the system's own, such as `postgres`, could signal and read another server's."""


@dataclass(frozen=True)
class Account:
    """Who a service runs as."""

    name: str
    uid: int
    gid: int


def find_database_account() -> Account | None:
    """The account that PostgreSQL must run as; None where this process may run it itself.

    Raises:
        BadRequest: this is root, and there is neither the account nor a way to make it.
    """
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(ACCOUNT)
    except KeyError:
        entry = _make_account()
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _make_account() -> pwd.struct_passwd:
    useradd = shutil.which("useradd", path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")
    remedy = f"run as another user, make a system account {ACCOUNT}, or name a server in DATABASE_URL"
    if useradd is None:
        raise BadRequest("user", "PostgreSQL does not run as root, and there is no useradd to make an account", remedy)
    made = subprocess.run(
        [useradd, "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", ACCOUNT],
        capture_output=True,
        text=True,
    )
    try:
        return pwd.getpwnam(ACCOUNT)
    except KeyError:
        raise BadRequest("user", f"useradd failed: {made.stderr.strip()}", remedy) from None


def open_path(path: Path) -> tuple[Path, ...]:
    """Let every account pass through the directories above `path`; those that had to be changed.

    Passing through is the execute bit alone: what they hold can be opened by its name, not listed.
    """
    closed = tuple(directory for directory in path.parents if not directory.stat().st_mode & stat.S_IXOTH)
    for directory in closed:
        directory.chmod(directory.stat().st_mode | stat.S_IXOTH)
    return closed


def list_unreadable(folder: Path) -> Iterator[Path]:
    """What other accounts could not read or enter in a folder of programs, as after an installation with umask 077."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            continue
        wanted = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0)
        if path.stat().st_mode & wanted != wanted:
            yield path
