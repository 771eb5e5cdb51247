"""Where Miles is: it is published as a repository and not as a distribution, so that a checkout is named."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from checks.errors import BadRequest

VARIABLE = "PLUMBLINE_MILES_CHECKOUT"
REPOSITORY = "https://github.com/radixark/miles"
STEP = Path("miles", "backends", "megatron_utils", "model.py")
"""the module of Miles' training step"""


@dataclass(frozen=True)
class Checkout:
    """`commit`: of its HEAD, with "+changed" behind it where files are not as committed."""

    path: Path
    commit: str


def find_checkout() -> Checkout:
    """The checkout that the variable names.

    Raises:
        BadRequest: the variable is unset, or its directory is no checkout of Miles.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        raise BadRequest("framework", f"Miles is run from a checkout, and {VARIABLE} is unset", f"clone {REPOSITORY}")
    path = Path(named).expanduser().resolve()
    if not (path / STEP).is_file():
        raise BadRequest(VARIABLE, f"{path} has no {STEP}, so it is no checkout of Miles", f"clone {REPOSITORY}")
    commit = _ask(path, "rev-parse", "HEAD")
    if commit is None:
        found = f"git does not know the commit of {path}, so that a verdict could not name it"
        raise BadRequest(VARIABLE, found, "name a clone, not an archive")
    changed = _ask(path, "status", "--porcelain", "--untracked-files=no")
    return Checkout(path, f"{commit}+changed" if changed else commit)


def _ask(path: Path, *arguments: str) -> str | None:
    """What git says of a directory, None where it fails or is not there."""
    # A checkout may belong to another user of the machine; it is only read.
    command = ["git", "-c", f"safe.directory={path}", "-C", str(path), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
