"""The registry and the files agree, and a file stands alone."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from checks.errors import BadRequest
from checks.faults import FAULTS, Fault, fault, was_in_force
from checks.registry import CHECKS
from workers.settings import parse_settings

DIRECTORY = Path(importlib.util.find_spec("checks.faults").origin).parent  # type: ignore[union-attr, arg-type]
MUST_SHOW = {
    *("wrong-loss-count", "labels-shifted-twice", "rmsnorm-eps", "attention-scale"),
    *("weight-scaled", "decay-on-norms", "clip-before-accumulation", "adapter-frozen"),
}

every_fault = pytest.mark.parametrize("each", FAULTS, ids=lambda each: each.slug)


def test_the_registry_has_every_file_and_every_file_an_entry() -> None:
    assert sorted(each.file for each in FAULTS) == sorted(set(DIRECTORY.glob("*.py")) - {DIRECTORY / "__init__.py"})
    assert len({each.slug for each in FAULTS}) == len(FAULTS)
    assert {each.slug for each in FAULTS} >= MUST_SHOW


@every_fault
def test_the_docstring_says_what_the_registry_says(each: Fault) -> None:
    docstring = ast.get_docstring(ast.parse(each.file.read_text()))
    assert docstring is not None
    assert f"Must be seen by {each.check}." in docstring
    assert each.url in docstring
    assert each.problem is None or each.problem in docstring
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", each.url)


@every_fault
def test_the_file_imports_nothing_of_this_tree_and_torch_only_on_installation(each: Fault) -> None:
    tree = ast.parse(each.file.read_text())
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[0] in {*sys.stdlib_module_names, "torch"}, name
    for node in tree.body:
        if isinstance(node, ast.Import):
            assert all(not alias.name.startswith("torch") for alias in node.names)


@every_fault
def test_the_check_that_must_see_it_exists_and_its_settings_are_settings(each: Fault) -> None:
    assert each.check in CHECKS
    assert len(parse_settings(each.settings, defaults={})) == len(each.settings)


def test_a_helper_that_several_files_carry_is_the_same_in_each() -> None:
    texts: dict[str, set[str]] = {}
    for each in FAULTS:
        source = each.file.read_text()
        for node in ast.parse(source).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in (
                *("_say", "_after_import", "_Finder", "_after_loading", "_after_collating", "_before_writing"),
                *("_after_rendering", "_find_runs", "_layers", "_around_loss", "_after_backward", "_after_creating"),
            ):
                texts.setdefault(node.name, set()).add(ast.get_source_segment(source, node) or "")
    assert {name: len(versions) for name, versions in texts.items()} == dict.fromkeys(texts, 1)
    assert len(texts) == 12


def test_a_fault_is_found_by_its_slug() -> None:
    assert fault("rmsnorm-eps").file.name == "rmsnorm_eps.py"


def test_an_unknown_fault_offers_the_nearest_names() -> None:
    with pytest.raises(BadRequest) as caught:
        fault("rmsnorm-epsilon")
    assert str(caught.value) == "inject: there is no fault 'rmsnorm-epsilon'; did you mean rmsnorm-eps."
    with pytest.raises(BadRequest, match="`plumbline faults` lists them"):
        fault("zzz")


def test_a_fault_was_in_force_only_if_the_log_says_so(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("step 1\nfault in force: rmsnorm-eps: eps of 9 norms times 10\n")
    assert was_in_force(fault("rmsnorm-eps"), log=log)
    assert not was_in_force(fault("attention-scale"), log=log)
    log.write_text("the fault rmsnorm-eps is asked for\n")
    assert not was_in_force(fault("rmsnorm-eps"), log=log)


def test_a_patch_waits_for_the_import_and_survives_a_probe(tmp_path: Path) -> None:
    package = tmp_path / "transformers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "trainer.py").write_text(
        "class Trainer:\n    def _get_num_items_in_batch(self, batches):\n        return len(batches)\n"
    )
    code = (
        "import importlib.util, runpy, sys\n"
        f"runpy.run_path({str(fault('wrong-loss-count').file)!r})['install']()\n"
        "assert 'transformers.trainer' not in sys.modules\n"
        "assert importlib.util.find_spec('transformers.trainer') is not None\n"
        "from transformers.trainer import Trainer\n"
        "print(Trainer()._get_num_items_in_batch([0] * 7))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "8\n"
    assert done.stderr == "fault in force: wrong-loss-count: the loss is divided by 8, not by 7\n"


def test_a_fault_that_finds_nothing_to_act_on_says_so(tmp_path: Path) -> None:
    code = (
        "import runpy\n"
        "class Model:\n"
        "    def modules(self): return []\n"
        f"runpy.run_path({str(fault('rmsnorm-eps').file)!r})['_change'](Model())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: fault rmsnorm-eps: Model has no RMSNorm with an eps\n")
