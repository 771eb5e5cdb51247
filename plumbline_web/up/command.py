"""`plumbline up`: the whole installation on one machine, until ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from checks.errors import BadRequest
from workers.cli import BROKEN, Subcommands

if TYPE_CHECKING:
    from plumbline_web.up.stack import Stack

HIGHEST_PORT = 65_535
MOST_WORKERS = 2
"""By default: each holds torch and a model in memory, and a step keeps a core busy."""

LEFT_OVER_S = 20.0
"""For services of a killed `up`; PostgreSQL writes all it has."""

NAME_WIDTH = 10


def add_up(commands: Subcommands) -> None:
    """Add `up`."""
    parser = commands.add_parser("up", help="run the dashboard, its database and its workers on this machine")
    add_stack_options(parser)
    parser.set_defaults(run=run_up)


def add_stack_options(parser: argparse.ArgumentParser) -> None:
    """Options of everything that starts the stack."""
    add = parser.add_argument
    add("--port", type=parse_port, default=8000, help="of the dashboard; 0 for any that is free (default: 8000)")
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all (default: 127.0.0.1)")
    add("--data", type=Path, metavar="DIR", help="everything that is kept (default: plumbline in the XDG data home)")
    add(
        "--root",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        dest="roots",
        help="directory under which checkpoints and data sets may lie; repeatable (default: only what ships)",
    )
    add("--workers", type=parse_count, metavar="N", help="framework runs side by side on the CPU (default: 1 or 2)")


def run_up(options: argparse.Namespace) -> int:
    """Serve until someone asks for the end: 0; 2 where a service fails for good."""
    from plumbline_web.up.supervisor import ServiceFailed, StopAsked

    try:
        with running_stack(options) as stack:
            while True:
                stack.tick()
    except StopAsked:
        return 0
    except ServiceFailed as error:
        say("up", str(error))
        return BROKEN


@contextlib.contextmanager
def running_stack(options: argparse.Namespace) -> Iterator[Stack]:
    """Everything started and ready, the first administrator's link shown; all of it ended on the way out.

    Raises:
        BadRequest: the directory or the port is taken, before anything is started.
        ServiceFailed, StopAsked: as `Stack.tick`.
    """
    from plumbline_web.up.directory import default_directory, hold_directory
    from plumbline_web.up.interrupts import Interrupts
    from plumbline_web.up.processes import end_marked
    from plumbline_web.up.stack import Address, Stack

    allow_roots(options.roots)
    workers = min(MOST_WORKERS, os.cpu_count() or 1) if options.workers is None else options.workers
    with contextlib.ExitStack() as held:
        directory = held.enter_context(hold_directory(options.data or default_directory()))
        # Before the port is tried: a web server of a killed one may hold it.
        ended = end_marked(str(directory.path), grace_s=LEFT_OVER_S)
        if ended:
            say("up", f"{ended} processes were left by one that was killed; they have been ended")
        address = Address(held.enter_context(_bind(options.host, options.port)), options.host)
        say("up", f"process {os.getpid()}, data in {directory.path}")
        stack = Stack(directory, address=address, workers=workers, interrupts=Interrupts(), say=say)
        try:
            stack.start()
            show_address(stack)
            yield stack
        finally:
            stack.stop()


def allow_roots(roots: Sequence[Path]) -> None:
    """Add directories to those of PLUMBLINE_ROOTS.

    Raises:
        BadRequest: one is no directory, or its name holds the separator.
    """
    for root in roots:
        if not root.is_dir():
            raise BadRequest("root", f"{root} is not a directory", "name one that exists")
        if os.pathsep in str(root.resolve()):
            raise BadRequest("root", f"{root.resolve()} holds a {os.pathsep!r}", "name one without it")
    known = [root for root in os.environ.get("PLUMBLINE_ROOTS", "").split(os.pathsep) if root]
    os.environ["PLUMBLINE_ROOTS"] = os.pathsep.join([*known, *(str(root.resolve()) for root in roots)])


def show_address(stack: Stack) -> None:
    """Where to go, and how to get in."""
    say("up", f"serving at {stack.origin}; ctrl-C stops it")
    if stack.first_link is not None:
        say("up", f"sign in, once, as the first administrator: {stack.first_link}")


def _bind(host: str, port: int) -> socket.socket:
    from plumbline_web.up.programs import bind_socket

    try:
        return bind_socket(host, port)
    except socket.gaierror as error:
        raise BadRequest("host", f"{host} is no address: {error.strerror}", "use an address of this machine") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            remedy = "stop what listens there, or choose another with --port"
            raise BadRequest("port", f"{port} on {host} is in use", remedy) from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise BadRequest("host", f"{host} is not an address of this machine", "use one, or 0.0.0.0") from error
        raise BadRequest("port", f"{port} on {host}: {error.strerror}", "choose another with --port") from error


def say(name: str, text: str) -> None:
    """One line about one service."""
    print(f"{name:<{NAME_WIDTH}}{text}", flush=True)


def parse_port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; use a number from 0 to {HIGHEST_PORT}")
    return int(text)


def parse_count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of workers; use 0 or more")
    return int(text)
