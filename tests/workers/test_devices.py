"""Devices of one machine: who gets which, in which order, and what a dead holder leaves."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from checks.errors import BadRequest
from checks.spec import RunSpec
from workers.devices.lending import count_devices, refuse_too_many, show_devices
from workers.devices.listing import list_devices, names_all
from workers.devices.local import LocalPool, NotGranted
from workers.devices.pool import Wish, share
from workers.execution import Session
from workers.frameworks.base import Launch
from workers.frameworks.processes import choose_devices
from workers.request import ValidationRequest

SPEC = RunSpec("plain", Path("model"), Path("data"))


@pytest.mark.parametrize(
    ("free", "counts", "given"),
    [
        ("012", [2, 2], [("a", "01")]),
        ("012", [2, 1], [("a", "01"), ("b", "2")]),
        ("0", [2, 1], []),  # the small one does not overtake
        ("0123", [4, 1], [("a", "0123")]),
        ("", [1], []),
        ("31", [1, 1, 1], [("a", "3"), ("b", "1")]),
    ],
)
def test_who_asked_first_is_served_first_whole_or_not_at_all(
    free: str, counts: list[int], given: list[tuple[str, str]]
) -> None:
    waiting = [Wish(name, count) for name, count in zip("abc", counts, strict=False)]
    assert [(name, "".join(devices)) for name, devices in share(free, waiting)] == given


@pytest.mark.parametrize(
    ("configured", "visible", "listed"),
    [("0,1, 2", "7", ("0", "1", "2")), ("", "7", ()), (None, "GPU-a,GPU-b", ("GPU-a", "GPU-b")), (None, "-1", ()),
     ("0,0,1", None, ("0", "1"))],
)  # fmt: skip
def test_devices_are_those_configured_else_those_in_sight(
    monkeypatch: pytest.MonkeyPatch, configured: str | None, visible: str | None, listed: tuple[str, ...]
) -> None:
    for name, value in (("PLUMBLINE_DEVICES", configured), ("CUDA_VISIBLE_DEVICES", visible)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert list_devices() == listed
    assert names_all() is (configured is not None)


def test_else_those_that_the_driver_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PLUMBLINE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 0; echo 1\n")
    program.chmod(0o755)
    assert list_devices() == ("0", "1")
    assert names_all()
    program.write_text("#!/bin/sh\nexit 9\n")
    assert list_devices() == ()


def test_a_run_takes_a_device_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_devices(SPEC) == 1
    assert count_devices(RunSpec("plain", Path("m"), Path("d"), dp_size=4)) == 4
    assert count_devices(RunSpec("plain", Path("m"), Path("d"), resume_after=1, resharded=True)) == 2
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    launch = Launch(command=("x",), environment=choose_devices(2), full_parameters=None, output=Path("o"))
    assert show_devices(launch, ("2", "3")).environment == {"CUDA_VISIBLE_DEVICES": "2,3", "GLOO_SOCKET_IFNAME": "lo"}


def test_a_run_of_more_than_there_is_is_refused_in_a_sentence() -> None:
    four = RunSpec("plain", Path("m"), Path("d"), tp_size=4)
    with pytest.raises(BadRequest, match="tp_size: the run takes 4 devices, and this machine has 3; choose smaller"):
        refuse_too_many(four, there=3, where="this machine")
    refuse_too_many(four, there=4, where="this machine")
    refuse_too_many(four, there=0, where="this machine")  # a run on the CPU


def hold(pool: LocalPool, count: int, **changes: Callable[..., object]) -> tuple[str, ...]:
    with pool.hold(count, cancelled=changes.get("cancelled", lambda: False), on_wait=lambda text: None) as held:  # type: ignore[arg-type]
        return held


HOLDER = """
import sys, time
from pathlib import Path
from workers.devices.local import LocalPool
with LocalPool(("0", "1", "2"), directory=Path(sys.argv[1])).hold(
    int(sys.argv[2]), cancelled=lambda: False, on_wait=lambda text: None
) as held:
    print(",".join(held), flush=True)
    time.sleep(60)
"""


def start_holder(directory: Path, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(directory), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def test_what_a_killed_process_held_is_free_again(tmp_path: Path) -> None:
    pool = LocalPool(("0", "1", "2"), directory=tmp_path)
    holder = start_holder(tmp_path, 2)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "0,1\n"
        said: list[str] = []
        with pytest.raises(NotGranted), pool.hold(2, cancelled=lambda: len(said) > 1, on_wait=said.append):
            pass
        assert said[0] == "waits for 2 of 3 devices, 0 before it"
        assert hold(pool, 1) == ("2",)
        waiter = start_holder(tmp_path, 3)  # killed while it waits: its ticket holds up nobody
        wait_for(lambda: len(list((next(tmp_path.iterdir()) / "queue").iterdir())) == 1)
        waiter.kill()
        waiter.wait()
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert hold(pool, 3) == ("0", "1", "2")
    assert list((next(tmp_path.iterdir()) / "queue").iterdir()) == []


def test_runs_of_two_of_three_devices_never_overlap(tmp_path: Path) -> None:
    busy: set[str] = set()
    seen: list[tuple[str, ...]] = []
    guard = threading.Lock()

    def run() -> None:
        pool = LocalPool(("0", "1", "2"), directory=tmp_path)
        with pool.hold(2, cancelled=lambda: False, on_wait=lambda text: None) as held:
            with guard:
                assert not busy & set(held)
                busy.update(held)
            time.sleep(0.02)
            with guard:
                seen.append(held)
                busy.difference_update(held)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(seen) == 4


def test_nobody_overtakes_one_that_waits_for_more(tmp_path: Path) -> None:
    pool = LocalPool(("0", "1"), directory=tmp_path)
    order: list[str] = []

    def run(name: str, count: int) -> None:
        with pool.hold(count, cancelled=lambda: False, on_wait=lambda text: None):
            order.append(name)

    with pool.hold(1, cancelled=lambda: False, on_wait=lambda text: None):
        large = threading.Thread(target=run, args=("large", 2))
        large.start()
        wait_for(lambda: bool(list((next(tmp_path.iterdir()) / "queue").iterdir())))
        small = threading.Thread(target=run, args=("small", 1))
        small.start()
        time.sleep(0.5)
        assert order == []
    for thread in (large, small):
        thread.join(timeout=30)
    assert order == ["large", "small"]


def test_more_than_there_is_is_never_waited_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="3 of 2 devices were asked for"):
        hold(LocalPool(("0", "1"), directory=tmp_path), 3)


def test_a_run_here_is_shown_devices_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from workers.execution import _lend_devices

    monkeypatch.setenv("PLUMBLINE_DEVICES", "4,5,6")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    request = ValidationRequest("plain", "m", "d")
    session = Session(request, tmp_path, lambda progress: None, lambda: False)
    two = RunSpec("plain", Path("m"), Path("d"), dp_size=2)
    with _lend_devices(session, two, on_wait=lambda text: None) as first:
        assert first == ("4", "5")
        with _lend_devices(session, SPEC, on_wait=lambda text: None) as second:
            assert second == ("6",)
    monkeypatch.setenv("PLUMBLINE_DEVICES", "")
    with _lend_devices(session, two, on_wait=lambda text: None) as none:
        assert none == ()


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
