"""The `plumbline` command: its options, and the exit code of whatever happens."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from checks.errors import BadRequest, CaptureError
from workers import commands
from workers.client import ServerError
from workers.environments.command import add_env
from workers.explain import add_explain
from workers.launchers.queue import SlurmError
from workers.matrix.command import add_matrix
from workers.option_types import parse_positive, split_names
from workers.push.command import add_push
from workers.remote import Interrupted
from workers.reproductions.command import add_reproduce
from workers.request import BAD_REQUEST, DEFAULT_TIME_LIMIT_S

if TYPE_CHECKING:
    from workers.launchers.base import Launcher

BROKEN = 2
"""exit code where Plumbline itself broke, the one of an error verdict"""

INTERRUPTED = 128 + signal.SIGINT

BYTES_IN_GB = 10**9


class _Parser(argparse.ArgumentParser):
    """argparse ends with 2, which here means an inconclusive validation, and prints every option before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_REQUEST, f"{self.prog}: {message}; see {self.prog} --help.\n")


Subcommands: TypeAlias = "argparse._SubParsersAction[_Parser]"
"""What `add_subparsers` returns; `add_parser` adds a command, whose default `run` takes the parsed options."""


def main(arguments: Sequence[str] | None = None, *, more: Sequence[Callable[[Subcommands], None]] = ()) -> int:
    """Run one command and return its exit code; never raises but for SystemExit.

    `more`: adds commands to those that need no server. 3: bad request. 130: interrupted. Else as docs/cli.md says for
    each command.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # an ASCII terminal shows ? for ●
    signal.signal(signal.SIGTERM, _raise_exit)
    try:
        options = build_parser(more).parse_args(arguments)
        code = options.run(options)
        assert isinstance(code, int)
        return code
    except (BadRequest, CaptureError) as error:
        print(f"plumbline: {error}", file=sys.stderr)
        return BAD_REQUEST
    except KeyboardInterrupt as interrupted:
        said = "; ".join(_read_notes(interrupted)) or "what was started has been ended"
        print(f"plumbline: interrupted; {said}.", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as ended:
        for note in _read_notes(ended):
            print(f"plumbline: {note}.", file=sys.stderr)
        raise
    except Interrupted:
        return INTERRUPTED  # on a server: what became of the validation has been said
    except (ServerError, SlurmError) as error:
        for line in (str(error), *_read_notes(error)):
            print(f"plumbline: {line}.", file=sys.stderr)
        return BROKEN
    except BrokenPipeError:
        # The reader has gone, as with `| head`; else Python complains once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception:
        traceback.print_exc()
        print("plumbline: this is a fault of Plumbline; please report it with the lines above.", file=sys.stderr)
        return BROKEN


def _read_notes(raised: BaseException) -> tuple[str, ...]:
    """What the launcher could not end."""
    return tuple(getattr(raised, "__notes__", ()))


def _raise_exit(number: int, frame: FrameType | None) -> NoReturn:
    """Leave through every `finally`, so that a framework's processes end with this one."""
    raise SystemExit(128 + number)


def build_parser(more: Sequence[Callable[[Subcommands], None]] = ()) -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(prog="plumbline", description="Says whether LLM training is correct.")
    parser.add_argument("--version", action="version", version=f"plumbline {version('plumbline')}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_validate(subparsers.add_parser("validate", help="run a framework's step and judge it"))
    _add_checks(subparsers.add_parser("checks", help="list the checks, or show one"))
    _add_compare(subparsers.add_parser("compare", help="compare two captures tensor by tensor"))
    _add_audit(subparsers.add_parser("audit", help="compare installed or pinned releases with known problems"))
    _add_shrink(subparsers.add_parser("shrink", help="make a small model of a config, keeping what can go wrong"))
    add_explain(subparsers)
    add_env(subparsers)
    add_matrix(subparsers)
    add_push(subparsers)
    add_reproduce(subparsers)
    faults = subparsers.add_parser("faults", help="list the faults that --inject takes")
    faults.set_defaults(run=lambda options: commands.list_faults())
    for add in more:
        add(subparsers)
    return parser


def _add_validate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--framework", required=True, help="framework under test: transformers, trl")
    add("--model", required=True, help="checkpoint directory, config.json, shrunk:<config.json>, or tiny:<family>")
    add("--data", required=True, help="JSONL, Parquet or saved data set, or the name of a sample that ships")
    add(
        "--checks",
        type=split_names,
        help="names or levels, comma separated, or all; see `plumbline checks`",
    )
    add("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings", help="run setting; repeatable")
    add("--objective", metavar="O", help="what is trained (default: sft); the same as --set objective=O")
    add("--local", action="store_true", help="run on this machine, without a server")
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="environment of the framework, with --local; several are compared; see `plumbline env`",
    )
    add("--launcher", choices=("slurm",), help="start the framework's runs as jobs of a cluster; needs --out")
    add(
        "--sbatch-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="for sbatch, as --sbatch-option=--partition=gpu; repeatable",
    )
    add("--gpus-per-node", type=int, default=0, metavar="N", help="of the cluster; a process takes one (default: none)")
    add("--json", type=Path, metavar="FILE", help="write the complete result")
    add("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    add("--inject", metavar="FAULT", help="run with a fault, to show that a check sees it; see `plumbline faults`")
    add("--out", type=Path, metavar="DIR", help="keep captures and logs here; not kept by default")
    add("--full", action="store_true", help="record whole tensors instead of sketches")
    add("--time-limit", type=parse_positive, default=DEFAULT_TIME_LIMIT_S, metavar="S", help="of each framework run")
    add("--memory-limit", type=parse_positive, metavar="GB", help="of each framework run's processes together")
    add(
        "command",
        nargs="*",
        metavar="-- COMMAND",
        help="of framework command, with --local: what is run; {model}, {data} and {output} stand for paths",
    )
    parser.set_defaults(run=_validate)


def _validate(options: argparse.Namespace) -> int:
    limit = options.memory_limit
    return commands.run_validation(
        framework=options.framework,
        model=options.model,
        data=options.data,
        checks=options.checks,
        settings=[*options.settings, *([] if options.objective is None else [f"objective={options.objective}"])],
        local=options.local or options.launcher is not None,
        json_file=options.json,
        junit_file=options.junit,
        inject=options.inject,
        out=options.out,
        full=options.full,
        time_limit_s=options.time_limit,
        memory_limit_bytes=None if limit is None else int(limit * BYTES_IN_GB),
        environments=options.env,
        command=_read_command(options),
        launcher=_read_launcher(options),
    )


def _read_command(options: argparse.Namespace) -> tuple[str, ...]:
    if options.command and not (options.local or options.launcher is not None):
        raise BadRequest("command", "a server does not see this machine's files", "add --local, or --set command=…")
    return tuple(options.command)


def _read_launcher(options: argparse.Namespace) -> Launcher | None:
    if options.launcher is None:
        for name in ("sbatch_option", "gpus_per_node"):
            if getattr(options, name):
                raise BadRequest(name.replace("_", "-"), "is for a cluster", "add --launcher slurm")
        return None
    if options.out is None:
        found = "the nodes of a cluster see no temporary directory of this machine"
        raise BadRequest("out", found, "name a directory that they share with it")
    if options.gpus_per_node < 0:
        raise BadRequest("gpus-per-node", f"{options.gpus_per_node} is no number of devices", "give 0 or more")
    from workers.launchers.slurm import read_options

    return read_options(options.sbatch_option, gpus_per_node=options.gpus_per_node)


def _add_checks(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=lambda options: commands.list_checks())
    subparsers = parser.add_subparsers(metavar="ACTION")
    subparsers.add_parser("list", help="list the checks (the default)")
    document = subparsers.add_parser("document", help="print docs/checks.md, all that the checks say of themselves")
    document.set_defaults(run=lambda options: commands.document_checks())
    show = subparsers.add_parser("show", help="what one check claims, catches and cannot see")
    show.add_argument("name", metavar="NAME")
    show.set_defaults(run=lambda options: commands.show_check(options.name))


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("captures", nargs=2, type=Path, metavar="CAPTURE", help="directory with a manifest.json")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every comparison")
    parser.set_defaults(run=lambda options: commands.compare(*options.captures, json_file=options.json))


def _add_audit(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--python", metavar="PATH", help="interpreter or virtual environment; this one by default")
    what.add_argument(
        "--requirements", type=Path, metavar="FILE", help="requirements file, lock file or output of pip freeze"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the complete result")
    parser.add_argument("--sarif", type=Path, metavar="FILE", help="write SARIF 2.1.0")
    parser.set_defaults(run=_audit)


def _audit(options: argparse.Namespace) -> int:
    from workers.audit import run_audit

    return run_audit(
        python=options.python,
        requirements=options.requirements,
        json_file=options.json,
        sarif_file=options.sarif,
    )


def _add_shrink(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="config.json of a model, or its directory")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where the small checkpoint is written")
    parser.set_defaults(run=_shrink)


def _shrink(options: argparse.Namespace) -> int:
    from workers.shrinking import run_shrink

    return run_shrink(options.config, out=options.out)


if __name__ == "__main__":
    sys.exit(main())
