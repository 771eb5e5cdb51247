"""Stand-ins: they are preloaded, the capture names them, and every verdict of such a run says what it is blind to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from checks.captures.capture import StandIn, open_capture
from checks.errors import BadRequest
from checks.faults import fault
from checks.verdict import Status, Verdict
from workers.frameworks.shims import find_shims, list_preload, name_stand_ins

SHIPPED = Path(__file__).parent / "shims"

SHIM = """
REPLACES: tuple[str, ...] = ("kernels.fast", "kernels.faster")
def install():
    import torch
    torch.stood_in = True
"""

TRAINING = """
import torch
assert torch.stood_in
model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ids = torch.tensor([[1, 2, 3]])
torch.nn.functional.cross_entropy(model(ids)[0], ids[0]).backward()
optimizer.step()
"""


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_run_with_a_stand_in_records_what_it_replaces(tmp_path: Path) -> None:
    shim, training = write(tmp_path, "fast_kernels.py", SHIM), write(tmp_path, "train.py", TRAINING)
    command = ["run", "--out", str(tmp_path / "capture"), "--steps", "1", "--preload", str(shim)]
    subprocess.run(
        [sys.executable, "-m", "plumbline_capture", *command, "--", sys.executable, str(training)],
        check=True,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    capture = open_capture(tmp_path / "capture")
    assert capture.stand_ins == (StandIn("fast_kernels", ("kernels.fast", "kernels.faster")),)


def test_the_variable_names_files_in_order_and_the_fault_comes_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = write(tmp_path, "one.py", SHIM), write(tmp_path, "two.py", 'REPLACES = ("other",)\n')
    monkeypatch.setenv("PLUMBLINE_SHIMS", f"{one}{os.pathsep}{two}")
    assert [(shim.file, shim.replaces) for shim in find_shims()] == [
        (one, ("kernels.fast", "kernels.faster")),
        (two, ("other",)),
    ]
    assert list_preload("trl", fault_slug="attention-scale") == (one, two, fault("attention-scale").file)
    monkeypatch.delenv("PLUMBLINE_SHIMS")
    assert list_preload("trl", fault_slug=None) == ()


def test_a_stand_in_that_states_frameworks_is_run_in_these_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = write(tmp_path, "every.py", SHIM)
    one = write(tmp_path, "one.py", f'{SHIM}FRAMEWORKS: tuple[str, ...] = ("automodel",)\n')
    monkeypatch.setenv("PLUMBLINE_SHIMS", f"{every}{os.pathsep}{one}")
    assert list_preload("automodel", fault_slug=None) == (every, one)
    assert list_preload("transformers", fault_slug=None) == (every,)
    assert len(find_shims()) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def install(): ...\n", "does not say what it replaces"),
        ("REPLACES = ()\n", "does not say what it replaces"),
        ("REPLACES = tuple(names)\n", "does not say what it replaces"),
        ("REPLACES = (\n", "cannot be read"),
    ],
)
def test_a_file_that_does_not_say_what_it_replaces_is_refused(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLUMBLINE_SHIMS", str(write(tmp_path, "shim.py", text)))
    with pytest.raises(BadRequest, match=said):
        find_shims()


def test_a_file_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUMBLINE_SHIMS", str(tmp_path / "none.py"))
    with pytest.raises(BadRequest, match="cannot be read"):
        find_shims()


def test_every_verdict_says_which_code_it_says_nothing_about() -> None:
    verdict = Verdict("step.loss", Status.PASS, "7 tokens agree.", evidence={"tokens": 7})
    assert name_stand_ins(verdict, ()) is verdict
    named = name_stand_ins(verdict, (StandIn("a", ("x", "y")), StandIn("b", ("y",))))
    assert named.sentence == "7 tokens agree (ran on tests' stand-in for x, y: says nothing about that code)"
    assert named.evidence == {
        "tokens": 7,
        "stand_ins": [{"name": "a", "replaces": ["x", "y"]}, {"name": "b", "replaces": ["y"]}],
    }
    skipped = Verdict("step.moe", Status.SKIPPED, "the model has no experts")
    assert name_stand_ins(skipped, (StandIn("a", ("x",)),)) is skipped


@pytest.mark.parametrize("file", sorted(SHIPPED.glob("*.py")), ids=lambda file: file.stem)
def test_the_stand_ins_of_these_tests_say_what_they_replace(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUMBLINE_SHIMS", str(file))
    (shim,) = find_shims()
    assert "def install" in shim.file.read_text()
