"""`plumbline demo`: the whole stack, two validations through it, and the pages to look at them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from argparse import BooleanOptionalAction
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from plumbline_web.up.command import add_stack_options, running_stack, say, show_address
from workers.cli import BROKEN, INTERRUPTED, Subcommands

if TYPE_CHECKING:
    from plumbline_web.up.stack import Stack

EXAMPLES = (
    ("transformers", "tiny:qwen3", "gsm8k_sample"),
    ("trl", "tiny:qwen3", "tulu3_sample"),
)
"""Framework, model and data of each; all of it ships."""

TOKEN_DAYS = 1


def add_demo(commands: Subcommands) -> None:
    """Add `demo`."""
    parser = commands.add_parser("demo", help="run the dashboard with two validations to look at")
    add_stack_options(parser)
    parser.add_argument(
        "--serve", action=BooleanOptionalAction, default=True, help="go on serving; else end with their exit code"
    )
    parser.set_defaults(run=run_demo)


def run_demo(options: argparse.Namespace) -> int:
    """Validate, print both tables, then serve until ctrl-C: 0; without serving, the verdicts' exit code.

    That code is the last one that is not 0, as the client gave it. 130: interrupted before the verdicts were there.
    """
    from plumbline_web.up.supervisor import ServiceFailed, StopAsked

    judged = False
    try:
        with running_stack(options) as stack:
            code = _validate_examples(stack)
            judged = True
            if not options.serve:
                return code
            show_address(stack)
            while True:
                stack.tick()
    except StopAsked:
        return 0 if judged else INTERRUPTED
    except ServiceFailed as error:
        say("demo", str(error))
        return BROKEN


def _validate_examples(stack: Stack) -> int:
    code = 0
    with _borrowed_token() as secret:
        for framework, model, data in EXAMPLES:
            print(flush=True)
            code = _run_client(stack, secret, "--framework", framework, "--model", model, "--data", data) or code
    print(flush=True)
    return code


def _run_client(stack: Stack, secret: str, *arguments: str) -> int:
    """`plumbline validate` against this server, as anyone would call it; the token is in no command line."""
    client = subprocess.Popen(
        [sys.executable, "-m", "plumbline_web.cli", "validate", *arguments],
        env={**os.environ, "PLUMBLINE_URL": stack.origin, "PLUMBLINE_TOKEN": secret},
        start_new_session=True,  # ctrl-C reaches this process, which ends it
    )
    try:
        while client.poll() is None:
            stack.tick()
    finally:
        client.terminate()
        client.wait()
    return client.returncode


@contextmanager
def _borrowed_token() -> Iterator[str]:
    """A token of the first administrator, revoked on the way out."""
    from django.db import connections

    from plumbline_web.accounts.domain import create_token, revoke_token
    from plumbline_web.accounts.enums import Role, Scope
    from plumbline_web.accounts.models import User

    owner = User.objects.filter(role=Role.ADMINISTRATOR, is_active=True).earliest("pk")
    token, secret = create_token(owner, name="demo", scopes=[Scope.READ, Scope.SUBMIT], days=TOKEN_DAYS)
    try:
        yield secret
    finally:
        revoke_token(token, by=owner)
        connections.close_all()
