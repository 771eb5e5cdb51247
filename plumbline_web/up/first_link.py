"""`plumbline first-link`: the first administrator's way in, where `plumbline up` does not print it."""

from __future__ import annotations

import argparse

from checks.errors import BadRequest
from plumbline_web.starting import start_django
from workers.cli import Subcommands


def add_first_link(commands: Subcommands) -> None:
    """Add `first-link`."""
    parser = commands.add_parser("first-link", help="print a link by which the first administrator signs in, once")
    parser.set_defaults(run=run_first_link)


def run_first_link(options: argparse.Namespace) -> int:
    """Print the address.

    Raises:
        BadRequest: there is an administrator who has signed in.
    """
    start_django()
    from django.conf import settings

    from plumbline_web.up.preparation import make_first_link

    link = make_first_link(settings.ORIGIN)
    if link is None:
        raise BadRequest("first-link", "an administrator has signed in already", "ask them for a link, at /users/")
    print(link)
    return 0
