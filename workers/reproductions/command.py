"""`plumbline reproduce`: one problem of the catalogue, or all that have a case, in the releases that they are of."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from checks.errors import BadRequest
from checks.suggesting import nearest
from workers.garbage import importing
from workers.option_types import parse_positive
from workers.report import ProgressLine, check_writable, make_console, write_whole
from workers.report.files import make_directory
from workers.request import DEFAULT_TIME_LIMIT_S

if TYPE_CHECKING:
    from workers.cli import Subcommands
    from workers.reproductions.case import Case
    from workers.reproductions.outcome import Reproduction

REPRODUCED, NOT_REPRODUCED = 0, 1
"""exit codes; a slug that is not known is a bad request"""


def add_reproduce(commands: Subcommands) -> None:
    """Add `reproduce`."""
    parser = commands.add_parser(
        "reproduce", help="show known problems again: in the release that has one, and in the one that mended it"
    )
    add = parser.add_argument
    add("slugs", nargs="*", metavar="SLUG", help="problems of the catalogue; see --list")
    add("--all", action="store_true", help="every problem that has a case; what is kept already is not run again")
    add("--list", action="store_true", help="which problems can be shown again, which cannot and why")
    add("--again", action="store_true", help="with --all: run again what is kept already")
    add("--out", type=Path, metavar="DIR", help="where results are kept (default: plumbline/reproductions in XDG data)")
    add("--keep", type=Path, metavar="DIR", help="directory that keeps captures and logs of the runs too")
    add("--json", type=Path, metavar="FILE", help="write what was found as JSON")
    add("--write", type=Path, action="append", default=[], metavar="FILE", help="all that is kept: .md, .json")
    add("--time-limit", type=parse_positive, default=DEFAULT_TIME_LIMIT_S, metavar="S", help="of each framework run")
    add("--index-url", metavar="URL", help="where releases come from, as pip has it")
    add("--extra-index-url", action="append", default=[], metavar="URL", help="such as PyTorch's index of CPU builds")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from workers.reproductions.case import load_cases, load_reasons
    from workers.reproductions.report import print_list

    cases, reasons = load_cases(), load_reasons()
    if options.list:
        print_list(cases, reasons, console=make_console())
        return REPRODUCED
    _check_files(options)
    if options.all and options.slugs:
        raise BadRequest("slug", f"{options.slugs[0]} and --all were given", "leave one out")
    if not (options.all or options.slugs or options.write):
        raise BadRequest("slug", "none is named", "name one of `plumbline reproduce --list`, or give --all")
    chosen = list(cases.values()) if options.all else [find_case(slug, cases, reasons) for slug in options.slugs]
    out = default_directory() if options.out is None else options.out
    if chosen or options.out is not None:
        make_directory(out, field="out")
    if options.keep is not None:
        make_directory(options.keep, field="keep")
    found = [kept for case in chosen if (kept := _show(case, options, out)) is not None]
    _write_files(options, found, cases=cases, reasons=reasons, out=out)
    return REPRODUCED if len(found) == len(chosen) and all(each.reproduced for each in found) else NOT_REPRODUCED


def _check_files(options: argparse.Namespace) -> None:
    for field, files in (("write", options.write), ("json", [options.json] if options.json else [])):
        for file in files:
            check_writable(file, field=field)
            if file.suffix not in (".md", ".json")[field == "json" :]:
                raise BadRequest(field, f"{file} has another ending", "end it with .md or .json")


def find_case(slug: str, cases: Mapping[str, Case], reasons: Mapping[str, str]) -> Case:
    """The case of a problem.

    Raises:
        BadRequest: it has none, for the stated reason; or there is no such problem, with the nearest ones.
    """
    from checks.catalogue import load_problems

    if slug in cases:
        return cases[slug]
    if slug in reasons:
        raise BadRequest("slug", f"{slug} cannot be shown again: {reasons[slug]}", "see `plumbline reproduce --list`")
    known = [problem.slug for problem in load_problems()]
    if slug in known:
        found = f"{slug} has no case: no release is known to show it on a processor alone"
        raise BadRequest("slug", found, "name one of `plumbline reproduce --list`")
    near = nearest(slug, cases)
    remedy = f"did you mean {' or '.join(near)}" if near else "name one of `plumbline reproduce --list`"
    raise BadRequest("slug", f"there is no problem {slug!r}", remedy)


def _show(case: Case, options: argparse.Namespace, out: Path) -> Reproduction | None:
    """What is kept of a problem, or what a run of now says; None where it could not be run among all."""
    from workers.reproductions.outcome import keep, read_kept
    from workers.reproductions.report import print_reproduction

    kept = read_kept(out, case.slug, digest=case.digest) if options.all and not options.again else None
    if kept is None:
        errors = make_console(stderr=True)
        errors.print(case.slug, highlight=False)
        try:
            kept = _reproduce(case, options)
        except BadRequest as refused:
            if not options.all:
                raise
            errors.print(f"{case.slug}: {refused}", markup=False, highlight=False)
            return None
        keep(out, kept)
    print_reproduction(kept, console=make_console())
    return kept


def _reproduce(case: Case, options: argparse.Namespace) -> Reproduction:
    index = [] if options.index_url is None else ["--index-url", options.index_url]
    for url in options.extra_index_url:
        index += ["--extra-index-url", url]
    with ProgressLine(make_console(stderr=True)) as line:
        with importing():
            from transformers.utils.logging import disable_progress_bar

            from workers.environments.store import Store
            from workers.reproductions.running import reproduce

        disable_progress_bar()
        return reproduce(
            case,
            store=Store(),
            index=index,
            out=None if options.keep is None else options.keep / case.slug,
            on_progress=line.show,
            time_limit_s=options.time_limit,
        )


def _write_files(
    options: argparse.Namespace,
    found: Sequence[Reproduction],
    *,
    cases: Mapping[str, Case],
    reasons: Mapping[str, str],
    out: Path,
) -> None:
    from workers.reproductions.outcome import as_document, read_kept
    from workers.reproductions.report import render_all, render_markdown

    if options.json is not None:
        documents = [as_document(each) for each in found]
        whole = documents[0] if len(options.slugs) == 1 else {"reproductions": documents}
        write_whole(options.json, json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    if not options.write:
        return
    kept = [read_kept(out, slug, digest=case.digest) for slug, case in cases.items()]
    whole_list = [each for each in kept if each is not None]
    for file in options.write:
        render = render_markdown if file.suffix == ".md" else render_all
        write_whole(file, render(whole_list, cases=cases, reasons=reasons))


def default_directory() -> Path:
    """Where results are kept unless --out says otherwise."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "plumbline" / "reproductions"
