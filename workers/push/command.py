"""`plumbline push`: a capture that was recorded elsewhere, sent to a server and judged there."""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.errors import BadRequest
from workers.client import TOKEN, Client, Refused
from workers.environments.building import format_size
from workers.option_types import split_names
from workers.push.directory import CaptureDirectory, LocalFile, hash_files, read_directory
from workers.push.naming import check_checks, check_framework, check_model
from workers.push.sending import Sent, send_files
from workers.remote import Interrupted, as_bad_request, follow_to_end, name_data, name_model, read_server, say
from workers.report import ProgressLine, make_console, print_result
from workers.report.as_json import to_plain
from workers.report.files import check_writable, write_whole
from workers.request import Progress, exit_code
from workers.settings import parse_settings

if TYPE_CHECKING:
    from workers.cli import Subcommands

SCOPES = ("read", "upload", "submit")


def add_push(commands: Subcommands) -> None:
    """Add `push`."""
    parser = commands.add_parser("push", help="send a capture that was recorded elsewhere to a server, to be judged")
    add = parser.add_argument
    add("directory", type=Path, metavar="DIR", help="what `plumbline-capture run --out DIR` wrote")
    add("--framework", help="what trained: transformers, trl, or the name of any other")
    add("--model", help="tiny:<family>, or a path on the server; the checkpoint that the run began from")
    add("--data", help="name of a sample that ships, or a path on the server; what the run trained on")
    add("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings", help="run setting; repeatable")
    add("--checks", type=split_names, metavar="A,B", help="names or levels, comma separated, or all")
    add("--again", action="store_true", help="judge anew what the same command had judged before")
    add("--wait", action="store_true", help="follow it to its end, print the verdicts, and exit with their code")
    add("--json", type=Path, metavar="FILE", help="write the complete result, with --wait")
    parser.set_defaults(run=run_push)


def run_push(options: argparse.Namespace) -> int:
    """Send, submit, and say where it stands; 0, or with `--wait` the verdicts' exit code."""
    if options.json is not None:
        if not options.wait:
            raise BadRequest("json", "there is a result only once it is judged", "add --wait")
        check_writable(options.json, field="json")
    server = read_server()
    directory = read_directory(options.directory)
    asked = _describe(options, directory)
    if directory.left_out:
        shown = ", ".join(directory.left_out[:5]) + (" …" if len(directory.left_out) > 5 else "")
        say(f"not sent, for no capture has it: {shown}")
    with Client(*server, say=say) as client:
        client.greet()
        _check_scopes(client)
        capture, files = _send(client, directory)
        say(f"capture {capture} of {client.address} holds all of {options.directory}")
        key = str(uuid.uuid4()) if options.again else _make_key(asked, files)
        try:
            begun = client.submit({**asked, "capture": capture}, key=key)
        except Refused as refused:
            raise as_bad_request(refused) from None
        say(f"{begun.number} at {client.address}/validations/{begun.number}/")
        if not options.wait:
            return 0
        result, document = follow_to_end(client, begun)
    if options.json is not None:
        write_whole(options.json, json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    print_result(result, console=make_console())
    return exit_code(result.verdicts)


def _describe(options: argparse.Namespace, directory: CaptureDirectory) -> dict[str, Any]:
    """What the run was, as the options say, else as the manifest does."""
    stated = directory.manifest.get("run_spec")
    spec: Mapping[str, Any] = stated if isinstance(stated, dict) else {}
    named = {name: getattr(options, name) or spec.get(name) for name in ("framework", "model", "data")}
    missing = [name for name, value in named.items() if not isinstance(value, str) or not value]
    if missing:
        found = f"{directory.path} does not say what was run"
        raise BadRequest(missing[0], found, "give " + ", ".join(f"--{name}" for name in missing))
    given = parse_settings(options.settings, defaults={})
    recorded = spec.get("settings")
    settings = {**(recorded if isinstance(recorded, dict) else {}), **given}
    check_framework(str(named["framework"]))
    check_model(str(named["model"]))
    check_checks(options.checks)
    return {
        "framework": named["framework"],
        "model": name_model(str(named["model"])),
        "data": name_data(str(named["data"])),
        "settings": to_plain(settings),
        "checks": None if options.checks is None else list(options.checks),
    }


def _check_scopes(client: Client) -> None:
    scopes = client.scopes()
    lacking = [] if scopes is None else [scope for scope in SCOPES if scope not in scopes]
    if lacking:
        found = f"the token has not the scope{'' if len(lacking) == 1 else 's'} {' and '.join(lacking)}"
        raise BadRequest(TOKEN, found, f"make one with {', '.join(SCOPES)} under Account")


def _send(client: Client, directory: CaptureDirectory) -> tuple[int, tuple[LocalFile, ...]]:
    total = sum(file.stat().st_size for file in directory.files)
    try:
        with ProgressLine(make_console(stderr=True)) as line:
            meter = _Meter(line.show, total)
            files = hash_files(directory, on_bytes=meter.hash)
            return send_files(client, files, on_sent=meter.send), files
    except KeyboardInterrupt:
        say("left; the same command goes on where this one was")
        raise Interrupted from None


@dataclass
class _Meter:
    """Says how far the hashing, then the sending is."""

    show: Callable[[Progress], None]
    total: int
    hashed: int = 0
    started: float = 0.0

    def __post_init__(self) -> None:
        self.started = time.monotonic()

    def hash(self, name: str, count: int) -> None:
        self.hashed += count
        self._show("reading", name, self.hashed, self.total)

    def send(self, sent: Sent) -> None:
        self._show("sending", sent.name, sent.done, sent.total)

    def _show(self, phase: str, name: str, done: int, total: int) -> None:
        detail = f"{format_size(done)} of {format_size(total)}, {name}"
        self.show(Progress(phase, detail, done / total if total else 1.0, time.monotonic() - self.started))


def _make_key(asked: Mapping[str, Any], files: Sequence[LocalFile]) -> str:
    """The same command on the same files finds the validation that it made before."""
    content = json.dumps([asked, [file.announce() for file in files]], sort_keys=True)
    return f"push-{hashlib.sha256(content.encode()).hexdigest()[:40]}"
