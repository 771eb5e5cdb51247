"""Several processes on one machine: what a request may ask, how they are started, and which devices they see."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from checks.errors import BadRequest
from checks.spec import RunSpec
from workers.frameworks.interpreter import framework_python

AXES = ("dp_size", "tp_size", "ep_size", "pp_size", "cp_size")


def refuse_axes(spec: RunSpec, *axes: str, framework: str) -> None:
    """Raise BadRequest for a degree above 1 along an axis that a framework does not divide."""
    for axis in axes:
        if getattr(spec, axis) > 1:
            raise BadRequest(axis, f"{framework} divides nothing along it", f"set {axis}=1, or use framework automodel")


def check_processes(spec: RunSpec, *, resumed_along: tuple[str, ...] = ()) -> None:
    """Raise BadRequest for degrees and a sharding that contradict each other, and for what only one process can do.

    `resumed_along`: the axes along which the framework's runs are saved and taken up again as they were divided.
    """
    divided = [axis for axis in AXES if getattr(spec, axis) > 1]
    if len(divided) > 1:
        raise BadRequest(divided[1], f"{divided[0]} is above 1 too", "divide along one axis at a time")
    if spec.dp_size > 1 and spec.sharding == "none":
        raise BadRequest("sharding", f"none does not say what each of {spec.dp_size} ranks holds", "set ddp or fsdp2")
    if spec.dp_size == 1 and spec.sharding != "none":
        raise BadRequest("sharding", f"{spec.sharding} has nothing to divide", "set dp_size to 2 or more, or none")
    whole = spec.processes == 1 or spec.resharded or divided[0] in resumed_along
    if spec.resume_after is not None and not whole:
        raise BadRequest("resume_after", f"a run of {spec.processes} processes is not resumed", "set all degrees to 1")


def refuse_processes(spec: RunSpec, *, framework: str) -> None:
    """Raise BadRequest for anything but one process."""
    for axis in AXES:
        if getattr(spec, axis) > 1:
            found = f"{framework} is run as one process"
            raise BadRequest(axis, found, f"set {axis}=1, or use framework transformers or plain")
    check_processes(spec)


def build_launch(driver: Path, file: Path, *, processes: int) -> tuple[str, ...]:
    """Return the command that runs a driver on its configuration, through torchrun where it is to be several processes.

    torchrun's rendezvous takes a free port of this machine, so that runs side by side do not meet.
    """
    python = framework_python(driver.parent.name)  # a framework's folder is called after it
    if processes == 1:
        return (python, "-u", str(driver), str(file))
    torchrun = (
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
        "--local-addr=127.0.0.1",
    )
    return (python, "-u", *torchrun, str(driver), str(file))


def choose_devices(processes: int) -> Mapping[str, str]:
    """Return the variables that show a run a device a process: with more in sight, Trainer uses DataParallel."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = [str(index) for index in range(processes)] if visible is None else visible.split(",")[:processes]
    variables = {"CUDA_VISIBLE_DEVICES": ",".join(devices)}
    # Names of this host may lead nowhere in a container without a network.
    return variables if processes == 1 else {**variables, "GLOO_SOCKET_IFNAME": "lo"}
