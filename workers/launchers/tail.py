"""Following a file that another machine writes, line by line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

LONGEST_LINE = 1 << 16
"""Bytes; a longer line is handed on in pieces."""


class Tail:
    """Hands on the lines of `file` as they come; what has no end yet waits for it."""

    def __init__(self, file: Path, on_line: Callable[[str], None]) -> None:
        self.file = file
        self._on_line = on_line
        self._read = 0
        self._rest = b""

    def take(self) -> None:
        """Hand on what has come since."""
        try:
            with self.file.open("rb") as opened:
                opened.seek(self._read)
                chunk = opened.read()
        except OSError:  # a shared directory may show it late
            return
        self._read += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._on_line(_decode(line))

    def finish(self) -> None:
        """Hand on the rest, with a last line that has no end."""
        self.take()
        if self._rest:
            self._on_line(_decode(self._rest))
            self._rest = b""


def _decode(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").rstrip("\r")
