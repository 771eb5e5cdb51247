"""Expert parallel on two gloo processes: experts are joined, and a lost one is named with the rank that holds it."""

from __future__ import annotations

from collections.abc import Callable

from checks.material import Material
from checks.verdict import Status
from tests.parallel.conftest import Divided, judge_all


def test_a_healthy_run_is_the_run_of_one_process(by_torchrun: Callable[..., Material]) -> None:
    verdicts = judge_all(by_torchrun("ep", single="single-ep", family="qwen3_moe", references=False, ep_size=2))
    assert {name: v.status for name, v in verdicts.items()} == dict.fromkeys(verdicts, Status.PASS)
    assert verdicts["parallel.gradients"].evidence["sharded"] == [
        "model.layers.0.mlp.experts.down_proj",
        "model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.1.mlp.experts.down_proj",
        "model.layers.1.mlp.experts.gate_up_proj",
    ]


def test_a_dropped_expert_is_named_with_its_rank(divided: Divided) -> None:
    verdict = divided.judge("expert-output-dropped")["parallel.gradients"]
    assert verdict.status is Status.FAIL
    assert verdict.sentence == (
        "rank 1 has no gradient for 1 of the rows 2:4 of model.layers.0.mlp.experts.gate_up_proj that it holds (2), "
        "which one process has: its part of the result is lost"
    )
    assert verdict.evidence["ranks"] == [1]
    assert verdict.first_wrong == "rank 1, [2:4, 0:64, 0:64]: model.layers.0.mlp.experts.gate_up_proj"
