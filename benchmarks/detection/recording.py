"""A framework's own driver in a fork, with the recorder and the fault in it as the launcher would have put them."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from plumbline_capture import checkpoint, export
from plumbline_capture.format import utc_now
from plumbline_capture.install import install
from plumbline_capture.manifest import write_manifest
from plumbline_capture.settings import Settings
from plumbline_capture.writer import publish_last_notes

from benchmarks.detection.forking import TIMED_OUT, fork, wait
from checks.captures.capture import Capture, open_capture
from checks.captures.log import keep_log
from checks.errors import CaptureError
from checks.material import RunOutcome
from workers.frameworks.base import Adapter, Launch
from workers.last_error import read_last_error

LIMIT_S = 120.0
PORT_BASE = 20_000
PORTS = 20_000


def record(
    launch: Launch,
    chosen: Adapter,
    *,
    out: Path,
    log: Path,
    steps: Sequence[int],
    modules: str | None,
    memory: bool,
    preload: Path | None,
    ranks: int,
) -> RunOutcome:
    """Run the command of `launch` in forks: a run that is saved and resumed is two, `ranks` processes run at once.

    The drivers are called in a process that has the frameworks loaded; what they are given and what is recorded is
    what `plumbline-capture run` gives and records.
    """
    started, begin = utc_now(), time.monotonic()
    out.mkdir(parents=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        out=str(out.resolve()),
        steps=tuple(steps),
        modules=modules,
        memory=memory,
        full_parameters=launch.full_parameters,
        preload=() if preload is None else (str(preload),),
        probes=None if launch.probes is None else str(launch.probes),
        checkpoints=tuple(str(directory) for directory in launch.checkpoints),
        export=None if launch.export is None else str(launch.export),
    )
    code = _run_all(launch, settings, log=log, ranks=ranks)
    if settings.checkpoints:
        wait(fork(lambda: checkpoint.main([settings.to_environment()]), log=log), limit_s=LIMIT_S)
    if settings.export is not None:
        wait(fork(lambda: export.main([settings.to_environment()]), log=log), limit_s=LIMIT_S)
    write_manifest(out, settings=settings, command=list(launch.command), exit_code=code, started=started)
    keep_log(out, chosen.read_log(launch.output, log))
    capture, unreadable = _open(out)
    ending = "completed" if code == 0 else "timed_out" if code == TIMED_OUT else "failed"
    last_error = read_last_error(log) if code else None
    return RunOutcome(ending, code, time.monotonic() - begin, last_error, capture, unreadable, "")


def _run_all(launch: Launch, settings: Settings, *, log: Path, ranks: int) -> int:
    *_, driver, last = launch.command
    first = None
    if launch.checkpoints:  # RESUME driver first second
        driver, first, last = launch.command[-3:]
    if first is not None:
        code = _run_ranks(driver, first, launch, settings, log=log, ranks=ranks, recorded=False)
        if code:
            return code
    return _run_ranks(driver, last, launch, settings, log=log, ranks=ranks, recorded=True)


def _run_ranks(
    driver: str, configuration: str, launch: Launch, settings: Settings, *, log: Path, ranks: int, recorded: bool
) -> int:
    def start(rank: Mapping[str, str]) -> int:
        return fork(lambda: _train(driver, configuration, launch, settings, rank, recorded=recorded), log=log)

    pids = [start(_rank_variables(rank, ranks)) for rank in range(ranks)]
    return max([wait(pid, limit_s=LIMIT_S) for pid in pids])


def _train(
    driver: str, configuration: str, launch: Launch, settings: Settings, rank: Mapping[str, str], *, recorded: bool
) -> int:
    os.environ.update({**launch.environment, **rank})
    os.chdir(Path(configuration).parent)
    recorder = install(settings) if recorded else None
    for path in settings.preload:
        load_fault(Path(path))
    sys.argv = [driver, configuration]
    runpy.run_path(driver, run_name="driver")["main"](configuration)
    if recorder is not None:
        publish_last_notes(recorder)  # the end of a fork calls nothing that waits for the end of a process
    return 0


def load_fault(path: Path) -> None:
    """Execute a preload file and call its `install()`, as the recorder does."""
    spec = importlib.util.spec_from_file_location("plumbline_preload_0", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["plumbline_preload_0"] = module
    spec.loader.exec_module(module)
    module.install()


def _rank_variables(rank: int, ranks: int) -> dict[str, str]:
    """What torchrun would set, for processes of one machine; nothing for one process."""
    if ranks == 1:
        return {}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(PORT_BASE + os.getpid() % PORTS),
    }


def _open(out: Path) -> tuple[Capture | None, str | None]:
    try:
        return open_capture(out), None
    except CaptureError as error:
        return None, str(error)
