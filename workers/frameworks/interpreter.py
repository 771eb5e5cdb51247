"""The interpreter that the frameworks run in: this one, or that of an environment of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from checks.errors import BadRequest
from workers.environments.containers import PYTHON, framework_image, run_in_image

VARIABLE = "PLUMBLINE_FRAMEWORK_PYTHON"

LOOK = "import importlib.util, sys; sys.exit(importlib.util.find_spec({!r}) is None)"
"""Looked for, not imported: a framework takes ten seconds to import, and a broken one says so in its own run."""


def framework_python(framework: str = "") -> str:
    """The path of the interpreter that has a framework installed: of all frameworks, else of that one, else this.

    In a container that is what its image has under Python's name.

    `PLUMBLINE_FRAMEWORK_PYTHON_TRL` is that of `trl`, for a worker whose frameworks do not go together.

    Raises:
        BadRequest: the variable names something that cannot be executed.
    """
    if framework_image() is not None:
        return PYTHON
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
    image = framework_image()
    if image is not None:
        if not _image_has_module(image, module):
            raise BadRequest(
                "framework", f"{what or framework} is not installed in {image}", "name an image that has it"
            )
        return
    python = framework_python(framework)
    if not _has_module(python, module):
        named = f"and name it with --env, or its Python in {VARIABLE}_{framework.upper()}"
        raise BadRequest("framework", f"{what or framework} is not installed in {python}", f"{remedy}, {named}")


@cache
def _has_module(python: str, module: str) -> bool:
    return subprocess.run([python, "-c", LOOK.format(module)], capture_output=True, check=False).returncode == 0


@cache
def _image_has_module(image: str, module: str) -> bool:
    return run_in_image(image, [PYTHON, "-c", LOOK.format(module)]).returncode == 0
