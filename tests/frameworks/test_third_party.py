"""An adapter of a distribution of its own: docs/adapters.md is followed to the letter."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "adapters.md"
LONGEST = 100
PASSING = {
    *("run.completes", "data.template", "data.mask", "data.coverage", "step.precision", "step.settings", "step.loss"),
    *("step.denominator", "step.gradients", "step.update", "step.schedule", "step.frozen", "step.accumulation"),
    "model.definition",
}


def read_block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert found is not None
    return found.group(1)


def install(folder: Path, code: str, *, points: str) -> dict[str, str]:
    """What pip leaves of a distribution, and an environment that sees it."""
    (folder / "plumbline_loop.py").write_text(code)
    information = folder / "plumbline_loop-0.1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plumbline-loop\nVersion: 0.1.0\n")
    (information / "entry_points.txt").write_text(f"[plumbline.frameworks]\n{points}\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "plumbline_web.cli", "validate", "--local", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_document_s_adapter_is_short() -> None:
    assert len(read_block("python").splitlines()) + len(read_block("toml").splitlines()) < LONGEST


@pytest.mark.usefixtures("_shared_cache")
def test_the_document_s_adapter_is_validated_like_any_other(tmp_path: Path) -> None:
    stated = tomllib.loads(read_block("toml"))["project"]["entry-points"]["plumbline.frameworks"]
    points = "\n".join(f"{name} = {value}" for name, value in stated.items())
    environment = install(tmp_path, read_block("python"), points=points)
    texts = tmp_path / "texts.jsonl"
    rows = [json.dumps({"text": f"Row {number} counts {number} hens in {number % 7} rows."}) for number in range(24)]
    texts.write_text("\n".join(rows) + "\n")
    result = tmp_path / "result.json"
    asked = ("--framework", "loop", "--model", "tiny:qwen3", "--data", str(texts))
    done = run(environment, *asked, "--json", str(result))
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = {each["check"]: each["status"] for each in json.loads(result.read_text())["verdicts"]}
    assert {name for name, status in verdicts.items() if status == "pass"} >= PASSING
    refused = run(environment, *asked, "--set", "warmup_steps=2")
    assert refused.returncode == 3
    assert refused.stderr.strip() == "plumbline: warmup_steps: loop knows no such setting; leave warmup_steps out."


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import nothing_of_that_name", "cannot be loaded (ModuleNotFoundError: No module named"),
        ("class LoopAdapter:\n    name = 'loop'", "has no check, prepare, read_log; make it an adapter called 'loop'"),
        ("class LoopAdapter:\n    name = 'x'\n    check = prepare = read_log = print", "calls itself 'x'; make it"),
    ],
)
def test_one_that_is_no_adapter_is_named_with_its_distribution(code: str, sentence: str, tmp_path: Path) -> None:
    environment = install(tmp_path, code, points="loop = plumbline_loop:LoopAdapter")
    done = run(environment, "--framework", "loop", "--model", "tiny:qwen3", "--data", "tulu3_sample")
    assert done.returncode == 3
    assert "framework: plumbline_loop:LoopAdapter of plumbline-loop" in done.stderr
    assert sentence in done.stderr


def test_a_name_that_ships_is_not_replaced(tmp_path: Path) -> None:
    environment = install(tmp_path, "raise SystemExit('never')", points="trl = plumbline_loop:LoopAdapter")
    script = "from workers.frameworks import adapter; print(type(adapter('trl')).__module__)"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "workers.frameworks.trl.adapter"
