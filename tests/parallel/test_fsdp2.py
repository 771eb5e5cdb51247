"""FSDP2 on two gloo processes: shards are joined, compared with one process, and traced to the rank that holds them."""

from __future__ import annotations

from checks.parallel import parallel_replicas
from checks.verdict import Status
from tests.parallel.conftest import Divided
from tests.parallel.dividing import CASES


def test_a_healthy_run_is_the_run_of_one_process(divided: Divided) -> None:
    verdicts = divided.judge("fsdp2")
    assert {name: v.status for name, v in verdicts.items()} == {
        "parallel.data": Status.PASS,
        "parallel.gradients": Status.PASS,
    }
    gradients = verdicts["parallel.gradients"]
    assert len(gradients.evidence["sharded"]) == 25
    assert len([m for m in gradients.measurements if m.name.endswith(".weight")]) == 25
    assert {m.name for m in gradients.measurements if "rank" in m.name} == {
        *("token losses of rank 0", "token losses of rank 1"),
        *("gradient norm on rank 0", "gradient norm on rank 1"),
    }


def test_replicas_have_nothing_to_say_where_every_parameter_is_divided(divided: Divided) -> None:
    assert parallel_replicas.CHECK.applies(CASES["fsdp2"].spec(divided.directory)) == (
        "fsdp2 gives every rank a part of each parameter, so that there are no replicas; see parallel.gradients"
    )


def test_a_shard_of_another_rank_is_named_with_its_slice(divided: Divided) -> None:
    verdict = divided.judge("shard-of-another-rank")["parallel.gradients"]
    assert verdict.status is Status.FAIL
    assert verdict.sentence == (
        "model.embed_tokens.weight is not that of the run of one process before the step, on rank 1, [256:512, 0:64]"
    )
    assert verdict.evidence["ranks"] == [1]
    assert verdict.first_wrong == "rank 1, [256:512, 0:64]: model.embed_tokens.weight"


def test_a_norm_of_one_rank_fails_though_every_gradient_is_right(divided: Divided) -> None:
    verdict = divided.judge("norm-of-one-rank")["parallel.gradients"]
    assert verdict.status is Status.FAIL
    assert verdict.evidence["ranks"] == [0, 1]
    assert verdict.first_wrong == "gradient norm"
    assert {m.name for m in verdict.measurements if not m.holds} == {
        "gradient norm on rank 0",
        "gradient norm on rank 1",
    }
