"""`plumbline prepare`: bring a database to this version, where `plumbline up` does not do it."""

from __future__ import annotations

import argparse

from workers.cli import Subcommands


def add_prepare(commands: Subcommands) -> None:
    """Add `prepare`."""
    parser = commands.add_parser("prepare", help="bring the database to this version: its tables, its known problems")
    parser.set_defaults(run=run_prepare)


def run_prepare(options: argparse.Namespace) -> int:
    """Migrate, then load the catalogue. Raises BadRequest where the database does not answer."""
    from plumbline_web.up.preparation import load_problems, migrate

    print(f"migrate: {migrate()} migrations applied")
    print(f"catalogue: {load_problems()}")
    return 0
