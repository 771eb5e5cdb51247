"""What each subcommand of `plumbline` does. Torch and the checks are imported only where they are needed."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from checks.errors import BadRequest
from checks.faults import FAULTS
from workers.garbage import importing
from workers.report import (
    ProgressLine,
    build_document,
    check_writable,
    make_console,
    print_result,
    render_json,
    render_junit,
    write_whole,
)
from workers.report.as_json import to_plain
from workers.report.numbers import format_number
from workers.request import ValidationRequest, ValidationResult, exit_code
from workers.settings import parse_settings

if TYPE_CHECKING:
    from checks.captures.compare import CaptureComparison, TensorComparison
    from checks.captures.records import Missing
    from workers.launchers.base import Launcher

ROWS_SHOWN = 20
"""Tensors that `plumbline compare` prints; `--json` has them all."""


def run_validation(
    *,
    framework: str,
    model: str,
    data: str,
    checks: tuple[str, ...] | None,
    settings: Sequence[str],
    local: bool,
    json_file: Path | None,
    junit_file: Path | None,
    inject: str | None,
    out: Path | None,
    full: bool,
    time_limit_s: float,
    memory_limit_bytes: int | None,
    environments: Sequence[str] = (),
    command: tuple[str, ...] = (),
    launcher: Launcher | None = None,
) -> int:
    """Check the request, validate here or on the server, print the table, write the files; the verdicts' exit code.

    `environments`: names of those that the frameworks run in, one after another; this Python for none. `command`: the
    argument list of framework command. `launcher`:
    starts the runs, where that is not this machine.
    """
    for field, file in (("json", json_file), ("junit", junit_file)):
        if file is not None:
            check_writable(file, field=field)
    request = ValidationRequest(
        framework=framework,
        model=model,
        data=data,
        checks=checks,
        settings=_add_command(parse_settings(settings, defaults={}), command),
        inject=inject,
        out=out,
        full=full,
        time_limit_s=time_limit_s,
        memory_limit_bytes=memory_limit_bytes,
    )
    if environments:
        if not local:
            raise BadRequest("env", "environments are of one machine", "add --local")
        return _validate_in(environments, request, launcher=launcher, json_file=json_file, junit_file=junit_file)
    if local:
        result = validate_here(request, launcher=launcher)
        text = render_json(result)
    else:
        if out is not None:
            raise BadRequest("out", "captures and logs of a server stay there", "leave it out, or add --local")
        from workers.remote import validate_remotely

        result, document = validate_remotely(request)
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if json_file is not None:
        write_whole(json_file, text)
    if junit_file is not None:
        write_whole(junit_file, render_junit(result))
    print_result(result, console=make_console())
    return exit_code(result.verdicts)


def _add_command(settings: Mapping[str, object], command: tuple[str, ...]) -> dict[str, object]:
    """The settings with a command line that is run where this one was given, unless they name another directory."""
    if not command:
        return dict(settings)
    if "command" in settings:
        raise BadRequest("command", "is given twice", "give it once: after --, or with --set")
    options = settings.get("options", ())
    assert isinstance(options, tuple)
    if not any(option.startswith("directory") for option in options):
        options = (*options, f"directory={Path.cwd()}")
    return {**settings, "command": command, "options": options}


def _validate_in(
    names: Sequence[str],
    request: ValidationRequest,
    *,
    launcher: Launcher | None,
    json_file: Path | None,
    junit_file: Path | None,
) -> int:
    from workers.environments.store import Store
    from workers.environments.using import print_side_by_side, running_in

    if junit_file is not None and len(names) > 1:
        raise BadRequest("junit", "is one validation's", "name one environment, or use --json")
    store, console = Store(), make_console()
    for name in names:
        store.find(name)  # all of them, before the first is run
    results = {}
    for name in names:
        out = request.out / name if request.out is not None and len(names) > 1 else request.out
        with running_in(name, store=store):
            results[name] = result = validate_here(replace(request, out=out), launcher=launcher)
        console.print(Text(name, style="bold"))
        print_result(result, console=console)
    if len(results) > 1:
        print_side_by_side(results, console=console)
    if json_file is not None:
        documents = {name: build_document(result) for name, result in results.items()}
        whole = documents[names[0]] if len(documents) == 1 else {"environments": documents}
        write_whole(json_file, json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    if junit_file is not None:
        write_whole(junit_file, render_junit(results[names[0]]))
    return exit_code([verdict for result in results.values() for verdict in result.verdicts])


def validate_here(request: ValidationRequest, *, launcher: Launcher | None) -> ValidationResult:
    """Validate on this machine, with a progress line."""
    with ProgressLine(make_console(stderr=True)) as line:
        with importing():  # inside the line, because the imports take seconds
            from transformers.utils.logging import disable_progress_bar

            from workers.validate import validate

        disable_progress_bar()  # one progress line is enough
        return validate(request, on_progress=line.show, cancelled=lambda: False, launcher=launcher)


def list_checks() -> int:
    """Print the checks by level, each with its claim; a dot marks those that are judged by default."""
    from checks.registry import DEFAULT_CHECKS, by_level

    console = make_console()
    table = Table.grid(padding=(0, 2, 0, 0))
    for level, checks in by_level().items():
        table.add_row("", Text(level, style="bold"))
        for check in checks:
            table.add_row("●" if check.name in DEFAULT_CHECKS else "", Text(check.name), Text(check.claim))
    console.print(table)
    console.print(Text("● judged by default; --checks all, a level or a name asks for others"))
    return 0


def show_check(name: str) -> int:
    """Print what one check claims, catches and cannot see."""
    from checks.registry import find_checks

    (check,) = find_checks((name,))
    console = make_console()
    console.print(Text(check.name, style="bold"))
    console.print(Text(inspect.cleandoc(check.description)))
    return 0


def document_checks() -> int:
    """Print docs/checks.md."""
    from checks.document import render_checks

    print(render_checks(), end="")
    return 0


def list_faults() -> int:
    """Print each fault, the check that must see it and the public problem it is modelled on."""
    console = make_console(soft_wrap=True)
    for each in FAULTS:
        needs = f" (with {', '.join(each.settings)})" if each.settings else ""
        console.print(Text.assemble((each.slug, "bold"), f"  seen by {each.check}"))
        console.print(Text(f"    {each.summary}{needs}"))
        console.print(Text(f"    as in {each.url}"))
    return 0


def compare(a: Path, b: Path, *, json_file: Path | None) -> int:
    """Print how two captures differ; 0 where all that both hold is equal and neither holds more, else 1."""
    from checks.captures.capture import open_capture
    from checks.captures.compare import compare_captures

    if json_file is not None:
        check_writable(json_file, field="json")
    comparison = compare_captures(open_capture(a), open_capture(b))
    if json_file is not None:
        write_whole(json_file, json.dumps(_describe_comparison(comparison), indent=2, allow_nan=False) + "\n")
    _print_comparison(comparison, make_console())
    return 0 if comparison.equal else 1


def _print_comparison(comparison: CaptureComparison, console: Console) -> None:
    differing = sorted(comparison.differing, key=lambda row: row.relative, reverse=True)
    console.print(Text(f"{len(comparison.rows)} tensors compared, {len(differing)} differ", style="bold"))
    if comparison.first is not None:
        first = _name_row(comparison.first, ranks=comparison.ranks)
        console.print(Text(f"first to differ in the order of the step: {first}"))
    if differing:
        table = Table("tensor", "‖a − b‖ / ‖b‖", "scale", "cosine", pad_edge=False)
        for row in differing[:ROWS_SHOWN]:
            numbers = (format_number(value) for value in (row.relative, row.scale, row.cosine))
            name = _name_row(row, ranks=comparison.ranks)
            table.add_row(Text(name, overflow="fold"), *(Text(number) for number in numbers))
        console.print(table)
    if len(differing) > ROWS_SHOWN:
        console.print(Text(f"and {len(differing) - ROWS_SHOWN} more; --json writes them all"))
    for row in comparison.rows:
        if row.reason is not None:
            console.print(Text(f"not comparable: {_name_row(row, ranks=comparison.ranks)}: {row.reason}"))
    for name, ours, theirs in comparison.settings:
        console.print(Text(f"setting {name}: {ours!r} and {theirs!r}"))
    for side, names in (("first", comparison.only_a), ("second", comparison.only_b)):
        if names:
            console.print(Text(f"only in the {side} capture: {len(names)}, such as {names[0]}"))
    for side, notes in (("first", comparison.missing_a), ("second", comparison.missing_b)):
        if notes:
            console.print(Text(f"missing in the {side} capture: {_name_missing(notes)}"))
    if comparison.exit_codes[0] != comparison.exit_codes[1]:
        console.print(Text("the commands ended with the exit codes {} and {}".format(*comparison.exit_codes)))


def _name_missing(notes: Sequence[Missing]) -> str:
    first = notes[0]
    place = [f"step {first.step}"] if first.step is not None else []
    place += [f"rank {first.rank}"] if first.rank is not None else []
    where = f" ({' of '.join(place)})" if place else ""
    return f"{len(notes)}, such as {first.what}{where}: {first.why}"


def _name_row(row: TensorComparison, *, ranks: int) -> str:
    from checks.captures.compare import name_place

    field = "" if row.field is None else f".{row.field}"
    batch = "" if row.micro_batch is None else f", micro-batch {row.micro_batch}"
    return f"{row.kind} {row.name}{field} ({name_place(row.kind, row.step, row.rank, ranks=ranks)}{batch})"


def _describe_comparison(comparison: CaptureComparison) -> dict[str, Any]:
    rows = [
        to_plain(row)
        | {"relative": to_plain(row.relative), "scale": to_plain(row.scale), "cosine": to_plain(row.cosine)}
        for row in comparison.rows
    ]
    return {
        "schema": "plumbline-comparison",
        "version": 1,
        "equal": comparison.equal,
        "rows": rows,
        "only_a": list(comparison.only_a),
        "only_b": list(comparison.only_b),
        "settings": [{"name": name, "a": to_plain(a), "b": to_plain(b)} for name, a, b in comparison.settings],
        "missing_a": [to_plain(note) for note in comparison.missing_a],
        "missing_b": [to_plain(note) for note in comparison.missing_b],
        "exit_codes": list(comparison.exit_codes),
    }
