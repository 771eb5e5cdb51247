"""The framework runs of one validation: where they write, whom they tell, and how they end."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from checks.captures.capture import Capture, open_capture
from checks.captures.log import keep_log
from checks.errors import BadRequest, CaptureError
from checks.material import RunOutcome
from checks.roles import Role
from checks.spec import RunSpec
from workers.devices.lending import count_devices, show_devices
from workers.devices.listing import list_devices
from workers.devices.local import LocalPool, NotGranted
from workers.frameworks import Adapter
from workers.frameworks.shims import list_preload
from workers.launchers.base import Launcher
from workers.launchers.queue import MayStillRun
from workers.planner import Plan, PlannedRun
from workers.report.files import make_directory
from workers.request import PhaseTime, Progress, ValidationRequest
from workers.runner import FrameworkRun, run_framework

TITLES = {
    Role.RUN: "framework run",
    Role.MERGED: "framework run on merged rows",
    Role.RESUMED: "framework run that is saved and resumed",
    Role.RESHARDED: "framework run that is saved and resumed at another layout",
    Role.PROBED: "framework's model on chosen batches",
    Role.SINGLE: "framework run of one process",
    Role.TRACED: "framework run with its modules recorded",
    Role.OVERFIT: "framework run on one batch again and again",
    Role.MEASURED: "framework run with its memory counted",
}

LAST_OUTPUT_CHARACTERS = 300


@dataclass
class Session:
    """One validation under way: where it writes, whom it tells, and what it has spent."""

    request: ValidationRequest
    workspace: Path
    on_progress: Callable[[Progress], None]
    asked_to_stop: Callable[[], bool]
    launcher: Launcher | None = None
    """starts the runs elsewhere than on this machine"""
    started: float = field(default_factory=time.monotonic)
    phases: list[PhaseTime] = field(default_factory=list)
    runs: list[FrameworkRun] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def cancelled(self) -> bool:
        return self.stopped.is_set() or self.asked_to_stop()

    @contextmanager
    def phase(self, name: str, detail: str, fraction: float) -> Iterator[None]:
        begin = time.monotonic()
        self.tell(name, detail, fraction)
        try:
            yield
        finally:
            self.phases.append(PhaseTime(name, time.monotonic() - begin, begin - self.started))

    def tell(self, phase: str, detail: str, fraction: float | None) -> None:
        with self.lock:
            self.on_progress(Progress(phase, detail, fraction, time.monotonic() - self.started))


def execute_all(session: Session, chosen: Adapter, plan: Plan, *, at_once: int) -> dict[Role, RunOutcome]:
    """Every run of the plan, `at_once` of them side by side: a tiny model's run is one thread, mostly imports."""
    futures: dict[Role, Future[RunOutcome]] = {}
    try:
        with ThreadPoolExecutor(max_workers=max(at_once, 1)) as pool:
            try:
                for index, planned in enumerate(plan.runs):
                    fraction = 0.8 * index / len(plan.runs)
                    futures[planned.role] = pool.submit(_execute, session, chosen, planned, fraction)
                return {role: future.result() for role, future in futures.items()}
            except BaseException:
                session.stopped.set()  # the pool waits for its runs, which end at the next poll
                raise
    except BaseException as raised:
        _note_what_may_run(raised, futures.values())
        raise


def _note_what_may_run(raised: BaseException, futures: Iterable[Future[RunOutcome]]) -> None:
    """Note to what is raised what the runs' own threads know: a job that a cluster did not let be ended."""
    for future in futures:
        left = future.exception() if future.done() and not future.cancelled() else None
        if left is None or left is raised:
            continue
        for note in (str(left),) if isinstance(left, MayStillRun) else getattr(left, "__notes__", ()):
            raised.add_note(note)


def _execute(session: Session, chosen: Adapter, planned: PlannedRun, fraction: float) -> RunOutcome:
    """Run the framework once with the recorder in front and open what it recorded."""
    label = planned.role.value
    steps = planned.captured_steps
    spec = planned.spec
    named = f"{spec.framework}, {spec.steps} steps of {spec.batch} × {spec.accumulation} rows"
    if spec.command:
        named = f"{spec.framework} {spec.command[0]}, {spec.steps} steps"
    if spec.processes > 1:
        named += f" a rank on {spec.processes} processes" if spec.dp_size > 1 else f" on {spec.processes} processes"
    with session.phase(TITLES[planned.role], f"{named}, recording steps {', '.join(map(str, steps))}", fraction):
        full = session.request.full
        return run_recorded(
            session, chosen, spec, label, steps=steps, full=full, modules=planned.modules, memory=planned.memory
        )


def run_recorded(
    session: Session,
    chosen: Adapter,
    spec: RunSpec,
    label: str,
    *,
    steps: tuple[int, ...],
    full: bool,
    modules: str | None,
    memory: bool = False,
) -> RunOutcome:
    scratch = session.workspace / "scratch" / label
    launch = chosen.prepare(spec, scratch)
    launch = replace(launch, reads=tuple(path for path in (spec.model, spec.data, spec.synced) if path is not None))
    preload = list_preload(spec.framework, fault_slug=spec.fault)

    last_line = ""

    def on_line(line: str) -> None:
        nonlocal last_line
        if line.strip():
            last_line = line.strip()[-LAST_OUTPUT_CHARACTERS:]
            session.tell(label, last_line, None)

    try:
        with _lend_devices(session, spec, on_wait=on_line) as devices:
            run = run_framework(
                show_devices(launch, devices) if devices else launch,
                out=session.workspace / "captures" / label,
                scratch=scratch,
                log=session.workspace / "logs" / f"{label}.log",
                steps=steps,
                full=full and not memory,  # what is kept whole would be counted
                modules=modules,
                memory=memory,
                preload=preload,
                time_limit_s=session.request.time_limit_s,
                memory_limit_bytes=session.request.memory_limit_bytes,
                on_line=on_line,
                cancelled=session.cancelled,
                launcher=session.launcher,
                processes=count_devices(spec),
            )
    except NotGranted as error:
        return RunOutcome("cancelled", None, 0.0, None, None, str(error))
    session.runs.append(run)
    if run.capture is not None:
        keep_log(run.capture, chosen.read_log(launch.output, run.log))
    return _read_outcome(run, last_line)


@contextmanager
def _lend_devices(session: Session, spec: RunSpec, *, on_wait: Callable[[str], None]) -> Iterator[tuple[str, ...]]:
    """Devices of this machine for one run alone; none where it has none, or the run is elsewhere."""
    devices = list_devices() if session.launcher is None else ()
    if not devices:
        yield ()
        return
    pool = LocalPool(devices)
    with pool.hold(count_devices(spec), cancelled=session.cancelled, on_wait=on_wait) as held:
        yield held


def _read_outcome(run: FrameworkRun, last_line: str) -> RunOutcome:
    capture: Capture | None = None
    unreadable: str | None = None
    if run.capture is None:
        unreadable = "the recorder wrote no capture"
    else:
        try:
            capture = open_capture(run.capture)
        except CaptureError as error:
            unreadable = str(error)
    return RunOutcome(run.ending, run.exit_code, run.elapsed_s, run.last_error, capture, unreadable, last_line)


def make_empty(directory: Path) -> None:
    """Make a directory for what a command keeps.

    Raises:
        BadRequest: there is something in it, or it cannot be made.
    """
    make_directory(directory, field="out")
    try:
        empty = not any(directory.iterdir())
    except OSError as error:
        found = f"{directory} cannot be read ({error.strerror})"
        raise BadRequest("out", found, "name a new directory") from None
    if not empty:
        raise BadRequest("out", f"{directory} is not empty", "name a new directory")


@contextmanager
def open_workspace(request: ValidationRequest) -> Iterator[Path]:
    """The directory named by --out, kept; else a temporary one that goes with the validation."""
    if request.out is not None:
        make_empty(request.out)
        yield request.out
        return
    workspace = Path(tempfile.mkdtemp(prefix="plumbline-"))
    try:
        yield workspace
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
