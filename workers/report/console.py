"""The terminal: how it is opened, and what of foreign text may reach it."""

from __future__ import annotations

import re
from typing import NoReturn

from rich.console import Console

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters but tab and line end: in a framework's message they would move the cursor or change colours."""


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """rich would end with code 1, which here means that a check failed."""
        raise BrokenPipeError


def make_console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """A console on stdout, or on stderr; `soft_wrap` leaves line breaks to the terminal."""
    return _Console(stderr=stderr, soft_wrap=soft_wrap)


def clean_text(text: str) -> str:
    """Text with each control character, but tab and line end, replaced by U+FFFD."""
    return _CONTROL.sub("\ufffd", text)
