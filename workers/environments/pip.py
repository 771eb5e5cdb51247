"""pip as a subprocess on another environment: its lines shown as they come, its failure in the line that says why."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from checks.errors import BadRequest

_SHOWN = re.compile(
    r"^\s*(Collecting|Downloading|Using cached|Building wheel|Preparing metadata|Installing|Processing)"
)
_REASON = re.compile(r"^\s*(?:ERROR|error): (?P<text>.+)")
_RELEASES = re.compile(r"\(from versions: (?P<all>[^)]*, [^)]*)\)")
NEWEST_SHOWN = 3
"""Of the releases that there are; pip names hundreds."""

_EMPTY_REASONS = ("subprocess-exited-with-error", "metadata-generation-failed", "Failed building wheel")
"""What pip says of a build that failed: the compiler's or setup's own last line above it says more."""

_UNREACHED = re.compile(r"^WARNING: Retrying .*[\]:] (?P<why>[^\]:'\"]+?)\.?(?: \([^)]*\))?[\"']\)?': ")
"""of an index that was not reached: pip warns of it, and then finds no release"""

_MODULE_ERROR = re.compile(r"^\s*(?P<text>\w*(?:Error|Exception): .+|.*: fatal error: .+|.*: error: .+)$")


def run_pip(python: Path, arguments: Sequence[str], *, log: Path, show: Callable[[str], None]) -> None:
    """Run pip for an environment that has none, adding to `log`; ends it with everything it started on the way out.

    Raises:
        BadRequest: it fails; with the line that says why, and the log.
    """
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--no-input"]
    environment = {**os.environ, "PIP_PROGRESS_BAR": "off", "PYTHONUNBUFFERED": "1"}
    lines: list[str] = []
    with log.open("a", encoding="utf-8") as kept:
        process = subprocess.Popen(
            [*command, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                kept.write(line)
                lines.append(line.rstrip())
                if _SHOWN.match(line):
                    show(line.strip())
            code = process.wait()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code:
        raise BadRequest(
            "environment", f"pip ended with exit code {code}: {find_reason(lines)}", "correct what it names"
        )


def _name_newest(found: re.Match[str]) -> str:
    return f"(the newest are {', '.join(found['all'].split(', ')[-NEWEST_SHOWN:])})"


def find_reason(lines: Sequence[str]) -> str:
    """The one line of pip's output that says why it failed."""
    reasons = [found["text"] for line in lines if (found := _REASON.match(line))]
    telling = [text for text in reasons if not text.startswith(_EMPTY_REASONS)]
    if telling:
        unreached = [found["why"] for line in lines if (found := _UNREACHED.match(line))]
        said = f"an index was not reached ({unreached[-1]}): " if unreached else ""
        return said + _RELEASES.sub(_name_newest, telling[0]).rstrip(".")
    raised = [found["text"] for line in lines if (found := _MODULE_ERROR.match(line))]
    return (raised or reasons or [line for line in lines if line] or ["it said nothing"])[-1].strip().rstrip(".")
