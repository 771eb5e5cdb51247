"""Each injected fault is seen by the right check, which names the right module or setting."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import workers.tracing
from checks.faults import fault
from checks.verdict import Pattern, Status
from tests.acceptance.conftest import Validate, by_name
from workers.request import exit_code


@dataclass(frozen=True)
class Expected:
    """The check that fails, what it names first, and words of its sentence."""

    framework: str
    slug: str
    check: str
    first_wrong: str | None
    words: tuple[str, ...]
    pattern: Pattern
    beside: tuple[tuple[str, str | None], ...] = ()
    """further checks that fail, each with its first wrong module or setting"""
    by_layer: bool = False
    """traced as a model too large to record whole is: its layers first, then the parts of the first wrong one"""


CASES = (
    Expected(
        "transformers",
        "wrong-loss-count",
        "step.denominator",
        "loss denominator",
        ("divided by 336", "335 tokens count"),
        Pattern.OBJECTIVE_SCALE,
        (("step.gradients", None),),
    ),
    Expected(
        "trl",
        "labels-shifted-twice",
        "step.loss",
        "labels",
        ("labels are shifted twice", "token t + 2"),
        Pattern.LOSS_MASK,
        (("step.gradients", "labels"),),
    ),
    Expected(
        "transformers",
        "rmsnorm-eps",
        "step.settings",
        "model.norm.variance_epsilon",
        ("variance_epsilon", "is 1e-05, asked 1e-06"),
        Pattern.MODEL_DEFINITION,
        (("step.gradients", "model.layers.0.input_layernorm"),),
    ),
    Expected(
        "trl",
        "attention-scale",
        "step.settings",
        "model.layers.0.self_attn.scaling",
        ("scaling of model.layers.0.self_attn is 0.2525, asked 0.25",),
        Pattern.MODEL_DEFINITION,
        (("step.gradients", "model.layers.0.self_attn"),),
        by_layer=True,
    ),
    Expected(
        "transformers",
        "weight-scaled",
        "step.settings",
        "model.layers.0.mlp.down_proj.weight",
        ("model.layers.0.mlp.down_proj.weight is 1.001× the checkpoint's",),
        Pattern.STATE_TRANSFER,
        (("step.gradients", "model.layers.0.mlp.down_proj"),),
    ),
    Expected(
        "trl",
        "decay-on-norms",
        "step.update",
        "weight_decay of model.layers.0.self_attn.q_norm.weight",
        ("weight_decay of 9 norm weights", "is 0.01, asked 0"),
        Pattern.OBJECTIVE_SCALE,
    ),
    Expected(
        "transformers",
        "clip-before-accumulation",
        "step.gradients",
        "gradient clipping",
        ("clipped after micro-batch 1 of 2, before accumulation ended",),
        Pattern.OBJECTIVE_SCALE,
    ),
    Expected(
        "trl",
        "adapter-frozen",
        "step.update",
        "model.layers.0.self_attn.q_proj.lora_A.weight",
        ("model.layers.0.self_attn.q_proj.lora_A.weight is not trained: it is frozen",),
        Pattern.MODEL_DEFINITION,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.slug)
def test_the_right_check_names_the_fault(
    run_validation: Validate, case: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.by_layer:
        monkeypatch.setattr(workers.tracing, "TRACE_BYTES", 0)
    checks = tuple({case.check, "step.loss", *(name for name, _ in case.beside)})
    result = run_validation(case.framework, checks=checks, inject=case.slug)
    assert exit_code(result.verdicts) == 1
    assert result.warnings == (f"the fault {case.slug} was injected: {fault(case.slug).summary}",)
    passes = [run.capture.name for run in result.runs if run.capture]
    assert ("third-pass" in passes) is case.by_layer
    verdicts = by_name(result)
    verdict = verdicts[case.check]
    assert verdict.status is Status.FAIL
    assert verdict.first_wrong == case.first_wrong
    assert verdict.pattern is case.pattern
    assert all(words in verdict.sentence for words in case.words), verdict.sentence
    for name, first_wrong in case.beside:
        assert verdicts[name].status is Status.FAIL
        assert verdicts[name].first_wrong == first_wrong
