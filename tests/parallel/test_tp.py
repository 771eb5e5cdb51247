"""Tensor parallel on two gloo processes: matrices are joined, norms are replicas, and a bias counts once."""

from __future__ import annotations

from collections.abc import Callable

from checks.material import Material
from checks.verdict import Status
from tests.parallel.conftest import Divided, judge_all


def test_a_healthy_run_is_the_run_of_one_process(by_torchrun: Callable[..., Material]) -> None:
    verdicts = judge_all(by_torchrun("tp", single="single-tp", family="qwen3", references=False, tp_size=2))
    assert {name: v.status for name, v in verdicts.items()} == dict.fromkeys(verdicts, Status.PASS)
    assert verdicts["parallel.data"].sentence == (
        "2 ranks take the same 4 rows in step 1, which are the global batch, each row once"
    )
    assert "judged by the round-off of its precision" in verdicts["parallel.gradients"].sentence
    sharded = verdicts["parallel.gradients"].evidence["sharded"]
    assert len(sharded) == 14  # seven matrices of each of two layers
    assert "model.layers.0.self_attn.q_norm.weight" not in sharded
    assert verdicts["parallel.replicas"].evidence["compared"] == 91


def test_biases_behind_row_parallel_layers_count_once(divided: Divided) -> None:
    verdicts = divided.judge("tp-biased")
    assert {name: v.status for name, v in verdicts.items()} == dict.fromkeys(verdicts, Status.PASS)
    assert {m.name for m in verdicts["parallel.gradients"].measurements} >= {
        "model.layers.0.self_attn.o_proj.bias",
        "model.layers.1.mlp.down_proj.bias",
    }


def test_a_bias_that_is_added_on_every_rank_makes_the_forward_differ_on_all(divided: Divided) -> None:
    verdict = divided.judge("row-bias-on-every-rank")["parallel.gradients"]
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith("token losses on all ranks are not those of one process, by up to ")
    assert verdict.sentence.endswith(" nats: the forward differs")
    assert verdict.evidence["ranks"] == [0, 1]
    assert verdict.first_wrong == "forward on all ranks"


def test_a_norm_that_drifts_on_one_rank_is_named(divided: Divided) -> None:
    verdict = divided.judge("replica-drifts-tp")["parallel.replicas"]
    assert verdict.status is Status.FAIL
    assert (verdict.evidence["ranks"], verdict.first_wrong) == ([1], "rank 1: model.norm.weight")
