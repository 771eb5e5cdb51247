"""A process group that can be watched and ended as a whole, in an environment that holds no secret."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
"""What a framework may see of this process's environment: where programs, libraries and devices are, nothing else."""

RUN_TAG = "PLUMBLINE_RUN"
"""Environment variable whose value marks every process of one run, also one that has left its group and its parent."""

GRACE_S = 8.0
"""Between TERM and KILL: the recorder gives the framework 5 s of it, then writes the manifest of the unfinished run."""

STOP_POLL_S = 0.02

ROOM_FOR_SOCKETS = 60
"""bytes of a temporary directory's path; multiprocessing's sockets take some 40 more"""

KILL_WAIT_S = 10.0
"""How long a killed process may take to be gone; only one in an uninterruptible read takes longer."""


def scrub_environment(*, scratch: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a run: the allow-list of this process's, caches under `scratch`, no network, then `extra`.

    Tokens, database addresses and `PYTHONPATH` do not pass. One thread: with two, tiny models take a hundred times
    longer, and sums are added in another order. `HF_HOME` lies in `scratch`, because it holds the hub's token.
    """
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment |= {
        "TMPDIR": str(scratch),
        "HF_HOME": str(scratch / "huggingface"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "WANDB_MODE": "offline",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    return environment | dict(extra)


@contextlib.contextmanager
def name_shortly(directory: Path) -> Iterator[Path]:
    """Another name for a directory whose own leaves no room for the name of a socket in it.

    Pools of processes listen on sockets in the temporary directory, and Linux takes 107 bytes of a socket's path.
    """
    if len(os.fsencode(directory)) <= ROOM_FOR_SOCKETS:
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="plumbline-") as near:
        link = Path(near) / "t"
        link.symlink_to(directory)
        yield link


class Sandbox:
    """One running command with everything that it started.

    Membership is threefold, because launchers start workers in sessions of their own: the process group, the
    descendants of any process seen so far, and on ending every process that carries this run's `RUN_TAG`.
    """

    def __init__(
        self, command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], tag: str | None = None
    ) -> None:
        self.tag = tag or uuid.uuid4().hex
        self.process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env={**environment, RUN_TAG: self.tag},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._seen: set[psutil.Process] = set()
        with contextlib.suppress(psutil.NoSuchProcess):
            self._seen.add(psutil.Process(self.process.pid))

    def list_members(self) -> list[psutil.Process]:
        """The living processes of this run, the leader among them; a zombie is not alive."""
        found = set(self._seen)
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
                if os.getpgid(pid) == self.process.pid:
                    found.add(psutil.Process(pid))
        for process in tuple(found):
            with contextlib.suppress(psutil.NoSuchProcess):
                found.update(process.children(recursive=True))
        self._seen = {process for process in found if _is_alive(process)}
        return list(self._seen)

    def measure_memory(self) -> int:
        """Bytes resident in the run's processes together; a page that two of them share counts twice."""
        total = 0
        for process in self.list_members():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def stop(self, *, grace_s: float = GRACE_S, meanwhile: Callable[[], None] | None = None) -> None:
        """End every process of the run: TERM, `grace_s` seconds for the last words, KILL; returns when all are gone.

        `meanwhile` empties the pipe: a process that blocks on a full pipe could not say its last words. An interrupt
        during the wait goes on to KILL.
        """
        self._stop(self.list_members(), (), grace_s=grace_s, meanwhile=meanwhile)

    def stop_at_once(self, *, grace_s: float = GRACE_S, meanwhile: Callable[[], None] | None = None) -> None:
        """End a run that eats the machine's memory: KILL all but the recorder's leader, which may finish its files."""
        members = self.list_members()
        leader = [process for process in members if process.pid == self.process.pid]
        others = [process for process in members if process.pid != self.process.pid]
        self._stop(leader, others, grace_s=grace_s, meanwhile=meanwhile)

    def _stop(
        self,
        terminate: Iterable[psutil.Process],
        kill: Iterable[psutil.Process],
        *,
        grace_s: float,
        meanwhile: Callable[[], None] | None,
    ) -> None:
        try:
            _send(kill, signal.SIGKILL)
            _send(terminate, signal.SIGTERM)
            end = time.monotonic() + grace_s
            while self.list_members() and time.monotonic() < end:
                self.process.poll()
                if meanwhile is not None:
                    meanwhile()
                time.sleep(STOP_POLL_S)
        finally:
            self._kill_the_rest()

    def _kill_the_rest(self) -> None:
        end = time.monotonic() + KILL_WAIT_S
        while (left := {*self.list_members(), *list_tagged(self.tag)}) and time.monotonic() < end:
            _send(left, signal.SIGKILL)
            self.process.poll()
            time.sleep(STOP_POLL_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=KILL_WAIT_S)


def list_tagged(tag: str) -> list[psutil.Process]:
    """The living processes of this machine that a run with this tag has started, however they were detached."""
    tagged = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(RUN_TAG) == tag and _is_alive(process):
                tagged.append(process)
    return tagged


def end_tagged(tag: str) -> bool:
    """KILL what a dead worker's run has left on this machine; whether all of it is gone."""
    end = time.monotonic() + KILL_WAIT_S
    while (left := list_tagged(tag)) and time.monotonic() < end:
        _send(left, signal.SIGKILL)
        time.sleep(STOP_POLL_S)
    return not left


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)
