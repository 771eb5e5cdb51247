"""`plumbline health`: whether a service of this machine does its work, for a container's health check."""

from __future__ import annotations

import argparse
import re
import socket
import sys

from plumbline_web.up.command import parse_port
from workers.cli import Subcommands
from workers.queues import CONTROL

ANSWER_S = 3.0
BEAT = "beat"

UNHEALTHY = 1


class _Unreachable(RuntimeError):
    """What the services answer over is gone; `str()` says so."""


def add_health(commands: Subcommands) -> None:
    """Add `health`."""
    parser = commands.add_parser("health", help="say whether a service of this machine answers: exit code 0 or 1")
    parser.add_argument("service", choices=tuple(_CHECKS))
    parser.add_argument("--port", type=parse_port, default=8000, help="of the dashboard (default: 8000)")
    parser.set_defaults(run=run_health)


def run_health(options: argparse.Namespace) -> int:
    """0 where it does, else 1 and a sentence."""
    try:
        trouble = _CHECKS[options.service](options)
    except _Unreachable as error:
        trouble = str(error)
    if trouble is not None:
        print(f"plumbline health: {options.service}: {trouble}.", file=sys.stderr)
        return UNHEALTHY
    return 0


def _check_web(options: argparse.Namespace) -> str | None:
    from plumbline_web.up.programs import answers

    return None if answers("127.0.0.1", options.port) else f"nothing answers on port {options.port}"


def _check_workers(options: argparse.Namespace) -> str | None:
    here = _host()
    if not _answers(re.escape(f"{CONTROL}@{here}")):
        return "the worker of this machine's own queue does not answer"
    runs = rf"(?!(?:{CONTROL}|{BEAT})@).*@{re.escape(here)}"
    return None if _answers(runs) else "no worker of framework runs answers"


def _check_beat(options: argparse.Namespace) -> str | None:
    return None if _answers(re.escape(f"{BEAT}@{_host()}")) else "it does not answer"


def _host() -> str:
    return socket.gethostname()


def _answers(pattern: str) -> bool:
    """Whether a worker whose name a regular expression matches answers over the broker: the first is waited for."""
    from kombu.exceptions import OperationalError

    from plumbline_web.celery import app

    try:
        return bool(app.control.ping(pattern=f"^{pattern}$", matcher="pcre", timeout=ANSWER_S, limit=1))
    except OperationalError as error:
        raise _Unreachable(f"Redis does not answer ({str(error).rstrip('.')})") from error


_CHECKS = {"web": _check_web, "workers": _check_workers, "beat": _check_beat}
