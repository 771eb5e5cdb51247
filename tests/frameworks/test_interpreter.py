"""Which interpreter the frameworks run in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from checks.errors import BadRequest
from workers.frameworks.interpreter import VARIABLE, framework_python
from workers.frameworks.processes import build_launch


@pytest.mark.usefixtures("cold")
def test_it_is_this_one_where_none_is_named() -> None:
    assert framework_python() == sys.executable


def test_an_empty_name_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    assert framework_python() == sys.executable


def test_it_is_the_named_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    monkeypatch.setenv(VARIABLE, str(python))
    assert framework_python() == str(python)


@pytest.mark.usefixtures("cold")
def test_a_framework_may_have_one_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    monkeypatch.setenv(f"{VARIABLE}_MS_SWIFT", str(python))
    assert framework_python("ms_swift") == str(python)
    assert framework_python("trl") == framework_python() == sys.executable
    launch = build_launch(Path("frameworks", "ms_swift", "train.py"), Path("config.json"), processes=1)
    assert launch[0] == str(python)
    monkeypatch.setenv(VARIABLE, sys.executable)
    assert framework_python("ms_swift") == sys.executable  # what `--env` names comes first
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv(f"{VARIABLE}_MS_SWIFT", str(tmp_path))
    with pytest.raises(BadRequest, match=f"{VARIABLE}_MS_SWIFT: .* is not an executable file"):
        framework_python("ms_swift")


@pytest.mark.parametrize("found", ["missing", "a directory", "not executable"])
def test_what_cannot_be_executed_is_refused(found: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    if found == "a directory":
        python.mkdir()
    elif found == "not executable":
        python.touch(0o644)
    monkeypatch.setenv(VARIABLE, str(python))
    with pytest.raises(BadRequest, match=f"{VARIABLE}: .*python is not an executable file; name the Python"):
        framework_python()
