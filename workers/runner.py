"""One framework run: the recorder in front of the framework's command, with its log, its limits and its end."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from checks.errors import BadRequest
from workers.endings import Ending, name_ending
from workers.environments.containers import enclose, framework_image, leaving_nothing, refuse_launcher
from workers.frameworks.base import Launch
from workers.last_error import read_last_error
from workers.recorder_command import build_command
from workers.sandbox import GRACE_S, Sandbox, name_shortly, scrub_environment

if TYPE_CHECKING:
    from workers.launchers.base import Launcher

POLL_S = 0.1
"""How often a silent run is looked at: for its end, its memory, its time and a cancellation."""

MEMORY_POLL_S = 0.25

CANCEL_GRACE_S = 1.0
"""Nobody waits for the capture of a cancelled run, and its person sees it end within two seconds."""

LINE_LIMIT_BYTES = 1 << 16
"""A longer line is handed on in pieces, so that output without line ends does not fill the memory."""


@dataclass(frozen=True)
class FrameworkRun:
    """How one framework process ended and what it left."""

    exit_code: int
    """the command's, as a shell would give it: 128 + n for signal n"""
    signal: int | None
    ending: Ending
    log: Path
    capture: Path | None
    """directory with a manifest; None where the recorder left none"""
    elapsed_s: float
    peak_memory_bytes: int | None
    """None where it is not known"""
    last_error: str | None
    """the last line of the log's last traceback and its innermost frame"""


def run_framework(
    launch: Launch,
    *,
    out: Path,
    scratch: Path,
    log: Path,
    steps: tuple[int, ...],
    full: bool = False,
    modules: str | None = None,
    memory: bool = False,
    preload: tuple[Path, ...] = (),
    time_limit_s: float,
    memory_limit_bytes: int | None,
    on_line: Callable[[str], None],
    cancelled: Callable[[], bool],
    tag: str | None = None,
    on_start: Callable[[int], None] = lambda process_group: None,
    launcher: Launcher | None = None,
    processes: int = 1,
) -> FrameworkRun:
    """Run a framework to its end or to a limit; no process of it outlives this call, whatever is raised meanwhile.

    out: directory that the recorder makes; log: file for stdout and stderr together; on_line: called with each line;
    tag: by which its processes can be found after this one's death; on_start: called with their process group.
    launcher: starts it elsewhere, with so many processes.
    Raises BadRequest when `out` exists or a preload file is missing.
    """
    _check_paths(out=out, preload=preload)
    scratch.mkdir(parents=True, exist_ok=True)
    image, name = framework_image(), f"plumbline-{tag or uuid.uuid4().hex}"
    if image is not None:
        refuse_launcher(launcher)
        launch = enclose(
            launch,
            image=image,
            name=name,
            out=out.resolve(),
            scratch=scratch.resolve(),
            preload=preload,
            memory_limit_bytes=memory_limit_bytes,
            variables=scrub_environment(scratch=scratch, extra={}),
        )
    if launcher is not None:
        launch = launcher.rewrite(launch, processes=processes)
    command = build_command(
        launch, out=out.resolve(), steps=steps, full=full, modules=modules, memory=memory, preload=preload
    )
    run: Callable[..., ProcessEnd] = partial(supervise, tag=tag, on_start=on_start)
    if launcher is not None:
        run = partial(launcher.supervise, processes=processes)
    # Another machine would not see another name.
    named = name_shortly(scratch.resolve()) if launcher is None else contextlib.nullcontext(scratch.resolve())
    with named as temporary, leaving_nothing(name if image else None):
        extra = {"TMPDIR": str(temporary), **launch.environment}
        end = run(
            command,
            cwd=launch.directory or scratch,
            environment=scrub_environment(scratch=scratch.resolve(), extra=extra),
            log=log,
            time_limit_s=time_limit_s,
            memory_limit_bytes=memory_limit_bytes,
            on_line=on_line,
            cancelled=cancelled,
        )
    return FrameworkRun(
        exit_code=end.exit_code,
        signal=end.signal,
        ending=end.ending,
        log=log,
        capture=out if (out / "manifest.json").is_file() else None,
        elapsed_s=end.elapsed_s,
        peak_memory_bytes=end.peak_memory_bytes,
        last_error=end.last_error,
    )


@dataclass(frozen=True)
class ProcessEnd:
    """How a supervised command ended; the fields are those of FrameworkRun."""

    exit_code: int
    signal: int | None
    ending: Ending
    elapsed_s: float
    peak_memory_bytes: int | None
    last_error: str | None


def supervise(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    log: Path,
    time_limit_s: float,
    memory_limit_bytes: int | None,
    on_line: Callable[[str], None],
    cancelled: Callable[[], bool],
    tag: str | None = None,
    on_start: Callable[[int], None] = lambda process_group: None,
) -> ProcessEnd:
    """Run any command to its end or to a limit, its output into `log`; all that it started is gone at the return."""
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    sandbox = Sandbox(command, cwd=cwd, environment=environment, tag=tag)
    try:
        on_start(sandbox.process.pid)
        with log.open("wb") as file:
            output = _Output(sandbox, file, on_line)
            watch = _watch(
                sandbox,
                output,
                deadline=started + time_limit_s,
                memory_limit_bytes=memory_limit_bytes,
                cancelled=cancelled,
            )
            end = sandbox.stop_at_once if watch.stopped == "out_of_memory" else sandbox.stop
            grace_s = CANCEL_GRACE_S if watch.stopped == "cancelled" else GRACE_S
            end(grace_s=grace_s, meanwhile=output.take_available)
            output.finish()
    finally:
        sandbox.stop()
        assert sandbox.process.stdout is not None
        sandbox.process.stdout.close()
    elapsed_s = time.monotonic() - started
    exit_code, number = _read_exit(sandbox.process.returncode)
    last_error = read_last_error(log) if exit_code else None
    return ProcessEnd(
        exit_code=exit_code,
        signal=number,
        ending=name_ending(watch.stopped, exit_code=exit_code, last_error=last_error),
        elapsed_s=elapsed_s,
        peak_memory_bytes=watch.peak_memory_bytes,
        last_error=last_error,
    )


@dataclass
class _Watch:
    stopped: Ending | None = None
    """why this side ended the run; None where it ended by itself"""
    peak_memory_bytes: int = 0


class _Output:
    """Takes the run's output from its pipe without blocking, into the log and, line by line, to `on_line`."""

    def __init__(self, sandbox: Sandbox, file: BinaryIO, on_line: Callable[[str], None]) -> None:
        assert sandbox.process.stdout is not None
        self._descriptor = sandbox.process.stdout.fileno()
        self._file = file
        self._on_line = on_line
        self._rest = b""
        os.set_blocking(self._descriptor, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._descriptor, selectors.EVENT_READ)
        self.ended = False

    def wait_and_take(self, seconds: float) -> None:
        """Take what there is, waiting up to `seconds` for the first byte."""
        if self.ended:
            time.sleep(seconds)
        elif self._selector.select(seconds):
            self._take()

    def take_available(self) -> None:
        """Take what is in the pipe now."""
        while not self.ended and self._selector.select(0):
            self._take()

    def finish(self) -> None:
        """Take the rest, after the last process is gone, with a last line that has no line end."""
        self.take_available()
        if self._rest:
            self._on_line(_decode(self._rest))
        self._selector.close()

    def _take(self) -> None:
        chunk = os.read(self._descriptor, 1 << 16)
        if not chunk:
            self.ended = True
            self._selector.unregister(self._descriptor)
            return
        self._file.write(chunk)
        self._file.flush()
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LINE_LIMIT_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._on_line(_decode(line))


def _watch(
    sandbox: Sandbox,
    output: _Output,
    *,
    deadline: float,
    memory_limit_bytes: int | None,
    cancelled: Callable[[], bool],
) -> _Watch:
    watch = _Watch()
    next_memory = 0.0
    while sandbox.process.poll() is None:
        output.wait_and_take(POLL_S)
        now = time.monotonic()
        if now >= next_memory:
            watch.peak_memory_bytes = max(watch.peak_memory_bytes, sandbox.measure_memory())
            next_memory = now + MEMORY_POLL_S
        if cancelled():
            watch.stopped = "cancelled"
        elif memory_limit_bytes is not None and watch.peak_memory_bytes > memory_limit_bytes:
            watch.stopped = "out_of_memory"
        elif now >= deadline:
            watch.stopped = "timed_out"
        if watch.stopped is not None:
            break
    return watch


def _check_paths(*, out: Path, preload: Sequence[Path]) -> None:
    if out.exists():
        raise BadRequest("out", f"{out} exists", "name a directory that does not")
    for file in preload:
        if not file.is_file():
            raise BadRequest("preload", f"{file} is not a file", "name a Python file that defines install()")


def _read_exit(returncode: int) -> tuple[int, int | None]:
    """The exit code as a shell gives it, and the signal: the recorder passes its command's on as 128 + n."""
    if returncode < 0:
        return 128 - returncode, -returncode
    if 128 < returncode <= 128 + 64:
        return returncode, returncode - 128
    return returncode, None


def _decode(line: bytes) -> str:
    """A line as a terminal shows it: what a progress bar has written over is gone."""
    return line.decode("utf-8", errors="replace").rstrip("\r").rpartition("\r")[2]
