"""Which devices of this machine runs may be given. Workers that run nothing read it too: it loads nothing."""

from __future__ import annotations

import os
import shutil
import subprocess

DEVICES = "PLUMBLINE_DEVICES"
"""Environment variable with the names of the devices, separated by commas; empty for none."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVER_S = 30.0


def list_devices() -> tuple[str, ...]:
    """What `CUDA_VISIBLE_DEVICES` of a run may name: as configured, else what is in sight, else what the driver has."""
    for variable in (DEVICES, VISIBLE):
        given = os.environ.get(variable)
        if given is not None:
            names = (name.strip() for name in given.split(","))
            return tuple(dict.fromkeys(name for name in names if name not in ("", "-1")))
    if shutil.which("nvidia-smi") is None:
        return ()
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_S)
    except subprocess.TimeoutExpired:
        return ()
    return tuple(listed.stdout.split()) if listed.returncode == 0 else ()


def names_all() -> bool:
    """Whether `list_devices` names all of the machine's: a process may be pinned to some of them."""
    return DEVICES in os.environ or VISIBLE not in os.environ
