"""What one run of a script says: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHOWN, RIGHT = 1, 0
"""exit codes; every other one judges nothing"""


@dataclass(frozen=True)
class Said:
    """`shows`: whether the run shows the fault; None where it says nothing about it. `sentence`: why."""

    shows: bool | None
    sentence: str


def judge_run(
    *, exit_code: int, ending: str, last_error: str | None, output: str, differences: Sequence[str] = ()
) -> Said:
    """Read a run. `differences`: in what its environment is not the report's own, where that matters."""
    if ending in ("timed_out", "out_of_memory", "cancelled"):
        return Said(None, f"the script {ending.replace('_', ' ')} and judged nothing")
    if exit_code == SHOWN and last_error is not None:
        return Said(None, f"the script broke ({last_error}); exit code 1 is for a wrong result alone")
    if exit_code not in (SHOWN, RIGHT):
        last = _last_line(output)
        return Said(
            None, f"the script ended with exit code {exit_code} and judged nothing{f': {last}' if last else ''}"
        )
    missing = [word for word in ("expected", "observed") if word not in output.lower()]
    if missing:
        return Said(None, f"the script does not print what was {' and '.join(missing)}: a reader could not judge it")
    if differences:
        return Said(None, f"the script was run in another environment than the finding's: {', '.join(differences)}")
    if exit_code == SHOWN:
        return Said(True, "the script ran to its end and says that the result is wrong (exit code 1)")
    return Said(False, "the script ran to its end and says that the result is right (exit code 0)")


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
