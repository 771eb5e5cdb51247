"""The packages of this interpreter, or of another one that is asked for them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from checks.errors import BadRequest
from workers.audit.inventory import Inventory

FIELD = "python"

TIME_LIMIT_S = 60.0
"""A cold start from a network file system takes some seconds."""

LIST_PACKAGES = (
    "import json\n"
    "from importlib.metadata import distributions\n"
    "found = [(d.metadata['Name'], d.version) for d in distributions()]\n"
    "print(json.dumps([pair for pair in found if all(isinstance(text, str) for text in pair)]))\n"
)
"""What an interpreter runs to name its packages, from Python 3.8 on; a broken installation has no name or version."""


def read_interpreter(python: str | None) -> Inventory:
    """The packages of an interpreter, named by its path, its directory or a command; of this one for None.

    It runs with -I: no user site, no PYTHONPATH, not this directory.

    Raises:
        BadRequest: it cannot be started, does not answer in time, or answers with something else.
    """
    command = sys.executable if python is None else _find(python)
    try:
        done = subprocess.run(
            [command, "-I", "-c", LIST_PACKAGES],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _refuse(command, f"did not answer within {TIME_LIMIT_S:.0f} s") from None
    except (OSError, ValueError) as error:
        raise _refuse(command, f"cannot be started ({error})") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise _refuse(command, f"ended with exit code {done.returncode} ({said[-1] if said else 'it said nothing'})")
    return Inventory(command, _parse(command, done.stdout), {}, ())


def _find(python: str) -> str:
    path = Path(python).expanduser()
    if path.is_dir():
        inside = path / "bin" / "python"
        if not inside.exists():
            raise _refuse(python, "is a directory without bin/python")
        return str(inside)
    found = str(path.absolute()) if path.exists() else shutil.which(python)
    if found is None:
        raise _refuse(python, "does not exist")
    return found


def _parse(command: str, answer: bytes) -> Mapping[str, str]:
    try:
        pairs = json.loads(answer)
        # The first on the path is the one that is imported.
        return dict(sorted({canonicalize_name(name): version for name, version in reversed(pairs)}.items()))
    except (ValueError, TypeError, AttributeError):
        raise _refuse(command, "did not answer with a list of packages") from None


def _refuse(python: str, found: str) -> BadRequest:
    return BadRequest(FIELD, f"{python} {found}", "give a Python 3.8 or newer, or its virtual environment")
