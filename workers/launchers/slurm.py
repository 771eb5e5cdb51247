"""Slurm: a script into the run's directory, a job of it, and the job followed until nothing of it is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from checks.errors import BadRequest
from workers.endings import Ending, name_ending
from workers.frameworks.base import Launch
from workers.last_error import read_last_error
from workers.launchers import queue
from workers.launchers.queue import Ended, MayStillRun, Seen, SlurmError
from workers.launchers.script import HERE, check_option, choose_size, write_script
from workers.launchers.tail import Tail
from workers.runner import ProcessEnd

__all__ = ["Slurm", "SlurmError", "read_options"]

POLL_S = 2.0
"""Squeue asks the controller of everybody's jobs: not more often."""

SILENCE_S = 600.0
"""How long Slurm's commands may fail one after another before the run is given up."""

ACCOUNTING_S = 30.0
"""How long after its end a job may be missing in accounting; some clusters keep none."""

CANCEL_WAIT_S = 60.0
"""Slurm gives a job's processes half a minute between TERM and KILL."""

STANDALONE = "--standalone"
LAUNCHED_BY_PROCESSES = "--nproc-per-node="

ON_ITS_OWN = {
    "TIMEOUT": "timed_out",
    "OUT_OF_MEMORY": "out_of_memory",
    "COMPLETED": "completed",
    "FAILED": "failed",
}
"""States in which the run itself ended, with how; every other end is the cluster's or a person's doing."""


def read_options(texts: Sequence[str], *, gpus_per_node: int) -> Slurm:
    """The launcher of a command line. Raises BadRequest for an option that is not passed on."""
    return Slurm(options=tuple(check_option(text) for text in texts), gpus_per_node=gpus_per_node)


@dataclass(frozen=True)
class Slurm:
    """Runs are jobs of a cluster whose nodes share this machine's directories and Python.

    `options`: for sbatch, checked. `gpus_per_node`: how many a node has; 0 asks for none.
    """

    options: tuple[str, ...] = ()
    gpus_per_node: int = 0
    poll_s: float | None = None
    """seconds between two looks; `POLL_S` for None"""

    def rewrite(self, launch: Launch, *, processes: int) -> Launch:
        """The framework's command through srun; its torchrun over several nodes where one has not enough devices."""
        size = choose_size(processes, gpus_per_node=self.gpus_per_node)
        command = launch.command
        if size.nodes > 1:
            if STANDALONE not in command:
                found = f"{processes} processes do not fit on a node of {self.gpus_per_node}, and this run stays on one"
                raise BadRequest("gpus-per-node", found, "choose smaller degrees, or a framework that torchrun starts")
            command = tuple(_spread(command, nodes=size.nodes, processes=size.processes_per_node))
        # Slurm says which devices the job may see; the name of a network of this machine is none of its nodes.
        local = {"CUDA_VISIBLE_DEVICES", *(["GLOO_SOCKET_IFNAME"] if size.nodes > 1 else [])}
        environment = {name: value for name, value in launch.environment.items() if name not in local}
        run = ("srun", "--export=ALL", f"--nodes={size.nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1")
        return replace(launch, command=(*run, *command), environment=environment)

    def supervise(
        self,
        command: Sequence[str],
        *,
        processes: int,
        cwd: Path,
        environment: Mapping[str, str],
        log: Path,
        time_limit_s: float,
        memory_limit_bytes: int | None,
        on_line: Callable[[str], None],
        cancelled: Callable[[], bool],
    ) -> ProcessEnd:
        """Submit, follow, and end a job; its output is in `log`. Nothing of it runs at the return, whatever is raised.

        But for what Slurm does not let be ended: MayStillRun says so, or a note to what is raised.

        Raises:
            SlurmError: Slurm refuses it, stays away, or ended it for a reason that says nothing of the run.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        exit_file = cwd.resolve() / "exit_code"
        script = cwd.resolve() / "job.sh"
        script.write_text(
            write_script(
                command,
                size=choose_size(processes, gpus_per_node=self.gpus_per_node),
                options=self.options,
                environment={k: v for k, v in environment.items() if k != "CUDA_VISIBLE_DEVICES"},
                time_limit_s=time_limit_s,
                memory_limit_bytes=memory_limit_bytes,
                exit_file=exit_file,
            )
        )
        log.touch()
        job = queue.submit(script, output=log.resolve(), cwd=cwd.resolve())
        follower = _Follower(job, Tail(log, on_line), on_line, cancelled, time_limit_s, self.poll_s or POLL_S)
        try:
            follower.follow()
        except MayStillRun:
            raise
        except BaseException as raised:  # ctrl-C, or a Slurm that does not answer any more
            try:
                follower.end()
            except MayStillRun as left:
                raised.add_note(str(left))
            raise
        return follower.read_end(exit_file)


def _spread(command: Sequence[str], *, nodes: int, processes: int) -> Iterator[str]:
    """torchrun over nodes: they meet at the first one."""
    meeting = (f"--nnodes={nodes}", "--rdzv-backend=c10d", "--rdzv-id=plumbline", f"--rdzv-endpoint={HERE}")
    for part in command:
        if part == STANDALONE:
            yield from meeting
        elif part.startswith(LAUNCHED_BY_PROCESSES):
            yield f"{LAUNCHED_BY_PROCESSES}{processes}"
        elif not part.startswith("--local-addr="):
            yield part


@dataclass
class _Follower:
    """One job on its way: what it waits for, what it prints, and when it has to be ended."""

    job: str
    tail: Tail
    on_line: Callable[[str], None]
    cancelled: Callable[[], bool]
    time_limit_s: float
    poll_s: float
    running_since: float | None = None
    stopped: Ending | None = None
    said: str = ""
    ended_at: float = 0.0

    def follow(self) -> None:
        """Look at the job until squeue has it no more; end it at its limit and when it is cancelled."""
        answered = time.monotonic()
        while True:
            try:
                seen = queue.look(self.job)
                answered = time.monotonic()
            except SlurmError:
                if time.monotonic() - answered > SILENCE_S:
                    raise
                self._say("Slurm does not answer; trying again")
                time.sleep(self.poll_s)
                continue
            if seen is None or seen.state in ENDED:
                break
            self._note(seen)
            self.tail.take()
            if self.stopped is None and (self.cancelled() or self._is_late()):
                self.stopped = "cancelled" if self.cancelled() else "timed_out"
                self.end()
                break
            self._wait()
        self.ended_at = time.monotonic()
        self.tail.finish()

    def end(self) -> None:
        """Cancel the job, and wait until nothing of it runs any more, as long as that may take.

        Raises:
            MayStillRun: Slurm refuses, or does not say what became of it.
        """
        try:
            queue.cancel(self.job)
            seen: Seen | None = None
            deadline = time.monotonic() + CANCEL_WAIT_S
            while time.monotonic() < deadline:
                seen = queue.look(self.job)
                if seen is None or seen.state in ENDED:
                    return
                time.sleep(min(0.5, self.poll_s))
            if seen is not None and seen.state != "COMPLETING":  # its processes are gone, and an epilog takes its time
                raise SlurmError(f"it is {seen.state.lower()} {CANCEL_WAIT_S:.0f} s after scancel")
        except SlurmError as error:
            raise MayStillRun(self.job, str(error)) from None

    def read_end(self, exit_file: Path) -> ProcessEnd:
        """How the run ended: from accounting and the exit code that the script left, the worse where they differ."""
        ended = self._ask_accounting(exit_file)
        code = _read_code(exit_file)
        elapsed_s = self.ended_at - (self.running_since or self.ended_at)
        if self.stopped is None and ended is not None and ended.state not in ON_ITS_OWN:
            found = f"job {self.job} ended as {ended.state}, which says nothing of the run"
            raise SlurmError(f"{found}; see the cluster's log, and run it again")
        if ended is None and code is None and self.stopped is None:
            raise SlurmError(f"job {self.job} is gone, and left no exit code and no record; run it again")
        exit_code = code if code is not None else _code_of(ended)
        log = self.tail.file
        last_error = read_last_error(log) if exit_code else None
        if self.stopped is None and ended is not None and ended.state == "FAILED" and not exit_code:
            exit_code = _code_of(ended)
            last_error = f"accounting has job {self.job} as FAILED, exit code {ended.exit_code}:{ended.signal}, though "
            last_error += "the command in it ended with exit code 0"
        stated = ON_ITS_OWN.get(ended.state) if ended is not None and self.stopped is None else None
        stopped: Ending | None = self.stopped
        if stated == "timed_out":
            stopped = "timed_out"
        elif stated == "out_of_memory":
            stopped = "out_of_memory"
        number = exit_code - 128 if 128 < exit_code <= 128 + 64 else None
        return ProcessEnd(
            exit_code=exit_code,
            signal=number,
            ending=name_ending(stopped, exit_code=exit_code, last_error=last_error),
            elapsed_s=elapsed_s,
            peak_memory_bytes=None if ended is None else ended.peak_memory_bytes,
            last_error=last_error,
        )

    def _note(self, seen: Seen) -> None:
        if seen.state == "PENDING":
            self._say(f"job {self.job} waits: {seen.reason or 'no reason given'}")
        elif self.running_since is None:
            self.running_since = time.monotonic()
            self._say(f"job {self.job} is {seen.state.lower()}")

    def _say(self, text: str) -> None:
        if text != self.said:
            self.said = text
            self.on_line(text)

    def _is_late(self) -> bool:
        return self.running_since is not None and time.monotonic() - self.running_since > self.time_limit_s

    def _wait(self) -> None:
        """Sleep until the next look; a cancellation is heard at once."""
        end = time.monotonic() + self.poll_s
        while time.monotonic() < end and not (self.stopped is None and self.cancelled()):
            time.sleep(min(0.1, self.poll_s))

    def _ask_accounting(self, exit_file: Path) -> Ended | None:
        """The job's record once it says that the job has ended; it may come later than the end, or never."""
        deadline = time.monotonic() + ACCOUNTING_S
        while True:
            try:
                ended = queue.read_end(self.job)
            except SlurmError:
                ended = None
            if ended is not None and ended.state not in UNDER_WAY:
                return ended
            if _read_code(exit_file) is not None or time.monotonic() > deadline:
                return None
            time.sleep(self.poll_s)


UNDER_WAY = frozenset({"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "RESIZING", "REQUEUED"})
ENDED = frozenset(
    {"COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED"}
    | {"DEADLINE", "REVOKED", "LAUNCH_FAILED"}
)
"""States of https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES; squeue shows an ended job for a while."""


def _read_code(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _code_of(ended: Ended | None) -> int:
    """As a shell gives it."""
    if ended is None:
        return 1
    return 128 + ended.signal if ended.signal else ended.exit_code or int(ended.state != "COMPLETED")
