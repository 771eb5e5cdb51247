"""Faults of rewards, ORPO and KTO: each changes the lines of the installed trainer that it names, and says so."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from checks.faults import Fault, fault
from checks.faults.entries.rewards import REWARD_FAULTS

every_fault = pytest.mark.parametrize("each", REWARD_FAULTS, ids=lambda each: each.slug)


def read_source(module: str) -> str:
    """The source of an installed module, whose packages are found without importing it."""
    package, *rest = module.split(".")
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.joinpath(*rest).with_suffix(".py").read_text()


@every_fault
def test_the_installed_trainer_has_the_lines_that_are_changed(each: Fault) -> None:
    names = runpy.run_path(str(each.file))
    source = read_source(names["MODULE"])
    changed = names["_rewrite"](source)
    compile(changed, "trainer", "exec")
    assert changed != source
    for before, after in names["CHANGES"]:
        assert (source.count(before), after in changed) == (1, True)
    assert "_take_effect()" in changed.replace("def _take_effect():", "")
    assert f"fault in force: {each.slug}: {names['DETAIL']}" in changed


@every_fault
def test_a_trainer_that_says_something_else_is_refused(each: Fault) -> None:
    with pytest.raises(RuntimeError, match=rf"fault {each.slug}: .* 0 times, not once"):
        runpy.run_path(str(each.file))["_rewrite"]("x = 1\n")


def test_the_changed_lines_run_and_say_so(tmp_path: Path) -> None:
    package = tmp_path / "trl" / "trainer"
    package.mkdir(parents=True)
    for directory in (package, package.parent):
        (directory / "__init__.py").touch()
    (package / "grpo_trainer.py").write_text(
        "def center(rewards, mean_grouped_rewards):\n"
        "    if True:\n"
        "        if True:\n"
        "            advantages = rewards - mean_grouped_rewards\n"
        "    return advantages\n"
    )
    code = (
        "import runpy\n"
        f"runpy.run_path({str(fault('advantages-not-centred').file)!r})['install']()\n"
        "from trl.trainer.grpo_trainer import center\n"
        "print(center(5.0, 2.0))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "5.0\n"
    assert done.stderr == "fault in force: advantages-not-centred: the mean of a group stays in its advantages\n"
