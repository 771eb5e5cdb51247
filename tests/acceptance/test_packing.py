"""Packed documents, on a family that isolates them and on one that does not."""

from __future__ import annotations

from checks.verdict import Pattern, Status
from tests.acceptance.conftest import Validate, by_name
from workers.request import exit_code


def test_gpt_oss_packed_by_trl_lets_documents_see_each_other(run_validation: Validate) -> None:
    # transformers pull request 39997: the eager mask of gpt_oss ignores position_ids.
    result = run_validation("trl", "packing=true", model="tiny:gpt_oss", checks=("data.packing",))
    verdict = by_name(result)["data.packing"]
    assert exit_code(result.verdicts) == 1
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith("documents see each other")
    assert verdict.pattern is Pattern.SEQUENCE_LENGTH
    assert verdict.first_wrong == "model.layers.0.self_attn"


def test_qwen3_packed_by_trl_keeps_documents_apart(run_validation: Validate) -> None:
    result = run_validation("trl", "packing=true", checks=("data.packing", "step.loss", "step.gradients"))
    verdicts = by_name(result)
    assert {verdict.status for verdict in verdicts.values()} == {Status.PASS}
    assert exit_code(result.verdicts) == 0
    assert len(verdicts["data.packing"].evidence["documents"]) > 2
