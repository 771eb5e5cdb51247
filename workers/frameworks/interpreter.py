"""The interpreter that the frameworks run in: this one, or that of an environment of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from checks.errors import BadRequest

VARIABLE = "PLUMBLINE_FRAMEWORK_PYTHON"


def framework_python(framework: str = "") -> str:
    """The path of the interpreter that has a framework installed: of all frameworks, else of that one, else this.

    `PLUMBLINE_FRAMEWORK_PYTHON_TRL` is that of `trl`, for a worker whose frameworks do not go together.

    Raises:
        BadRequest: the variable names something that cannot be executed.
    """
    variable = VARIABLE
    if framework and not os.environ.get(VARIABLE):
        variable = f"{VARIABLE}_{framework.upper()}"
    named = os.environ.get(variable)
    if not named:
        return sys.executable
    if not (Path(named).is_file() and os.access(named, os.X_OK)):
        found = f"{named} is not an executable file"
        raise BadRequest(variable, found, "name the Python of an environment that has the frameworks, or unset it")
    return named


def require_module(module: str, *, framework: str, remedy: str, what: str = "") -> None:
    """Raise BadRequest where the frameworks' interpreter has no such module; `what`: how a person knows it."""
    python = framework_python(framework)
    if not _has_module(python, module):
        named = f"and name it with --env, or its Python in {VARIABLE}_{framework.upper()}"
        raise BadRequest("framework", f"{what or framework} is not installed in {python}", f"{remedy}, {named}")


@cache
def _has_module(python: str, module: str) -> bool:
    # Looked for, not imported: a framework takes ten seconds to import, and a broken one says so in its own run.
    script = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", script], capture_output=True, check=False).returncode == 0
