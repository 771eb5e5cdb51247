"""`manage.py seed`: many made-up validations, for trying and timing the pages at size."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from plumbline_web.validations.models import Validation
from plumbline_web.validations.seed import seed


class Command(BaseCommand):
    help = "Fill the database with made-up validations, their runs, verdicts, findings and cells."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--validations", type=int, default=1_000, metavar="N", help="how many (default: 1000)")
        parser.add_argument("--days", type=int, default=180, metavar="N", help="over how many days (default: 180)")
        parser.add_argument("--beside", action="store_true", help="add them although the database holds validations")

    def handle(self, *_args: Any, **options: Any) -> None:
        count, days = options["validations"], options["days"]
        if count < 1 or days < 1:
            raise CommandError("--validations and --days: give 1 or more")
        if Validation.objects.exists() and not options["beside"]:
            raise CommandError(
                "the database holds validations, and made-up ones cannot be told from them later; "
                "use an empty database, or say --beside"
            )
        begin = time.monotonic()
        seeded = seed(count, days=days)
        self.stdout.write(
            f"{seeded.validations:,} validations, {seeded.results:,} verdicts, {seeded.findings:,} findings and "
            f"{seeded.cells:,} cells in {time.monotonic() - begin:.1f} s"
        )
