"""The `plumbline-capture` command."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from plumbline_capture import __version__
from plumbline_capture.launcher import run
from plumbline_capture.name_map import read_name_map
from plumbline_capture.probe_file import read_probes
from plumbline_capture.settings import Settings

BAD_REQUEST = 3
"""exit code for a request that cannot be run"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(BAD_REQUEST, f"{self.prog}: {message}\n{self.format_usage()}")


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command line and return the exit code: the command's own, or 3 for a request that cannot be run."""
    given = sys.argv[1:] if arguments is None else arguments
    split = given.index("--") if "--" in given else len(given)
    command = given[split + 1 :]
    parser = _build_parser()
    options = parser.parse_args(given[:split])
    if not command:
        parser.error("CMD: none given after --; write the command to record there.")
    try:
        settings = _settings(options)
    except ValueError as error:
        parser.exit(BAD_REQUEST, f"{parser.prog}: {error}\n")
    return run(settings, command)


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="plumbline-capture",
        description="Record the training step of any torch framework, without edits to it.",
        usage="%(prog)s run --out DIR [options] -- CMD...",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("action", choices=["run"], help="run the command after -- and record it")
    parser.add_argument("--out", required=True, help="directory of the capture: new, or empty")
    parser.add_argument(
        "--steps", default="1,3", help="optimizer steps to record, counted from 1 (default: %(default)s)"
    )
    parser.add_argument("--full", action="store_true", help="keep gradients, parameters and states whole")
    parser.add_argument("--modules", metavar="REGEX", help="keep inputs, outputs and output gradients of these modules")
    parser.add_argument("--full-parameters", metavar="REGEX", help="keep these parameters whole")
    parser.add_argument("--names", metavar="FILE", help="JSON file of what each parameter is called in the checkpoint")
    parser.add_argument(
        "--hooks",
        metavar="FILE",
        action="append",
        default=[],
        help="Python file whose install(recorder) hooks a framework that the recorder does not know by itself",
    )
    parser.add_argument(
        "--preload", metavar="FILE", action="append", default=[], help="Python file whose install() runs after torch"
    )
    parser.add_argument("--probes", metavar="FILE", help="JSON file of batches to ask the model about beforehand")
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        action="append",
        default=[],
        help="directory of a checkpoint that the command saves, read when it has ended",
    )
    parser.add_argument(
        "--export",
        metavar="DIR",
        help="directory of the model that the command exports in the end, asked the probes when it has ended",
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="count what is alive in each phase of every step up to the last one; records no tensors but the batch",
    )
    parser.add_argument(
        "--run-spec", metavar="FILE", help="JSON file of framework, model, data and settings, kept in the manifest"
    )
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    """Return the settings; raises ValueError, one sentence, for what cannot be done."""
    out = Path(os.path.abspath(options.out))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"--out: {options.out} exists and is not an empty directory; name a new one.")
    for field in ("modules", "full_parameters"):
        pattern = getattr(options, field)
        if pattern is not None:
            _check_pattern(f"--{field.replace('_', '-')}", pattern)
    for path in options.preload:
        if not os.path.isfile(path):
            raise ValueError(f"--preload: {path} is not a file; give a Python file that defines install().")
    for path in options.hooks:
        if not os.path.isfile(path):
            raise ValueError(f"--hooks: {path} is not a file; give a Python file that defines install(recorder).")
    if options.names is not None:
        try:
            read_name_map(Path(options.names), rank=0)
        except ValueError as error:
            raise ValueError(f"--names: {error}; write it as docs/capture-format.md says.") from error
    if options.probes is not None:
        read_probes(options.probes)
    elif options.export is not None:
        raise ValueError("--export: there is nothing to ask the exported model; give --probes too.")
    if options.memory and (options.full or options.modules is not None or options.probes is not None):
        raise ValueError("--memory: what else is recorded takes memory; give it without --full, --modules, --probes.")
    return Settings(
        out=str(out),
        steps=_steps(options.steps),
        full=options.full,
        modules=options.modules,
        full_parameters=options.full_parameters,
        names=None if options.names is None else os.path.abspath(options.names),
        hooks=tuple(os.path.abspath(path) for path in options.hooks),
        preload=tuple(os.path.abspath(path) for path in options.preload),
        probes=None if options.probes is None else os.path.abspath(options.probes),
        checkpoints=tuple(os.path.abspath(path) for path in options.checkpoint),
        export=None if options.export is None else os.path.abspath(options.export),
        memory=options.memory,
        run_spec=None if options.run_spec is None else _read_run_spec(options.run_spec),
    )


def _read_run_spec(path: str) -> Dict[str, Any]:
    """Return what the file says the run is; raises ValueError for anything else than three texts and settings."""
    remedy = 'write {"framework": "…", "model": "…", "data": "…", "settings": {"batch": 2}}, any of them'
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--run-spec: {path} cannot be read ({error}); {remedy}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"--run-spec: {path} holds no JSON object; {remedy}.")
    for name, value in found.items():
        if name not in ("framework", "model", "data", "settings"):
            raise ValueError(f"--run-spec: {path} has the unknown field {name!r}; {remedy}.")
        if not isinstance(value, dict if name == "settings" else str):
            raise ValueError(f"--run-spec: {name} of {path} is of the wrong kind; {remedy}.")
    return found


def _check_pattern(option: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{option}: {pattern!r} is no regular expression ({error}); correct it.") from error


def _steps(text: str) -> Tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"--steps: {text!r} is no list of step numbers from 1 on; write for example 1,3.")
    return tuple(sorted({int(part) for part in parts}))
