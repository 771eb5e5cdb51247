"""The reports of docs/reports: their text is what the generator writes, their scripts say what their output says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from plumbline_web.reports.rendering import list_files
from plumbline_web.reports.written import main, render_folder
from workers.environments.store import Store
from workers.sandbox import scrub_environment

REPORTS = Path(__file__).parents[2] / "docs" / "reports"
FOLDERS = sorted(folder.name for folder in REPORTS.iterdir() if folder.is_dir())

DIGITS = 4
"""of the numbers that another machine's kernels give alike"""


def run(name: str, tmp_path: Path, *, python: str = sys.executable, arguments: tuple[str, ...] = ()) -> tuple[int, str]:
    command = [python, "-W", "ignore", str(REPORTS / name / "reproduce.py"), *arguments]
    environment = scrub_environment(scratch=tmp_path, extra={})
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    return done.returncode, done.stdout


def numbers_of(output: str) -> list[str]:
    """Every number after the line of versions, to a few digits."""
    return [f"{float(number):.{DIGITS}g}" for number in re.findall(r"-?\d+\.\d{6,}", output)]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_report_is_what_the_generator_writes_from_its_folder(name: str, tmp_path: Path) -> None:
    assert sorted(file.name for file in (REPORTS / name).iterdir() if file.is_file()) == [
        *("output.txt", "report.md", "report.toml", "reproduce.py"),
    ]
    written = (REPORTS / name / "report.md").read_bytes()
    assert list_files(render_folder(REPORTS / name))["report.md"] == written
    for said in (b"WRONG", b"Not run: a GPU", b"https://github.com/", b"expected", b"observed"):
        assert said in written, said
    for file in ("reproduce.py", "report.toml"):
        assert "plumbline" not in (REPORTS / name / file).read_text().lower()


def test_a_folder_whose_fields_are_wrong_names_them(tmp_path: Path) -> None:
    (tmp_path / "report.toml").write_text('title = "t"\nother = 1\n')
    with pytest.raises(
        ValueError, match="cause, context, expected, limits, observed, other, summary, tracker is missing"
    ):
        main([str(tmp_path)])


@pytest.mark.skipif(version("transformers") != "5.24.0", reason="the report is of transformers 5.24.0")
@pytest.mark.parametrize("name", ["gpt-oss-eager-packed", "all-ones-mask-unpacks"])
def test_a_script_of_transformers_shows_its_fault(name: str, tmp_path: Path) -> None:
    code, output = run(name, tmp_path)
    assert code == 1
    assert numbers_of(output) == numbers_of((REPORTS / name / "output.txt").read_text())
    assert len(numbers_of(output)) >= 4


@pytest.mark.skipif(
    "PLUMBLINE_ENV_MEGATRON_CORE" not in os.environ, reason="PLUMBLINE_ENV_MEGATRON_CORE names no environment"
)
def test_the_script_of_megatron_shows_its_fault(tmp_path: Path) -> None:
    python = str(Store().find(os.environ["PLUMBLINE_ENV_MEGATRON_CORE"]).python)
    code, output = run("megatron-tp-norm", tmp_path, python=python)
    assert code == 1
    assert numbers_of(output) == numbers_of((REPORTS / "megatron-tp-norm" / "output.txt").read_text())


@pytest.mark.skipif(
    not {"PLUMBLINE_ENV_MILES", "PLUMBLINE_MILES_CHECKOUT"} <= set(os.environ),
    reason="PLUMBLINE_ENV_MILES and PLUMBLINE_MILES_CHECKOUT name no environment and no clone",
)
def test_the_script_of_miles_shows_its_fault(tmp_path: Path) -> None:
    python = str(Store().find(os.environ["PLUMBLINE_ENV_MILES"]).python)
    clone = os.environ["PLUMBLINE_MILES_CHECKOUT"]
    code, output = run("miles-cp-whitening", tmp_path, python=python, arguments=(clone,))
    assert code == 1
    assert numbers_of(output) == numbers_of((REPORTS / "miles-cp-whitening" / "output.txt").read_text())


def test_a_script_without_its_framework_judges_nothing(tmp_path: Path) -> None:
    code, output = run("megatron-tp-norm", tmp_path)
    assert (code, output) == (2, "not judged: No module named 'megatron'\n")
