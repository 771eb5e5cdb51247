"""A recorder that fails never stops the training; a preload that fails always does."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.capture.running import PLAIN_LM, run_recorded

_BREAK_TWO_HOOKS = """
from plumbline_capture import forward, writer
save_file = writer.save_file

def no_rng():
    raise RuntimeError("the generator is broken")

def disk_full_at_step_3(tensors, path, metadata):
    if "step00003" in path:
        open(path, "wb").write(b"half")
        raise OSError(28, "No space left on device")
    save_file(tensors, path, metadata)

def install():
    forward.describe_rng = no_rng
    writer.save_file = disk_full_at_step_3
"""

_DIE_WHILE_WRITING = """
import os, signal
from plumbline_capture import writer

def die(tensors, path, metadata):
    open(path, "wb").write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

def install():
    writer.save_file = die
"""


def test_what_breaks_in_the_recorder_is_listed_and_the_training_ends_the_same(tmp_path: Path) -> None:
    preload = tmp_path / "breaking.py"
    preload.write_text(_BREAK_TWO_HOOKS)
    command = (sys.executable, str(PLAIN_LM), "everyday")
    recorded = run_recorded(tmp_path / "capture", *command, options=("--preload", str(preload)))
    assert recorded.code == 0
    assert len(recorded.stdout) == 65  # printed at the end of the training
    notes = {(note["step"], note["what"]): note["why"] for note in recorded.manifest["missing"]}
    assert set(notes) == {(1, "rng"), (3, "rng"), (3, "step file"), (3, "step")}
    assert notes[1, "rng"].startswith("RuntimeError: the generator is broken (breaking.py:")
    assert "No space left on device" in notes[3, "step file"]
    assert recorded.step(1)["rng"] is None
    assert len(recorded.entries(kind="gradient", step=1)) == 14
    names = sorted(path.name for path in recorded.out.iterdir())
    assert names == ["manifest.json", "step00001-rank00000.safetensors"]


def test_a_process_that_dies_while_writing_leaves_no_half_file(tmp_path: Path) -> None:
    preload = tmp_path / "dying.py"
    preload.write_text(_DIE_WHILE_WRITING)
    recorded = run_recorded(
        tmp_path / "capture", sys.executable, str(PLAIN_LM), "one-step", options=("--preload", str(preload))
    )
    assert (recorded.code, recorded.manifest["exit_code"]) == (137, -9)
    assert [path.name for path in recorded.out.iterdir()] == ["manifest.json"]
    assert {"rank": 0, "step": None, "what": "step", "why": "its process ended before it had recorded one"} in (
        recorded.manifest["missing"]
    )


def test_a_preload_that_fails_ends_the_process_even_inside_a_try(tmp_path: Path) -> None:
    preload = tmp_path / "failing.py"
    preload.write_text("def install():\n    raise RuntimeError('nothing to break')\n")
    probing = "try:\n    import torch\nexcept BaseException:\n    pass\nprint('went on')"
    recorded = run_recorded(tmp_path / "capture", sys.executable, "-c", probing, options=("--preload", str(preload)))
    assert (recorded.code, recorded.stdout) == (70, "")
    assert f"preload file {preload} failed" in recorded.stderr
    assert "RuntimeError: nothing to break" in recorded.stderr
