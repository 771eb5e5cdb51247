"""The JSON and JUnit documents are complete, valid, and written as a whole or not at all."""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from checks.errors import BadRequest
from checks.spec import RunSpec
from checks.verdict import Measurement, Verdict
from tests.workers.results import FAILED, PASSED, SKIPPED, make_result
from workers.report import check_writable, render_json, render_junit, write_whole
from workers.report.as_json import to_plain
from workers.request import PhaseTime, ValidationRequest
from workers.runner import FrameworkRun

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "json.md"


def _read(*verdicts: Verdict, directory: Path = Path("gone")) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    document: dict[str, Any] = json.loads(
        render_json(make_result(*verdicts, directory=directory)), parse_constant=refuse
    )
    return document


def test_the_document_holds_everything_of_the_result() -> None:
    document = _read()
    assert list(document) == [
        *("schema", "version", "plumbline", "created", "exit_code", "request", "spec", "environment"),
        *("phases", "total_s", "runs", "verdicts", "warnings"),
    ]
    assert (document["schema"], document["version"], document["exit_code"]) == ("plumbline-result", 1, 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", document["created"])
    assert set(document["request"]) == {field.name for field in fields(ValidationRequest)}
    assert set(document["spec"]) == {field.name for field in fields(RunSpec)}
    assert set(document["runs"][0]) == {field.name for field in fields(FrameworkRun)}
    assert set(document["phases"][0]) == {field.name for field in fields(PhaseTime)}
    assert document["total_s"] == 20.75
    assert document["request"]["settings"] == {"batch": 2, "lora_targets": ["q_proj"]}
    assert document["environment"] == {"python": "3.11.7", "torch": "2.13.0"}
    assert document["warnings"] == ["weights are random"]


def test_a_verdict_is_complete_with_its_measurements_and_limits() -> None:
    passed, failed = _read(PASSED, FAILED)["verdicts"]
    assert set(passed) == {field.name for field in fields(Verdict)} | {"detection_limit"}
    assert set(passed["measurements"][0]) == {field.name for field in fields(Measurement)}
    assert passed["measurements"][1] == {
        "name": "lm_head.weight",
        "value": 3e-6,
        "threshold": 5e-6,
        "holds": True,
        "floor": 1e-6,
        "limit": 5.1e-6,
        "block": "rows",
        "unit": "relative error",
    }
    assert passed["detection_limit"] == 4.2e-5
    assert passed["detection_limits"] == {"lm_head": 5.1e-6, "q_proj": 4.2e-5, "norm": 1e-6}
    assert (failed["status"], failed["pattern"], failed["first_wrong"]) == (
        *("fail", "objective-scale", "num_items_in_batch"),
    )
    assert failed["detection_limit"] is None


def test_numbers_that_json_does_not_know_become_words() -> None:
    (failed,) = _read(FAILED)["verdicts"]
    assert failed["evidence"] == {"ratio": "nan", "worst": "inf", "least": "-inf", "path": "a/b", "n": [1, 2]}


def test_arrays_sets_and_scalars_become_lists_and_numbers() -> None:
    assert to_plain(np.float64(0.5)) == 0.5
    assert to_plain(torch.tensor([1.0, float("nan")])) == [1.0, "nan"]
    assert to_plain({"b", "a"}) == ["a", "b"]
    assert to_plain({1: np.int64(3)}) == {"1": 3}
    assert to_plain(True) is True
    assert to_plain(None) is None


def test_paths_of_files_that_are_gone_are_left_out(tmp_path: Path) -> None:
    (run,) = _read()["runs"]
    assert (run["log"], run["capture"]) == (None, None)
    (tmp_path / "run.log").touch()
    (tmp_path / "capture").mkdir()
    (run,) = _read(directory=tmp_path)["runs"]
    assert (run["log"], run["capture"]) == (str(tmp_path / "run.log"), str(tmp_path / "capture"))


def test_every_field_is_documented() -> None:
    documented = set(re.findall(r"^\| `([a-z0-9_]+)`", DOCUMENTATION.read_text(), re.MULTILINE))
    document = _read()
    written = set(document) | set(document["runs"][0]) | set(document["phases"][0]) | set(document["request"])
    written |= set(document["verdicts"][0]) | set(document["verdicts"][0]["measurements"][0])
    assert written - documented == set()
    assert documented - written == set()


def _parse_junit(*verdicts: Verdict) -> ElementTree.Element:
    return ElementTree.fromstring(render_junit(make_result(*verdicts)))


def test_a_test_case_stands_for_each_check() -> None:
    suite = _parse_junit()
    assert suite.tag == "testsuite"
    assert {name: suite.get(name) for name in ("name", "tests", "failures", "errors", "skipped", "time")} == {
        "name": "plumbline.trl",
        "tests": "5",
        "failures": "1",
        "errors": "2",
        "skipped": "1",
        "time": "20.750",
    }
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [
        *("step.gradients", "step.denominator", "step.update", "step.loss", "data.packing"),
    ]
    assert {case.get("classname") for case in cases} == {"plumbline.trl.tiny:qwen3"}
    assert [case.get("time") for case in cases] == ["0.250", "0.500", "0.000", "0.000", "0.000"]


def test_verdicts_become_the_elements_that_ci_servers_know() -> None:
    passed, failed, unsure, broken, skipped = _parse_junit().findall("testcase")
    assert list(passed) == []
    assert [(child.tag, child.get("type")) for child in failed] == [("failure", "objective-scale")]
    assert failed[0].get("message") == FAILED.sentence
    assert [(child.tag, child.get("type")) for child in unsure] == [("error", "inconclusive")]
    assert [(child.tag, child.get("type")) for child in broken] == [("error", "error")]
    assert [(child.tag, child.get("message")) for child in skipped] == [("skipped", SKIPPED.sentence)]


def test_a_failure_carries_its_numbers() -> None:
    (failure,) = _parse_junit(FAILED)[1]
    assert failure.text == (
        f"{FAILED.sentence}\nfirst wrong: num_items_in_batch\nagrees: 1.00e-09 / 1.00e-06, holds\n"
        "denominator: 113 / 112 tokens, does not hold"
    )


def test_characters_that_xml_forbids_are_replaced() -> None:
    broken = _parse_junit().findall("testcase")[3][0]
    assert broken.get("message") == "the judge broke: KeyError 'x'\ufffd[0m"


def test_what_was_asked_is_in_the_properties() -> None:
    properties = {each.get("name"): each.get("value") for each in _parse_junit().iter("property")}
    assert properties == {
        "model": "tiny:qwen3",
        "data": "gsm8k_sample",
        "inject": "",
        "set.batch": "2",
        "set.lora_targets": "('q_proj',)",
    }


def test_a_writable_path_passes_and_nothing_is_left(tmp_path: Path) -> None:
    check_writable(tmp_path / "new.json", field="json")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old.json").write_text("old")
    check_writable(tmp_path / "old.json", field="json")
    assert (tmp_path / "old.json").read_text() == "old"


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"^json: .* is a directory; name a file\.$"):
        check_writable(tmp_path, field="json")
    with pytest.raises(BadRequest, match=r"^junit: .*no is not a directory; make it"):
        check_writable(tmp_path / "no" / "a.xml", field="junit")
    (tmp_path / "file").touch()
    with pytest.raises(BadRequest, match=r"^json: .*file is not a directory"):
        check_writable(tmp_path / "file" / "a.json", field="json")
    with pytest.raises(BadRequest, match=r"^json: .* cannot be written"):
        check_writable(Path("/proc/a.json"), field="json")


def test_a_file_appears_whole_and_without_a_temporary_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    write_whole(target, "new ●")
    assert target.read_text(encoding="utf-8") == "new ●"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(target, "\ud800")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]
