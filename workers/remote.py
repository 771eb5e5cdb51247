"""`plumbline validate` on a server: submit, follow, and report as if it had run here."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks.errors import BadRequest
from checks.models.resolve import PREFIX, SHRUNK
from checks.samples.reading import SAMPLE_FILES
from workers.client import FORBIDDEN, SERVER, TOKEN, Client, Progress, Refused, ServerError, refuse_token
from workers.report import ProgressLine, make_console
from workers.report.as_json import to_plain
from workers.report.console import clean_text
from workers.report.numbers import format_seconds
from workers.report.reading import UnknownDocument, read_result
from workers.request import Progress as Shown
from workers.request import ValidationRequest, ValidationResult

POLL_S = 1.0
BYTES_IN_GB = 10**9


class Interrupted(Exception):
    """The person pressed ctrl-C and has been told what became of the validation."""


def validate_remotely(
    request: ValidationRequest, *, keeps_refusal: bool = False
) -> tuple[ValidationResult, dict[str, Any]]:
    """Validate on the server that the environment names; the result, and its document as the server gave it.

    `keeps_refusal`: where it cannot be run there, the server's overview says so.

    Raises:
        BadRequest: no server or token is set, one of them is wrong, or the request cannot be run there.
        ServerError: the server broke, stayed away, or the validation ended without verdicts.
        Interrupted: ctrl-C; the validation has been cancelled.
    """
    with Client(*_read_environment(), say=say) as client:
        client.greet()
        begun = _submit(client, request, keeps_refusal=keeps_refusal)
        say(f"{begun.number} at {client.address}/validations/{begun.number}/")
        return follow_to_end(client, begun)


def follow_to_end(client: Client, begun: Progress) -> tuple[ValidationResult, dict[str, Any]]:
    """Follow a validation; its result, and its document as the server gave it.

    Raises:
        ServerError: the server broke, stayed away, or the validation ended without verdicts.
        Interrupted: ctrl-C; the validation has been cancelled.
    """
    try:
        with ProgressLine(make_console(stderr=True)) as line:
            ended = _follow(client, begun, line)
    except KeyboardInterrupt:
        _cancel(client, begun.number)
        raise Interrupted from None
    except SystemExit:  # SIGTERM, as from a CI server that stops its job
        _cancel(client, begun.number)
        raise
    if ended.state != "done":
        raise ServerError(f"{ended.number} {ended.state}: {ended.error or 'it has no verdicts'}")
    document = client.result(ended.number)
    try:
        return read_result(document), document
    except UnknownDocument as error:
        raise ServerError(f"the result of {ended.number} cannot be read: {error}") from None


def _read_environment() -> tuple[str, str]:
    if not os.environ.get(SERVER, ""):
        found = f"no server is configured ({SERVER} is not set)"
        raise BadRequest("local", found, "add --local to run on this machine")
    return read_server(without_token="make a token under Account there and set it, or add --local")


def read_server(*, without_token: str = "make a token under Account there and set it") -> tuple[str, str]:
    """Address and token of the server that the environment names; raises BadRequest, with this remedy for no token."""
    address, token = os.environ.get(SERVER, ""), os.environ.get(TOKEN, "")
    if not address:
        raise BadRequest(SERVER, "is not set", "set it to the server's address, such as https://plumbline.example.org")
    if not token:
        raise BadRequest(SERVER, f"{address} was given without a token ({TOKEN} is not set)", without_token)
    if not token.isascii() or not token.isprintable():
        raise BadRequest(TOKEN, "holds characters that no token has", "copy the token again")
    return address, token


def _describe(request: ValidationRequest) -> dict[str, Any]:
    """The request as the server reads it; a path here is sent whole, for the server to find under the same name."""
    limit = request.memory_limit_bytes
    return {
        "framework": request.framework,
        "model": name_model(request.model),
        "data": name_data(request.data),
        "checks": None if request.checks is None else list(request.checks),
        "settings": to_plain(request.settings),
        "inject": request.inject,
        "full": request.full,
        "time_limit_s": request.time_limit_s,
        "memory_limit_gb": None if limit is None else limit / BYTES_IN_GB,
    }


def name_model(text: str) -> str:
    """A model as the server finds it."""
    if text.startswith(PREFIX):
        return text
    shrunk = SHRUNK if text.startswith(SHRUNK) else ""
    return f"{shrunk}{Path(text.removeprefix(shrunk)).absolute()}"


def name_data(text: str) -> str:
    """Data as the server finds them."""
    return text if _is_sample(text) else str(Path(text).absolute())


def _submit(client: Client, request: ValidationRequest, *, keeps_refusal: bool) -> Progress:
    asked = _describe(request)
    try:
        # A server of an earlier version knows no such field.
        return client.submit(asked | {"keep_refusal": True} if keeps_refusal else asked)
    except Refused as refused:
        raise as_bad_request(refused) from None
    except KeyboardInterrupt:
        say(f"left before {client.address} answered; whether it was queued stands at {client.address}/validations/")
        raise Interrupted from None


def _is_sample(data: str) -> bool:
    return data.removesuffix(".jsonl") in SAMPLE_FILES


def _follow(client: Client, progress: Progress, line: ProgressLine) -> Progress:
    """Look once a second until it has ended."""
    while not progress.ended:
        line.show(_show(progress))
        time.sleep(POLL_S)
        progress = client.look(progress.number)
    return progress


def _show(progress: Progress) -> Shown:
    remaining = "" if progress.remaining_s is None else f", {format_seconds(progress.remaining_s)} left"
    detail = progress.detail or progress.state
    return Shown(progress.phase, f"{detail}{remaining}", progress.fraction, progress.elapsed_s)


def _cancel(client: Client, number: str) -> None:
    """Cancel on the server and say so; a second ctrl-C leaves at once, and the validation goes on."""
    say(f"cancelling {number} on the server; ctrl-C again leaves at once")
    try:
        ended = client.cancel(number)
    except KeyboardInterrupt:
        say(f"left; {number} may still run at {client.address}")
    except (BadRequest, Refused, ServerError) as error:
        say(f"{number} could not be cancelled: {error}; it may still run at {client.address}")
    else:
        say(f"{number} is {ended.state}")


def as_bad_request(refused: Refused) -> BadRequest:
    """The server's sentences, under the names that the command's options have."""
    fields: Mapping[str, str] = getattr(refused, "fields", {})
    if refused.code == FORBIDDEN:
        return refuse_token(refused)
    if not fields:
        return BadRequest(SERVER, str(refused).rstrip("."), "ask the server's administrator, or change the request")
    (first, sentence), *more = fields.items()
    found, _, remedy = sentence.rstrip(".").rpartition("; ")
    others = "".join(f"; {name}: {each}" for name, each in more)
    return BadRequest(first.removeprefix("settings."), found or remedy, (remedy if found else "change it") + others)


def say(text: str) -> None:
    """Tell the person, on stderr."""
    print(f"plumbline: {clean_text(text)}", file=sys.stderr, flush=True)
