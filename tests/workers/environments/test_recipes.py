"""Recipes: what is left out on a machine without a GPU, why, and that the environment says so from then on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.workers.environments.test_environments import releases, store, write_wheel
from workers.cli import main
from workers.environments.recipes import LeftOut, Recipe, find_recipe, parse_recipes
from workers.environments.store import Store, make_key

__all__ = ["releases", "store"]

TRITON = "without triton: compiles kernels for a GPU; flashoptim asks for it"


@pytest.fixture
def automodel(releases: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small wheels that require what AutoModel's do, on a machine without a GPU; there are none of what is left out."""
    needs = (
        "quack-kernels==0.6.4",
        "flashoptim>=0.1.3",
        "helper>=2",
        'other; extra == "all"',
        "trainer==9; python_version < '3'",
    )
    write_wheel(releases, "nemo_automodel", "0.7.0", code="import flashoptim, helper, torch", needs=needs)
    write_wheel(releases, "flashoptim", "0.1.4", needs=("triton>=3.0.0", "torch"))
    write_wheel(releases, "torch", "2.13.0")
    write_wheel(releases, "torch", "2.14.0", needs=("triton",))
    monkeypatch.setattr("workers.environments.building.has_gpu", lambda: False)
    return releases


def test_what_only_a_gpu_runs_is_left_out_and_said_so(
    automodel: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["env", "create", "nemo-automodel==0.7.0"]) == 0
    shown = capsys.readouterr().out
    assert "nemo-automodel-0.7.0: built in " in shown
    assert TRITON in shown.splitlines()
    built = store.find("nemo-automodel-0.7.0").built
    assert built is not None
    assert built.packages == ("flashoptim==0.1.4", "helper==2.5", "nemo-automodel==0.7.0", "torch==2.13.0")
    assert [each.name for each in built.left_out] == ["quack-kernels", "triton", "transformer-engine", "flash-attn"]
    assert built.key == make_key(python=built.python, packages=built.packages, left_out=built.left_out)
    assert built.key != make_key(python=built.python, packages=built.packages)
    manifest = json.loads((store.directory(built.key) / "environment.json").read_text())
    assert manifest["left_out"][1] == {"name": "triton", "reason": "compiles kernels for a GPU; flashoptim asks for it"}
    assert main(["env", "create", "nemo-automodel==0.7.0", "--name", "again"]) == 0
    assert "again: was there already" in capsys.readouterr().out
    assert main(["env", "list"]) == 0
    assert f"  {TRITON}" in capsys.readouterr().out.splitlines()
    assert main(["env", "check", "again"]) == 0
    site = next(store.directory(built.key).glob("lib/python*/site-packages"))
    (site / "triton-3.9.0.dist-info").mkdir()
    (site / "triton-3.9.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: triton\nVersion: 3.9.0\n")
    capsys.readouterr()
    assert main(["env", "check", "again"]) == 1
    assert capsys.readouterr().out == "again: triton 3.9.0 is there now; it was left out\n"


def test_with_a_gpu_nothing_is_left_out(
    automodel: Path, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("workers.environments.building.has_gpu", lambda: True)
    assert main(["env", "create", "nemo-automodel==0.7.0"]) == 3
    assert "the requirement quack-kernels==0.6.4" in capsys.readouterr().err  # there is none


def test_another_torch_is_taken_where_it_is_asked_for() -> None:
    asked = [Requirement("nemo-automodel==0.7.0"), Requirement("torch==2.14.0"), Requirement("Triton==3.9")]
    recipe = find_recipe(asked, gpu=False)
    assert recipe.requires == ()
    assert [each.name for each in recipe.left_out] == ["quack-kernels", "transformer-engine", "flash-attn"]
    assert recipe.alone == ("nemo-automodel", "flashoptim")


def test_the_recipes_of_all_that_is_asked_for_are_one() -> None:
    wish = [Requirement("megatron-core==0.16.1"), Requirement("mcore_bridge==1.6.5"), Requirement("ms-swift==4.6.0")]
    recipe = find_recipe(wish, gpu=False)
    # mcore-bridge imports triton, which torch for a CPU has not, and ms-swift msgspec
    assert recipe.requires == ("torch==2.13.0", "triton", "msgspec")
    assert [each.name for each in recipe.left_out] == ["transformer-engine", "apex", "flash-attn"]
    assert find_recipe(wish, gpu=True) == Recipe("megatron-core", ("torch==2.13.0", "triton", "msgspec"))
    assert find_recipe([Requirement("trl==1.16.0")], gpu=False) == Recipe("")


def test_a_recipe_is_read_with_canonical_names() -> None:
    left_out = [{"name": "Flash_Attn", "reason": "kernels"}]
    table = {"distribution": "A_b", "requires": ["torch==2"], "alone": ["C.d"], "left_out": left_out}
    assert parse_recipes({"recipe": [table]}) == (
        Recipe("a-b", ("torch==2",), ("c-d",), (LeftOut("flash-attn", "kernels"),)),
    )
    assert parse_recipes({"framework": "trl"}) == ()
