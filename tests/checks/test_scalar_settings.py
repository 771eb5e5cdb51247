"""step.settings: scalar settings of modules against those that the config asks."""

from __future__ import annotations

import pytest

from checks.architecture import step_settings
from checks.architecture.step_settings import compare_scalars
from checks.material import Material
from checks.references.reference import root_config
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, swap


def judge(material: Material, editing: Edit) -> Verdict:
    return step_settings.judge(swap(material, editing.save()))


def test_a_setting_of_a_module_that_the_config_does_not_ask_is_named(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    scalars = editing.step()["scalars"]
    scalars["model.norm"]["variance_epsilon"] = 1e-5
    verdict = judge(healthy, editing)
    assert verdict.sentence == "variance_epsilon of model.norm is 1e-05, asked 1e-06"
    assert (verdict.first_wrong, verdict.pattern) == ("model.norm.variance_epsilon", Pattern.MODEL_DEFINITION)
    assert verdict.evidence["scalars"] == [["model.norm", "variance_epsilon", 1e-6, 1e-5]]
    norms = [path for path, attributes in scalars.items() if "variance_epsilon" in attributes]
    again = edit(healthy.capture)
    for path in norms:
        again.step()["scalars"][path]["variance_epsilon"] = 1e-5
    every = judge(healthy, again)
    assert every.measurements[-2].value == len(norms) == 9
    assert f" and of {len(norms) - 1} other modules is 1e-05, asked 1e-06" in every.sentence


@pytest.mark.parametrize(("factor", "status"), [(1 + 1e-5, Status.FAIL), (1 + 1e-8, Status.PASS)])
def test_a_table_of_frequencies_may_differ_by_its_float32_rounding(
    healthy: Material, edit: Editor, factor: float, status: Status
) -> None:
    editing = edit(healthy.capture)
    rotary = editing.step()["scalars"]["model.rotary_emb"]
    rotary["inv_freq"] = [*rotary["inv_freq"][:-1], rotary["inv_freq"][-1] * factor]
    verdict = judge(healthy, editing)
    assert verdict.status is status
    if status is Status.FAIL:
        assert verdict.sentence.startswith("inv_freq of model.rotary_emb is [1, 0.316228, 0.1, …], asked [1, ")


@pytest.mark.parametrize(
    ("asked", "in_force", "differs"),
    [
        (0.125, 0.125 * (1 + 2e-9), True),
        (0.125, 0.125 * (1 + 5e-10), False),
        (0.0, 1e-300, True),
        (4, 4.0, False),
        (True, 1, False),
        (True, 2, True),
        (False, 0.0, False),
        ("default", "yarn", True),
        ("default", "default", False),
        (None, 0.0, True),
        ([1.0, 0.5], [1.0, 0.5 * (1 + 2e-6)], True),
        ([1.0, 0.5], [1.0, 0.5 * (1 + 5e-7)], False),
        ([1.0, 0.5], [1.0], True),
        ([0.0], [1e-12], True),
        ([1.0], 1.0, True),
        (1.0, [1.0], True),
        (0.125, "0.125", True),
    ],
)
def test_scalars_are_compared_by_kind(asked: object, in_force: object, differs: bool) -> None:
    found = list(compare_scalars({"m": {"a": in_force}}, {"m": {"a": asked}}))
    assert [(m.module, m.attribute, m.asked, m.in_force) for m in found] == (
        [("m", "a", asked, in_force)] if differs else []
    )


def test_only_what_both_sides_know_and_what_is_computed_is_compared() -> None:
    expected: dict[str, dict[str, object]] = {
        "a": {"eps": 1e-6, "training": False, "layer_idx": 3, "gradient_checkpointing": False, "use_cache": True},
        "b": {"eps": 1e-6},
    }
    running: dict[str, dict[str, object]] = {
        "a": {"training": True, "layer_idx": 0, "gradient_checkpointing": True, "use_cache": False, "other": 1.0},
        "c": {"eps": 1.0},
    }
    assert list(compare_scalars(running, expected)) == []


def test_the_config_in_force_is_the_root_modules(healthy: Material, edit: Editor) -> None:
    assert healthy.capture is not None
    config = root_config(healthy.capture, 1)
    assert (config["head_dim"], config["num_attention_heads"], config["vocab_size"]) == (16, 4, 512)
    editing = edit(healthy.capture)
    del editing.step()["scalars"][""]["config"]
    assert root_config(editing.save(), 1) == {}


@pytest.mark.parametrize(("attribute", "value", "shown"), [("scaling", 0.1 + 0.2, "0.3"), ("head_dim", 17, "17")])
def test_settings_are_shown_without_noise_in_their_digits(
    healthy: Material, edit: Editor, attribute: str, value: object, shown: str
) -> None:
    editing = edit(healthy.capture)
    editing.step()["scalars"]["model.layers.0.self_attn"][attribute] = value
    assert f"{attribute} of model.layers.0.self_attn is {shown}, asked " in judge(healthy, editing).sentence
