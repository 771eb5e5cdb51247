"""Every module on the input that it received: a healthy run, one wrong module, and what cannot be told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.architecture.step_activations import CHECK, USEFUL_LIMIT
from checks.assemble import assemble
from checks.captures.capture import Capture
from checks.diagnosis.first_divergence import Divergence, ModuleError
from checks.material import Material
from checks.roles import Role, spec_of
from checks.verdict import Pattern, Status
from tests.checks.conftest import Editor
from workers.planner import make_plan
from workers.tracing import ALL_MODULES, LAYERS

MODULE = "model.layers.1.self_attn.o_proj"


def judge_traced(material: Material, capture: Capture | None) -> Material:
    """The material with another capture in the place of the traced run's."""
    traced = replace(material.others[Role.TRACED], capture=capture)
    outcomes = {Role.RUN: material.run, Role.TRACED: traced}
    return assemble(material.spec, outcomes, references=True, definition=False)


def test_every_module_of_a_healthy_run_is_compared(traced: Material) -> None:
    verdict = CHECK.judge(traced)
    assert verdict.status is Status.PASS, verdict.sentence
    names = {measurement.name for measurement in verdict.measurements}
    assert {MODULE, "model.embed_tokens", "model.layers.0.mlp.down_proj", "model.norm", "lm_head"} <= names
    assert verdict.detection_limit is not None
    assert verdict.detection_limit < 1e-4
    assert verdict.evidence["plots"][0]["curves"][0]["name"] == "error"


@pytest.mark.parametrize(("factor", "status"), [(1.001, Status.FAIL), (1.0 + 1e-7, Status.PASS)])
def test_a_module_that_is_wrong_by_itself_is_named_and_none_downstream(
    traced: Material, edit: Editor, factor: float, status: Status
) -> None:
    changed = edit(traced.capture_of(Role.TRACED))
    for micro_batch in (0, 1):
        changed.change("module_output", MODULE, lambda output: output * factor, micro_batch=micro_batch)
    verdict = CHECK.judge(judge_traced(traced, changed.save()))
    assert verdict.status is status
    if status is Status.FAIL:
        assert verdict.first_wrong == MODULE
        assert verdict.pattern is Pattern.MODEL_DEFINITION
        assert f"{MODULE} (Linear), given the input that it received, is off by 0.001" in verdict.sentence
        wrong = {measurement.name for measurement in verdict.measurements if not measurement.holds}
        assert wrong == {MODULE}


def test_a_traced_run_on_other_rows_is_not_judged(traced: Material, edit: Editor) -> None:
    changed = edit(traced.capture_of(Role.TRACED))
    changed.change("batch", "input_ids", lambda ids: ids.flip(0), micro_batch=0)
    verdict = CHECK.judge(judge_traced(traced, changed.save()))
    assert verdict.status is Status.INCONCLUSIVE
    assert "began from other rows" in verdict.sentence


def test_without_a_capture_it_says_so(traced: Material) -> None:
    verdict = CHECK.judge(judge_traced(traced, None))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "the run that records its modules left no capture; see run.completes"


def make_divergence(*thresholds: float, error: float = 0.0) -> Divergence:
    modules = tuple(ModuleError(f"m{i}", "Linear", error, t / 8, t) for i, t in enumerate(thresholds))
    return Divergence(modules, ("m9",), deterministic=True)


@pytest.mark.parametrize(
    ("divergence", "status", "words"),
    [
        (make_divergence(1e-6, USEFUL_LIMIT), Status.PASS, "2 modules, each on the input that it received, agree"),
        (make_divergence(1e-6, 0.051), Status.PASS, "1 modules, each"),
        (make_divergence(1e-6, 0.051), Status.PASS, "; 1 compute too coarsely to tell; 1 could not be compared"),
        (make_divergence(1e-6, 0.051, 0.2), Status.INCONCLUSIVE, "2 of 3 modules could be off by more than 0.05"),
        (make_divergence(0.2, 0.2, error=0.3), Status.FAIL, "m0 (Linear)"),
        (make_divergence(), Status.INCONCLUSIVE, "no module's input and output could be laid beside"),
    ],
)
def test_modules_too_noisy_to_tell_are_not_counted_as_judged(
    traced: Material, divergence: Divergence, status: Status, words: str
) -> None:
    verdict = CHECK.judge(replace(traced, activations=divergence))
    assert verdict.status is status
    assert words in verdict.sentence


def test_its_run_records_modules_and_a_large_models_layers_alone(
    traced: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(traced.spec, [CHECK])
    modules = {run.role: run.modules for run in plan.runs}
    assert modules == {Role.RUN: None, Role.TRACED: ALL_MODULES}
    assert spec_of(Role.TRACED, traced.spec) == replace(traced.spec, steps=1)
    monkeypatch.setattr("workers.tracing.TRACE_BYTES", 1000)
    assert plan.runs[1].modules == LAYERS
