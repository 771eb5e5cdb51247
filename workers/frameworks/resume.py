"""Save a run, end its process, and let a new one go on: `python resume.py DRIVER first.json second.json`.

`first.json` saves on its way and runs to its end, so that its schedule is the asked run's. `second.json` names the
saved directory in `resume_from`; its process takes the place of this one, so that signals and exit code are its own.
Only the second is recorded; what is preloaded acts in both. A file may say in `launch` how its processes are started,
where the two have other numbers of them.

Runs in the framework's environment and imports nothing of Plumbline.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

RECORDER = "PLUMBLINE_CAPTURE"
"""the recorder's settings as JSON; without steps it records nothing and still preloads (docs/capture-format.md)"""


def main(driver: str, first: str, second: str) -> NoReturn:
    """Run the first configuration to its end, then become the process of the second."""
    saving, going_on = (json.loads(Path(file).read_text(encoding="utf-8")) for file in (first, second))
    saved = Path(going_on["resume_from"])
    command = [sys.executable, "-u", *saving.get("launch", ()), driver, first]
    done = subprocess.run(command, env=leave_unrecorded(os.environ), check=False)
    if done.returncode:
        end_as(done.returncode)
    if not saved.is_dir():
        sys.stderr.write(f"resume: the first process ended without an error and without {saved}\n")
        sys.exit(1)
    print(f"resume: {saved.name} is saved, a new process goes on from it", flush=True)
    os.execv(sys.executable, [sys.executable, "-u", *going_on.get("launch", ()), driver, second])


def leave_unrecorded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process in which the recorder only preloads."""
    settings = environment.get(RECORDER)
    if settings is None:
        return dict(environment)
    return {**environment, RECORDER: json.dumps({**json.loads(settings), "steps": []})}


def end_as(returncode: int) -> NoReturn:
    """End as the child did: with its exit code, or by the signal that ended it."""
    if returncode < 0:
        with contextlib.suppress(OSError):  # KILL and STOP cannot be set, and need not be
            signal.signal(-returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -returncode)
        returncode = 128 - returncode  # a signal whose default is to be ignored
    sys.exit(returncode)


if __name__ == "__main__":
    main(*sys.argv[1:])
