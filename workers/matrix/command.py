"""`plumbline matrix`: every framework on every model in every precision, one after another, into one directory."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from checks.errors import BadRequest
from checks.spec import Precision
from workers.frameworks import names
from workers.matrix.cells import ORDER, Cell, Outcome, keep_refusal, keep_result, list_cells, read_outcome
from workers.matrix.report import print_matrix, render_markdown
from workers.option_types import split_names
from workers.report import make_console, write_whole
from workers.report.files import make_directory
from workers.request import ValidationRequest
from workers.settings import parse_settings

if TYPE_CHECKING:
    from rich.console import Console

    from workers.cli import Subcommands

FRAMEWORKS = ("transformers", "trl", "ms_swift", "automodel")
PRECISIONS = ("float32", "bf16")
VARIED = {"framework": "frameworks", "model": "models", "precision": "precisions"}
"""What the cells differ in → the option that lists its values."""

FAILED, OPEN = 1, 2
"""exit codes: a cell failed; one is inconclusive, or in error"""


def add_matrix(commands: Subcommands) -> None:
    """Add `matrix`."""
    parser = commands.add_parser("matrix", help="validate many frameworks, models and precisions; one table")
    add = parser.add_argument
    add("--frameworks", type=split_names, default=FRAMEWORKS, metavar="NAMES", help=f"default: {','.join(FRAMEWORKS)}")
    add("--models", type=split_names, metavar="NAMES", help="default: tiny: of every family that ships")
    add("--precisions", type=split_names, default=PRECISIONS, metavar="NAMES", help=f"default: {','.join(PRECISIONS)}")
    add("--data", default="tulu3_sample", help="for all of them (default: tulu3_sample)")
    add("--checks", type=split_names, metavar="NAMES", help="as for validate")
    add("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings", help="for all; repeatable")
    add(
        "--env",
        action="append",
        default=[],
        metavar="FRAMEWORK=NAME",
        help="environment that a framework runs in; repeatable; see `plumbline env`",
    )
    add("--server", action="store_true", help="submit the cells to the server, whose overview then shows them")
    add("--out", type=Path, required=True, metavar="DIR", help="results; what is there already is not run again")
    add(
        "--again", type=split_names, default=(), metavar="STATUS", help="run those cells again: fail,inconclusive,error"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from checks.models import resolve_model
    from checks.models.families import FAMILIES

    _check_names("frameworks", options.frameworks, names())
    _check_names("precisions", options.precisions, get_args(Precision))
    _check_names("again", options.again, ORDER)
    settings = _read_settings(options.settings)
    models = options.models or tuple(f"tiny:{family}" for family in FAMILIES)
    if not options.server:
        for model in models:
            resolve_model(model)  # one that is none is said before anything runs
    make_directory(options.out / "cells", field="out")
    cells = list_cells(options.frameworks, models, options.precisions)
    environments = _read_environments(options.env, options.frameworks)
    if environments and options.server:
        raise BadRequest("env", "environments are of this machine", "leave --server out")
    console, outcomes = make_console(stderr=True), []
    for number, cell in enumerate(cells, start=1):
        file = options.out / "cells" / f"{cell.name}.json"
        outcome = _read_kept(cell, file, console=console)
        if outcome is None or outcome.refused or outcome.status in options.again:
            console.print(
                f"{number} of {len(cells)}: {cell.framework}, {cell.model}, {cell.precision}", highlight=False
            )
            request = ValidationRequest(
                framework=cell.framework,
                model=cell.model,
                data=options.data,
                checks=options.checks,
                settings={**settings, "precision": cell.precision},
            )
            try:
                keep_result(file, _validate(request, environments.get(cell.framework), server=options.server))
            except BadRequest as refused:
                keep_refusal(file, refused)
            outcome = read_outcome(cell, file)
        assert outcome is not None
        outcomes.append(outcome)
        write_whole(options.out / "matrix.md", render_markdown(outcomes))
    print_matrix(outcomes, console=make_console())
    return _choose_exit(outcomes)


def _check_names(field: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Refuse a misspelt name at once: as a cell it would only be one more that is skipped."""
    for name in given:
        if name not in known:
            raise BadRequest(field, f"{name!r} is not known", f"use {', '.join(known)}")


def _read_settings(texts: Sequence[str]) -> Mapping[str, object]:
    """The settings of every cell, none of which the cells differ in."""
    for text in texts:
        name = text.partition("=")[0].strip()
        if name in VARIED:
            raise BadRequest("set", f"{name} is what the cells differ in", f"give --{VARIED[name]}")
    return parse_settings(texts, defaults={})


def _read_kept(cell: Cell, file: Path, *, console: Console) -> Outcome | None:
    """What is kept of a cell; None where nothing is, or, which is said, what is there was cut off."""
    try:
        return read_outcome(cell, file)
    except BadRequest as damaged:
        console.print(f"{damaged.found}; the cell is run anew", markup=False, highlight=False, soft_wrap=True)
        return None


def _read_environments(texts: Sequence[str], frameworks: Sequence[str]) -> Mapping[str, str]:
    found = {}
    for text in texts:
        framework, sign, name = text.partition("=")
        if not sign or not name or framework not in frameworks:
            raise BadRequest("env", f"{text!r} is not FRAMEWORK=NAME of this matrix", "write it as trl=NAME")
        found[framework] = name
    return found


def _validate(request: ValidationRequest, environment: str | None, *, server: bool) -> dict[str, Any]:
    """The result's document.

    Raises:
        BadRequest: the framework cannot do this, or is not installed.
    """
    if server:
        from workers.remote import validate_remotely

        return validate_remotely(request, keeps_refusal=True)[1]
    from workers.commands import validate_here
    from workers.environments.store import Store
    from workers.environments.using import running_in
    from workers.report import build_document

    where = contextlib.nullcontext() if environment is None else running_in(environment, store=Store())
    with where:
        return build_document(validate_here(request, launcher=None))


def _choose_exit(outcomes: Sequence[Outcome]) -> int:
    statuses = {each.status for each in outcomes}
    if "fail" in statuses:
        return FAILED
    return OPEN if statuses & {"error", "inconclusive"} or "pass" not in statuses else 0
