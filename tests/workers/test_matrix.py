"""plumbline matrix: cells, what is kept of them, and a broken-off one that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checks.errors import BadRequest
from checks.models.families import FAMILIES
from workers.cli import main
from workers.matrix.cells import Cell, Outcome, list_cells, read_outcome
from workers.matrix.command import FRAMEWORKS, PRECISIONS
from workers.matrix.report import render_markdown, summarize

CELL = Cell("trl", "tiny:qwen3", "bf16")


def document(*verdicts: tuple[str, str]) -> dict[str, Any]:
    listed = [{"check": check, "status": status, "sentence": f"{check} says so"} for check, status in verdicts]
    return {"verdicts": listed, "total_s": 2.5, "environment": {"trl": "1.16.0", "yarl": "1"}}


def kept(folder: Path, content: object) -> Path:
    (folder / "cell.json").write_text(json.dumps(content))
    return folder / "cell.json"


def test_by_default_it_is_twelve_families_in_two_precisions_on_four_frameworks() -> None:
    cells = list_cells(FRAMEWORKS, [f"tiny:{family}" for family in FAMILIES], PRECISIONS)
    assert len(cells) == len(set(cells)) == len({cell.name for cell in cells}) == 4 * 12 * 2
    assert cells[0] == Cell("transformers", "tiny:qwen2", "float32")
    assert CELL.name == "trl-qwen3-bf16"


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        ([("a", "pass"), ("b", "skipped")], "pass"),
        ([("a", "pass"), ("b", "inconclusive")], "inconclusive"),
        ([("a", "inconclusive"), ("b", "fail")], "fail"),
        ([("a", "fail"), ("b", "error")], "error"),
        ([("a", "skipped")], "skipped"),
    ],
)
def test_a_cell_is_called_after_its_worst_verdict(verdicts: list[tuple[str, str]], status: str, tmp_path: Path) -> None:
    outcome = read_outcome(CELL, kept(tmp_path, document(*verdicts)))
    assert outcome is not None
    assert outcome.status == status
    assert outcome.passed == sum(each == "pass" for _, each in verdicts)
    assert outcome.reasons == {name: f"{name} says so" for name, each in verdicts if each not in ("pass", "skipped")}
    assert outcome.seconds == 2.5


def test_what_is_not_kept_is_none_and_what_is_no_result_is_named(tmp_path: Path) -> None:
    assert read_outcome(CELL, tmp_path / "cell.json") is None
    with pytest.raises(BadRequest, match=r"cell\.json is no result of a cell"):
        read_outcome(CELL, kept(tmp_path, {"verdicts": [{}]}))


def test_the_page_gives_a_reason_for_all_that_is_no_pass() -> None:
    outcomes = [
        Outcome(CELL, "pass", 17, {}, 1.0, {"trl": "1.16.0", "torch": "2.13.0", "yarl": "1"}),
        Outcome(Cell("trl", "tiny:llama", "bf16"), "fail", 16, {"step.loss": "off by 2"}, 1.0, {}),
        Outcome(Cell("ms_swift", "tiny:llama", "bf16"), "skipped", 0, {"request": "framework: not there."}, 0.0, {}),
    ]
    assert summarize(outcomes) == "1 pass, 1 fail, 1 skipped"
    page = render_markdown(outcomes)
    assert "| model | trl, bf16 | ms_swift, bf16 |" in page
    assert "| tiny:qwen3 | pass (17) |  |" in page
    assert "| tiny:llama | fail: step.loss | skipped |" in page
    assert "- trl: torch 2.13.0, trl 1.16.0\n- ms_swift: not run" in page
    assert "- **trl, tiny:llama, bf16: fail**\n  - step.loss: off by 2" in page
    assert "- **ms_swift, tiny:llama, bf16: skipped**\n  - request: framework: not there." in page


@pytest.mark.usefixtures("_shared_cache")
def test_a_matrix_goes_on_where_it_was_broken_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["matrix", "--frameworks", "plain,ms_swift", "--models", "tiny:qwen3", "--precisions", "float32"]
    asked += ["--checks", "run.completes,step.loss", "--out", str(tmp_path)]
    assert main(asked) == 0
    first = tmp_path / "cells" / "plain-qwen3-float32.json"
    assert {each["check"]: each["status"] for each in json.loads(first.read_text())["verdicts"]} == {
        "run.completes": "pass",
        "step.loss": "pass",
    }
    refused = json.loads((tmp_path / "cells" / "ms_swift-qwen3-float32.json").read_text())["refused"]
    assert refused.startswith("framework: ms_swift is not installed in ")
    assert "1 pass, 1 skipped" in capsys.readouterr().out
    changed = {**json.loads(first.read_text()), "verdicts": document(("step.loss", "fail"))["verdicts"]}
    first.write_text(json.dumps(changed))
    assert main(asked) == 1  # nothing ran: the cell is what its file says
    assert json.loads(first.read_text()) == changed
    assert "fail: step.loss" in (tmp_path / "matrix.md").read_text()
    assert main([*asked, "--again", "fail"]) == 0
    capsys.readouterr()
    whole = first.read_text()
    first.write_text(whole[: len(whole) // 2])
    assert main(asked) == 0
    said = capsys.readouterr().err
    assert f"{first} is no result of a cell (JSONDecodeError: " in said
    assert "; the cell is run anew\n1 of 2: plain, tiny:qwen3, float32\n" in said
    assert [each["status"] for each in json.loads(first.read_text())["verdicts"]] == ["pass", "pass"]


def test_a_name_that_is_none_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["matrix", "--env", "axolotl=there", "--out", str(tmp_path)]) == 3
    assert "env: 'axolotl=there' is not FRAMEWORK=NAME of this matrix" in capsys.readouterr().err
    assert main(["matrix", "--frameworks", "trll", "--out", str(tmp_path)]) == 3
    assert "frameworks: 'trll' is not known; use automodel, " in capsys.readouterr().err
    assert main(["matrix", "--precisions", "bf17", "--out", str(tmp_path)]) == 3
    assert "precisions: 'bf17' is not known; use float32, bf16, " in capsys.readouterr().err
    assert main(["matrix", "--again", "foo", "--out", str(tmp_path)]) == 3
    assert "again: 'foo' is not known; use error, fail, inconclusive, pass, skipped." in capsys.readouterr().err
    assert main(["matrix", "--models", "tiny:nope", "--out", str(tmp_path)]) == 3
    assert "model: " in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["matrix", "--models", "tiny:llama", "--out", str(tmp_path / "file")]) == 3
    assert "cannot be made a directory (Not a directory); name a new directory." in capsys.readouterr().err
    assert main(["matrix", "--env", "trl=there", "--server", "--out", str(tmp_path)]) == 3
    assert "env: environments are of this machine; leave --server out." in capsys.readouterr().err


@pytest.mark.parametrize("option", ["frameworks", "models", "precisions", "checks", "again"])
def test_an_empty_list_of_names_is_refused(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["matrix", f"--{option}", "", "--out", str(tmp_path)])
    assert ending.value.code == 3
    assert f"argument --{option}: '' has an empty name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "option"),
    [("precision=bf16", "precisions"), ("model=tiny:qwen3", "models"), ("framework=trl", "frameworks")],
)
def test_a_setting_that_the_cells_differ_in_is_refused(
    setting: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["matrix", "--set", "steps=1", "--set", setting, "--precisions", "float32", "--out", str(tmp_path)]) == 3
    )
    name = setting.partition("=")[0]
    assert capsys.readouterr().err == f"plumbline: set: {name} is what the cells differ in; give --{option}.\n"
    assert not list(tmp_path.iterdir())
