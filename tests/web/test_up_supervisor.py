"""Services as children: restarted, given up, ended with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from plumbline_web.up import logs, supervisor
from plumbline_web.up.processes import end_marked, is_alive, list_marked
from plumbline_web.up.service import Service
from plumbline_web.up.supervisor import ServiceFailed, StopAsked, Supervisor

LIMIT_S = 20.0


class Stage:
    """A supervisor with what it said."""

    def __init__(self, folder: Path) -> None:
        self.mark = str(folder)
        self.folder = folder
        self.said: list[str] = []
        self.stop = False
        self.supervisor = Supervisor(
            mark=self.mark,
            logs=folder,
            say=lambda name, text: self.said.append(f"{name}: {text}"),
            stop_asked=lambda: self.stop,
        )

    def tick_until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < end, self.said
            self.supervisor.tick()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.supervisor.stop_but()
    assert list_marked(stage.mark) == set()


def make_service(script: str, *, name: str = "service", ready: Path | None = None, stop_s: float = 5.0) -> Service:
    return Service(
        name=name,
        command=(sys.executable, "-c", script),
        is_ready=lambda pid: ready is None or ready.exists(),
        detail="for a test",
        stop_s=stop_s,
        end_s=1.0,
    )


SLEEP = "import time; time.sleep(600)"


def test_start_returns_once_the_service_is_ready_and_says_so(stage: Stage) -> None:
    ready = stage.folder / "ready"
    stage.supervisor.start(make_service(f"open({str(ready)!r}, 'w'); {SLEEP}", ready=ready))
    assert ready.exists()
    (line,) = stage.said
    assert line.startswith("service: ready in ")
    assert line.endswith(" s, for a test")


def test_a_service_that_dies_starts_again_and_its_last_words_are_shown(stage: Stage) -> None:
    once = stage.folder / "once"
    script = f"import os; first = not os.path.exists({str(once)!r}); open({str(once)!r}, 'w')\n"
    script += f"if first: raise SystemExit('the disk is full')\n{SLEEP}"
    stage.supervisor.start(make_service(script, ready=once))
    stage.tick_until(lambda: any("ready in" in line for line in stage.said[2:]))
    told = [line for line in stage.said if "ready in" not in line]
    assert told[0].startswith("service: ended with exit code 1 after ")
    assert told[0].endswith("starts again in 0.5 s")
    assert told[1:] == ["service: | the disk is full"]


def test_a_service_that_keeps_dying_is_given_up(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 0.01)
    dying = make_service("raise SystemExit('no such setting')", ready=stage.folder / "never")
    with pytest.raises(ServiceFailed) as failed:
        stage.supervisor.start(dying)
    assert str(failed.value) == (
        "service: ended with exit code 1, 5 times within 30 s of its start; "
        f"its output is in {stage.folder}/service.log."
    )
    assert stage.said.count("service: | no such setting") == 5


def test_a_service_that_never_gets_ready_is_given_up(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "READY_S", 0.5)
    with pytest.raises(ServiceFailed, match=r"^service: is not ready after 0.5 s; its output is in "):
        stage.supervisor.start(make_service(SLEEP, ready=stage.folder / "never"))


def test_a_request_to_stop_ends_the_wait(stage: Stage) -> None:
    stage.stop = True
    with pytest.raises(StopAsked):
        stage.supervisor.start(make_service(SLEEP, ready=stage.folder / "never"))


def test_what_a_service_started_ends_with_it_even_in_a_session_of_its_own(stage: Stage) -> None:
    number = stage.folder / "number"
    script = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True, env={{}})\n"
        f"open('number.new', 'w').write(str(child.pid)); os.rename('number.new', {str(number)!r})\n" + SLEEP
    )
    stage.supervisor.start(replace(make_service(script, ready=number), cwd=stage.folder))
    child = psutil.Process(int(number.read_text()))
    assert is_alive(child)
    stage.supervisor.stop("service")
    assert not is_alive(child)
    assert stage.said[-1] == "service: stopped"


def test_a_service_that_ignores_every_request_is_killed(stage: Stage) -> None:
    ready = stage.folder / "ready"
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(ready)!r}, 'w'); {SLEEP}"
    stage.supervisor.start(make_service(deaf, ready=ready, stop_s=0.3))
    stage.supervisor.stop("service")
    assert stage.said[1:] == ["service: did not end when asked; it is killed", "service: stopped"]


def test_services_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from plumbline_web.up.service import Service\n"
        "from plumbline_web.up.supervisor import Supervisor\n"
        f"sleeper = Service('sleeper', (sys.executable, '-c', {SLEEP!r}), lambda pid: True, '')\n"
        f"supervisor = Supervisor(mark={str(tmp_path)!r}, logs=None, say=lambda *line: print(line, flush=True))\n"
        "supervisor.start(sleeper)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert b"ready" in parent.stdout.readline()
    (sleeper,) = list_marked(str(tmp_path))
    parent.kill()
    parent.wait()
    end = time.monotonic() + LIMIT_S
    while is_alive(sleeper) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_alive(sleeper)


def test_what_a_killed_parent_left_is_found_by_its_mark_and_ended(tmp_path: Path) -> None:
    ours = {**os.environ, "PLUMBLINE_UP": str(tmp_path), "PLUMBLINE_UP_END": str(int(signal.SIGINT))}
    left = subprocess.Popen([sys.executable, "-c", SLEEP], env=ours, start_new_session=True, stderr=subprocess.DEVNULL)
    other = subprocess.Popen([sys.executable, "-c", SLEEP], env={**ours, "PLUMBLINE_UP": f"{tmp_path}-2"})
    try:
        while not list_marked(str(tmp_path)):
            time.sleep(0.02)
        time.sleep(0.2)  # until Python has taken its signals up
        assert end_marked(str(tmp_path), grace_s=LIMIT_S) == 1
        assert left.wait(timeout=LIMIT_S) == -signal.SIGINT
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_large_log_keeps_one_older_piece_and_its_writer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LARGEST_LOG_BYTES", 10)
    log = tmp_path / "web.log"
    with log.open("ab", buffering=0) as stream:
        stream.write(b"the first piece\n")
        logs.rotate(log)
        stream.write(b"next\n")
        logs.rotate(log)
    assert (log.read_bytes(), (tmp_path / "web.log.1").read_bytes()) == (b"next\n", b"the first piece\n")
    assert logs.read_last_lines(log, since=999, count=5) == ["next"]
