"""A run sees only what it may, and nothing of it is left behind."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from workers.sandbox import ROOM_FOR_SOCKETS, RUN_TAG, Sandbox, name_shortly, scrub_environment


def _start(code: str, directory: Path) -> Sandbox:
    environment = scrub_environment(scratch=directory, extra={})
    return Sandbox([sys.executable, "-c", code], cwd=directory, environment=environment)


def _wait_for(path: Path) -> str:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if path.exists() and path.read_text().endswith("\n"):
            return path.read_text()
        time.sleep(0.02)
    raise AssertionError(f"{path.name} was not written")


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_secrets_do_not_pass_and_caches_lie_in_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "REDIS_URL", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    environment = scrub_environment(scratch=tmp_path, extra={"FRAMEWORK_OPTION": "1"})
    assert environment == {
        **{name: os.environ[name] for name in ("PATH", "HOME", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
           if name in os.environ},
        "LANG": "C.UTF-8",
        "TMPDIR": str(tmp_path),
        "HF_HOME": str(tmp_path / "huggingface"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "WANDB_MODE": "offline",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "FRAMEWORK_OPTION": "1",
    }  # fmt: skip


def test_what_the_framework_needs_goes_over_the_defaults(tmp_path: Path) -> None:
    assert scrub_environment(scratch=tmp_path, extra={"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4"


def test_children_that_ignore_term_are_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\n"
        "if child: open('pids', 'w').write(f'{os.getpid()} {child}\\n')\n"
        "time.sleep(60)\n"
    )
    sandbox = _start(code, tmp_path)
    pids = [int(pid) for pid in _wait_for(tmp_path / "pids").split()]
    assert {process.pid for process in sandbox.list_members()} == set(pids)
    sandbox.stop(grace_s=0.2)
    assert not any(_is_running(pid) for pid in pids)
    assert sandbox.process.returncode == -9
    sandbox.process.stdout.close()  # type: ignore[union-attr]


def test_a_process_that_left_its_group_and_its_parent_is_found_by_its_tag(tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "if os.fork():\n"
        "    time.sleep(0.5)\n"  # long enough to be a member only of what the tag finds, once it is gone
        "    os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "open('pid', 'w').write(f'{os.getpid()}\\n')\n"
        "time.sleep(60)\n"
    )
    sandbox = _start(code, tmp_path)
    pid = int(_wait_for(tmp_path / "pid"))
    sandbox.process.wait(timeout=30)
    assert _is_running(pid)
    assert psutil.Process(pid).environ()[RUN_TAG] == sandbox.tag
    sandbox.stop(grace_s=0.2)
    assert not _is_running(pid)
    sandbox.process.stdout.close()  # type: ignore[union-attr]


def test_a_process_that_heeds_term_may_finish(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "def last_words(number, frame):\n"
        "    open('words', 'w').write('done\\n'); sys.exit(5)\n"
        "signal.signal(signal.SIGTERM, last_words)\n"
        "open('ready', 'w').write('yes\\n')\n"
        "time.sleep(60)\n"
    )
    sandbox = _start(code, tmp_path)
    _wait_for(tmp_path / "ready")
    sandbox.stop(grace_s=20)
    assert (tmp_path / "words").read_text() == "done\n"
    assert sandbox.process.returncode == 5
    sandbox.process.stdout.close()  # type: ignore[union-attr]


def test_memory_is_that_of_all_processes_together(tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "os.fork()\n"
        "block = bytearray(50_000_000)\n"
        "for position in range(0, len(block), 4096): block[position] = 1\n"
        "open(str(os.getpid()), 'w').write('full\\n')\n"
        "time.sleep(60)\n"
    )
    sandbox = _start(code, tmp_path)
    try:
        end = time.monotonic() + 30
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        assert 100_000_000 < sandbox.measure_memory() < 200_000_000
    finally:
        sandbox.stop(grace_s=0.2)
        sandbox.process.stdout.close()  # type: ignore[union-attr]


def test_a_directory_with_a_long_name_gets_a_short_one_for_as_long_as_a_run_takes(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    with name_shortly(deep) as short:
        assert len(str(short)) <= ROOM_FOR_SOCKETS
        (short / "file").write_text("kept")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(short / "listener-0123456789-0123456789"))
    assert (deep / "file").read_text() == "kept"
    assert not short.parent.exists()
    with name_shortly(Path("/tmp")) as same:
        assert same == Path("/tmp")
