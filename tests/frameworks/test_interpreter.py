"""Which interpreter the frameworks run in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from checks.errors import BadRequest
from workers.frameworks.interpreter import VARIABLE, framework_python


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
