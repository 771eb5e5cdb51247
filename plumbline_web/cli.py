"""The `plumbline` command: a server's commands beside those that need none.

Nothing heavy is imported here: `plumbline --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER
from collections.abc import Sequence

from plumbline_web.demo.command import add_demo
from plumbline_web.problems.command import add_catalogue
from plumbline_web.seeding.command import add_seed
from plumbline_web.up.command import add_up
from plumbline_web.up.first_link import add_first_link
from plumbline_web.up.health import add_health
from plumbline_web.up.prepare import add_prepare
from plumbline_web.up.work import add_work
from workers import cli

MANAGE = "manage"

COMMANDS = (add_up, add_demo, add_work, add_health, add_first_link, add_prepare, add_catalogue, add_seed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, as docs/cli.md says."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == [MANAGE]:
        return _manage(given[1:])  # its options are Django's, which this parser would take for its own
    return cli.main(given, more=(*COMMANDS, _add_manage))


def _add_manage(commands: cli.Subcommands) -> None:
    """For `plumbline --help` alone."""
    commands.add_parser(MANAGE, help="Django's commands, such as migrate, dumpdata, shell").add_argument(
        "arguments", nargs=REMAINDER
    )


def _manage(arguments: Sequence[str]) -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "plumbline_web.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line([f"plumbline {MANAGE}", *arguments])
    return 0


if __name__ == "__main__":
    sys.exit(main())
