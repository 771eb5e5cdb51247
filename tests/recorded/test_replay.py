"""Captures of real runs of each framework, judged again: no framework needs to be installed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from checks.assemble import assemble
from checks.captures.capture import open_capture
from checks.material import RunOutcome
from checks.models import resolve_model
from checks.registry import find_checks
from checks.roles import Role
from checks.samples import resolve_data
from checks.spec import RunSpec
from tests.recorded.packing import ROOT
from workers.judging import judge

CASES = sorted(file.relative_to(ROOT).with_suffix("").as_posix() for file in ROOT.rglob("*.json"))


@pytest.mark.usefixtures("_shared_cache")
@pytest.mark.parametrize("case", CASES)
def test_a_recorded_run_is_judged_as_when_it_ran(case: str, tmp_path: Path) -> None:
    described = json.loads((ROOT / f"{case}.json").read_text(encoding="utf-8"))
    with tarfile.open(ROOT / f"{case}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    asked = described["request"]
    wanted = described["verdicts"]
    # Not asked of the adapter: on this machine it may refuse what stand-ins made possible where the run was recorded.
    spec = RunSpec(
        asked["framework"],
        resolve_model(asked["model"]).path,
        resolve_data(asked["data"]),
        **{name: tuple(value) if isinstance(value, list) else value for name, value in asked["settings"].items()},
    )
    outcomes = {
        Role(folder.name): RunOutcome("completed", 0, 0.0, None, open_capture(folder), None)
        for folder in tmp_path.iterdir()
    }
    checks = find_checks(tuple(wanted))
    referred = any(check.reference for check in checks)
    verdicts = judge(checks, assemble(spec, outcomes, references=referred, definition=False))
    found = {name: (str(verdict.status.value), verdict.sentence) for name, verdict in verdicts.items()}
    assert {name: status for name, (status, _) in found.items()} == wanted, found
    for name, said in described.get("says", {}).items():
        assert said in found[name][1]


def test_frameworks_of_other_environments_have_recorded_runs() -> None:
    assert {"automodel", "megatron_core", "megatron_swift", "miles", "ms_swift"} <= {
        case.split("/")[0] for case in CASES
    }
