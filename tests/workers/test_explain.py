"""`plumbline explain`: the failing checks of a written result, and what they may be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.workers.results import FAILED, PASSED, make_result
from workers.cli import main
from workers.explain import suggest_for
from workers.report.as_json import render_json
from workers.report.reading import read_result


def write(directory: Path, text: str) -> str:
    file = directory / "result.json"
    file.write_text(text)
    return str(file)


def test_each_failing_check_is_told_with_problems_reasons_and_addresses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    other = replace(FAILED, check="step.gradients", sentence="every gradient is 2× the reference \x1b[0m")
    assert main(["explain", write(tmp_path, render_json(make_result(PASSED, FAILED, other))), "--most", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if " fails: " in line] == [
        "step.denominator fails",
        "step.gradients fails",
    ]
    assert sum(line.startswith("  1. ") for line in lines) == sum(line.startswith("  2. ") for line in lines) == 2
    assert not any(line.startswith("  3. ") for line in lines)
    assert sum(line.startswith("     https://github.com/") for line in lines) == 4
    assert any("pattern objective-scale, as the verdict says" in line for line in lines)
    assert lines[-1].startswith("Problems are suggested and not decided")
    assert "\x1b" not in "".join(lines)


def test_a_finding_is_told_what_the_result_knows_of_its_run() -> None:
    result = replace(make_result(FAILED), environment={"trl": "0.14.0", "transformers": "4.46.0"})
    found = suggest_for(result, most=20)["step.denominator"]
    assert len(found) == 20
    affected = [each for each in found if any("an affected release is installed" in reason for reason in each.reasons)]
    assert affected
    assert all("4.46.0 is in " in each.reasons[0] or "0.14.0 is in " in each.reasons[0] for each in affected)
    assert found[0] in affected


def test_a_result_without_failures_has_nothing_to_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", write(tmp_path, render_json(make_result(PASSED)))]) == 0
    assert capsys.readouterr().out == "no check fails, so that there is nothing to explain\n"
    assert suggest_for(read_result(json.loads(render_json(make_result(PASSED)))), most=3) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("[]", "holds no object"),
        ('{"schema": "plumbline-comparison", "version": 1}', "this reads 'plumbline-result' 1"),
        ('{"schema": "plumbline-result", "version": 1}', "is not as docs/json.md describes it"),
        ("\udcff", "is no JSON"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    file = tmp_path / "result.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert main(["explain", str(file)]) == 3
    error = capsys.readouterr().err
    assert error.startswith("plumbline: result: ")
    assert said in error


@pytest.mark.parametrize("most", ["0", "21", "-1"])
def test_the_number_of_problems_has_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str], most: str) -> None:
    assert main(["explain", write(tmp_path, render_json(make_result(FAILED))), "--most", most]) == 3
    assert f"most: is {most}; give a number from 1 to 20" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tmp_path / "absent.json")]) == 3
    assert "absent.json cannot be read (No such file or directory)" in capsys.readouterr().err
