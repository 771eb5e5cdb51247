"""The interpreter that the frameworks run in: this one, or that of an environment of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from checks.errors import BadRequest

VARIABLE = "PLUMBLINE_FRAMEWORK_PYTHON"


def framework_python() -> str:
    """The path of the interpreter that has the frameworks installed.

    Raises:
        BadRequest: the variable names something that cannot be executed.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return sys.executable
    if not (Path(named).is_file() and os.access(named, os.X_OK)):
        found = f"{named} is not an executable file"
        raise BadRequest(VARIABLE, found, "name the Python of an environment that has the frameworks, or unset it")
    return named
