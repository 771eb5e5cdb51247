"""`plumbline seed`: made-up rows in bulk, for trying and timing the pages at size."""

from __future__ import annotations

import argparse
import time

from checks.errors import BadRequest
from plumbline_web.starting import start_django
from workers.cli import Subcommands

LARGEST = 1_000


def add_seed(commands: Subcommands) -> None:
    """Add `seed`."""
    parser = commands.add_parser("seed", help="fill an empty database with made-up problems and validations")
    parser.add_argument(
        "--scale",
        type=int,
        default=1,
        metavar="N",
        help="N × 1,000 problems and N × 2,000 validations with their verdicts (default: 1)",
    )
    parser.add_argument("--beside", action="store_true", help="add them although the database holds validations")
    parser.set_defaults(run=run_seed)


def run_seed(options: argparse.Namespace) -> int:
    """Make the rows and say how many. Raises BadRequest, with nothing made."""
    if not 1 <= options.scale <= LARGEST:
        raise BadRequest("scale", f"{options.scale} is out of bounds", f"give 1 to {LARGEST:,}")
    start_django()
    from plumbline_web.seeding.scale import seed_scale
    from plumbline_web.validations.models import Validation

    if Validation.objects.exists() and not options.beside:
        raise BadRequest(
            "scale",
            "the database holds validations, and made-up ones cannot be told from them later",
            "use an empty database, or say --beside",
        )
    begin = time.monotonic()
    made = seed_scale(options.scale)
    print(
        f"{made.problems.problems:,} problems in {made.problems.groups:,} groups, "
        f"{made.validations.validations:,} validations, {made.validations.results:,} verdicts, "
        f"{made.validations.findings:,} findings and {made.occurrences:,} occurrences "
        f"in {time.monotonic() - begin:.1f} s"
    )
    return 0
