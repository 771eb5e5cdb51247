"""A label that the loss leaves out although the batch asks for it."""

from __future__ import annotations

from checks.verdict import Pattern, Status
from tests.acceptance.conftest import Validate, by_name


def test_a_masked_label_is_read_as_a_mask_and_not_as_a_scale(run_validation: Validate) -> None:
    result = run_validation("transformers", checks=("step.loss",), inject="label-masked")
    verdict = by_name(result)["step.loss"]
    assert verdict.status is Status.FAIL
    assert "the loss counts 333 tokens and the batch's labels ask for 335" in verdict.sentence
    assert verdict.pattern is Pattern.LOSS_MASK
    assert verdict.first_wrong == "labels"
