"""model.definition: both sides of the agreement, and what there is without a plain reference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.architecture import model_definition
from checks.material import Material
from checks.references.definition import Definition
from checks.verdict import Pattern, Status, Verdict

NORM = "model.norm.weight"


def judged(material: Material, **errors: float) -> Verdict:
    assert material.definition is not None
    found = {**material.definition.errors, **{name.replace("__", "."): error for name, error in errors.items()}}
    return model_definition.judge(replace(material, definition=replace(material.definition, errors=found)))


def test_transformers_class_computes_the_published_definition(healthy: Material) -> None:
    verdict = model_definition.judge(healthy)
    assert verdict.status is Status.PASS
    assert verdict.sentence.startswith(
        "transformers' Qwen3ForCausalLM in float64 agrees with the plain reference within "
    )
    assert verdict.sentence.endswith("in the loss and 25 gradients (3 float32 casts lifted)")
    assert len(verdict.measurements) == 26
    assert all(0.0 <= m.value < 1e-12 for m in verdict.measurements)
    assert {m.threshold for m in verdict.measurements} == {1e-10}
    assert verdict.detection_limits == {"gradient": 1e-10}
    assert len(verdict.evidence["lifted_casts"]) == 3


@pytest.mark.parametrize("name", ["loss", NORM])
def test_a_quantity_agrees_up_to_the_limit_and_no_further(healthy: Material, name: str) -> None:
    assert judged(healthy, **{name.replace(".", "__"): 1e-10}).status is Status.PASS
    verdict = judged(healthy, **{name.replace(".", "__"): 1.01e-10})
    assert verdict.status is Status.FAIL
    assert verdict.sentence == (
        "transformers' Qwen3ForCausalLM departs from the published definition in 1 quantities, "
        f"worst {name} by 1.01e-10"
    )
    assert (verdict.first_wrong, verdict.pattern) == (name, Pattern.MODEL_DEFINITION)
    assert [m.name for m in verdict.measurements if not m.holds] == [name]


def test_the_worst_quantity_is_named(healthy: Material) -> None:
    verdict = judged(healthy, loss=1e-3, model__norm__weight=float("inf"))
    assert verdict.first_wrong == NORM
    assert "in 2 quantities" in verdict.sentence


def test_a_quantity_that_is_not_a_number_fails(healthy: Material) -> None:
    assert judged(healthy, loss=float("nan")).status is Status.FAIL


def test_without_a_definition_there_is_no_verdict(healthy: Material) -> None:
    none = replace(healthy, definition=None, no_definition="there is no independent reference for this family")
    verdict = model_definition.judge(none)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "there is no independent reference for this family"
    silent = model_definition.judge(replace(none, no_definition=""))
    assert silent.sentence == "no independent reference was computed"
    crashed = replace(none, run=replace(healthy.run, capture=None))
    assert model_definition.judge(crashed).sentence == "the run left no capture to judge; see run.completes"


def test_errors_are_relative_to_the_reference_and_a_missing_gradient_is_infinite(healthy: Material) -> None:
    definition = healthy.definition
    assert isinstance(definition, Definition)
    reference = healthy.first_reference()
    assert reference is not None
    assert set(definition.errors) == {"loss", *reference.gradients}
    assert definition.class_name == "transformers' Qwen3ForCausalLM"
