"""`plumbline catalogue load` and `export`: the problems of a database, and the files that they come from and go to."""

from __future__ import annotations

import argparse
from pathlib import Path

from checks.errors import BadRequest
from plumbline_web.starting import start_django
from workers.cli import Subcommands

FILES = ("problems.jsonl", "recurrences.jsonl")


def add_catalogue(commands: Subcommands) -> None:
    """Add `catalogue`."""
    parser = commands.add_parser("catalogue", help="load the known problems into the database, or write them to files")
    actions = parser.add_subparsers(dest="action", required=True)
    load = actions.add_parser("load", help="bring the database to what the catalogue says; a person's changes stay")
    load.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="that export wrote; else what ships")
    load.set_defaults(run=run_load)
    export = actions.add_parser("export", help="write problems.jsonl and recurrences.jsonl")
    export.add_argument("folder", type=Path, metavar="DIR", help="is made where it is not there")
    export.set_defaults(run=run_export)


def run_load(options: argparse.Namespace) -> int:
    """Load, and say what changed. Raises BadRequest, naming file, line and field, with nothing changed."""
    start_django()
    from checks.catalogue.problem import PROBLEMS, RECURRENCES
    from plumbline_web.problems.catalogue import load_catalogue

    problems, recurrences = PROBLEMS, RECURRENCES
    if options.folder is not None:
        problems, recurrences = (options.folder / name for name in FILES)
        for file in (problems, recurrences):
            if not file.is_file():
                raise BadRequest("from", f"{file} is no file", "name a directory that plumbline catalogue export wrote")
    loaded = load_catalogue(problems, recurrences)
    print(
        f"{loaded.created:,} problems are new, {loaded.updated:,} changed, {loaded.unchanged:,} as before; "
        f"{loaded.groups:,} groups of recurrences"
    )
    for each in loaded.kept:
        print(f"kept as it was changed here: {each}")
    return 0


def run_export(options: argparse.Namespace) -> int:
    """Write both files, each in one move, so that a reader never finds a half of one."""
    start_django()
    from plumbline_web.problems.catalogue import write_problems, write_recurrences

    folder: Path = options.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, lines in zip(FILES, (write_problems(), write_recurrences()), strict=True):
            half = folder / f".{name}.half"
            with half.open("w", encoding="utf-8") as file:
                file.writelines(lines)
            half.replace(folder / name)
            print(folder / name)
    except OSError as error:
        raise BadRequest("folder", f"{folder} cannot be written ({error.strerror})", "name another directory") from None
    return 0
