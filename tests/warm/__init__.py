"""An interpreter that starts with the frameworks loaded.

A run of a tiny model computes for a second and imports for ten. `PLUMBLINE_FRAMEWORK_PYTHON` names the executable that
`make_interpreter` writes: it hands its arguments, environment, directory and output to a server, which has imported the
frameworks and forks the process. Computing processes begin so too. What the framework does, and what is recorded of it,
is the same; a test of processes, signals or imports takes the fixture `cold` instead.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent


def make_interpreter(directory: Path) -> Path:
    """Write the executable; the first process that it starts makes the server, which ends with this process."""
    constants = {
        "PYTHON": sys.executable,
        "SERVER": str(HERE / "server.py"),
        "ADDRESS": str(directory / "warm.sock"),
        "OWNER": os.getpid(),
    }
    head = [f"#!{sys.executable} -IS", *(f"{name} = {value!r}" for name, value in constants.items())]
    interpreter = directory / "python"
    interpreter.write_text("\n".join([*head, (HERE / "client.py").read_text()]))
    interpreter.chmod(0o755)
    return interpreter
