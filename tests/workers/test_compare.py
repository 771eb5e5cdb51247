"""`plumbline compare`: what two captures of the same and of different runs show."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parallel.making import Held, RankPart, make_capture
from workers import cli
from workers.frameworks.interpreter import framework_python

TRAIN = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7))
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
for step in range(2):
    rows = torch.tensor([[1, 2, 3], [4, 5, 6]])
    loss = torch.nn.functional.cross_entropy(model(rows).flatten(0, 1), rows.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("captures")
    made = {}
    for name, lr in (("first", "0.5"), ("faster", "1.0")):
        made[name] = directory / name
        command = [sys.executable, "-m", "plumbline_capture", "run", "--out", str(made[name]), "--steps", "2"]
        subprocess.run(
            [*command, "--", framework_python(), "-c", TRAIN, lr], check=True, capture_output=True, timeout=300
        )
    made["copy"] = directory / "copy"
    shutil.copytree(made["first"], made["copy"])
    return made


def test_equal_captures_are_equal_and_code_0(captures: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", str(captures["first"]), str(captures["copy"])]) == 0
    assert " tensors compared, 0 differ\n" in capsys.readouterr().out


def test_different_runs_are_code_1_with_the_first_difference_and_the_setting(
    captures: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "comparison.json"
    arguments = ["compare", str(captures["first"]), str(captures["faster"]), "--json", str(target)]
    assert cli.main(arguments) == 1
    out = capsys.readouterr().out
    document = json.loads(target.read_text())
    different = [row for row in document["rows"] if row["relative"] not in (0.0, None)]
    assert f"{len(document['rows'])} tensors compared, {len(different)} differ\n" in out
    assert f"first to differ in the order of the step: {different[0]['kind']} {different[0]['name']}" in out
    assert "setting step 2: lr of group 0: 0.5 and 1.0\n" in out
    assert (document["schema"], document["equal"]) == ("plumbline-comparison", False)
    assert {"name": "step 2: lr of group 0", "a": 0.5, "b": 1.0} in document["settings"]
    assert {row["kind"] for row in different} >= {"gradient", "parameter_after"}


def test_the_table_is_sorted_by_size_of_the_difference(
    captures: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["compare", str(captures["first"]), str(captures["faster"])])
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    shown = [float(row[2]) for row in rows if row[2].strip()]
    assert len(shown) > 3
    assert shown == sorted(shown, reverse=True)


def test_a_difference_of_another_rank_is_code_1_and_named_with_its_rank(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def make(name: str, *values: float, **options: Any) -> str:
        ranks = [RankPart(rank, (Held("norm", torch.full((4,), value)),)) for rank, value in enumerate(values)]
        make_capture(tmp_path / name, ranks, **options)
        return str(tmp_path / name)

    a, copy = make("a", 1.0, 2.0), make("copy", 1.0, 2.0)
    assert cli.main(["compare", a, copy]) == 0
    assert capsys.readouterr().out == "2 tensors compared, 0 differ\n"
    assert cli.main(["compare", a, make("zeroed", 1.0, 0.0), "--json", str(tmp_path / "c.json")]) == 1
    assert "first to differ in the order of the step: gradient norm (step 1 of rank 1)\n" in capsys.readouterr().out
    assert [row["rank"] for row in json.loads((tmp_path / "c.json").read_text())["rows"]] == [0, 1]
    note = {"rank": 1, "step": 1, "what": "step", "why": "its process ended before it had recorded one"}
    assert cli.main(["compare", a, make("alone", 1.0, missing=[note])]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "only in the first capture: 1, such as rank 1, all of it" in out
    assert f"missing in the second capture: 1, such as step (step 1 of rank 1): {note['why']}" in out
    manifest = tmp_path / "copy" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "exit_code": 1}))
    assert cli.main(["compare", a, copy]) == 1
    assert "the commands ended with the exit codes None and 1\n" in capsys.readouterr().out
