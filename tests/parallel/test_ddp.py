"""DistributedDataParallel on two gloo processes: a healthy run passes, and each fault is seen where it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checks.material import Material
from checks.verdict import Pattern, Status
from tests.parallel.conftest import Divided, judge_all


def test_a_healthy_run_is_the_run_of_one_process(by_torchrun: Callable[..., Material]) -> None:
    settings = {"dp_size": 2, "sharding": "ddp"}
    verdicts = judge_all(by_torchrun("ddp", single="single-dp", family="qwen3", references=True, **settings))
    assert {name: v.status for name, v in verdicts.items()} == dict.fromkeys(verdicts, Status.PASS)
    assert verdicts["parallel.data"].sentence == (
        "2 ranks take 8 rows in step 1, which are the global batch, each row once"
    )
    assert verdicts["parallel.replicas"].sentence == (
        "175 tensors of step 1 are bitwise the same on each of 2 ranks that hold them"
    )
    gradients = verdicts["parallel.gradients"]
    assert gradients.evidence["contributions"] == pytest.approx({"0": 1.0, "1": 1.0}, rel=1e-6)
    assert gradients.evidence["objectives"] == pytest.approx({"0": 1.0, "1": 1.0}, rel=1e-6)
    assert gradients.evidence["sharded"] == []
    assert "judged by the reference step's noise" in gradients.sentence
    worst = max(m.value / m.threshold for m in gradients.measurements if m.threshold)
    assert worst < 0.5
    assert gradients.detection_limit is not None
    assert gradients.detection_limit < 1e-3


@pytest.mark.parametrize(
    ("slug", "check", "ranks", "said", "first_wrong"),
    [
        (
            *("gradients-summed-over-ranks", "parallel.gradients", []),
            "all gradients are 2 times those of one process: they are added up and not averaged over the 2 ranks",
            "gradient reduction",
        ),
        (
            *("gradients-averaged-twice", "parallel.gradients", []),
            "all gradients are 0.5 times those of one process: they are averaged twice over the 2 ranks",
            "gradient reduction",
        ),
        (
            *("rank-left-out", "parallel.gradients", [1]),
            "ranks do not count alike: rank 1: its rows count 0 times in the reduced gradient",
            "gradient reduction of rank 1",
        ),
        (
            *("gradients-not-reduced", "parallel.replicas", [0, 1]),
            "rank 0 and rank 1 differ in the gradient of model.embed_tokens.weight, which all ranks should hold alike, "
            "at step 1; 125 of 175 replicas differ, in 25 parameters",
            "rank 0, 1: model.embed_tokens.weight",
        ),
        (
            *("tokens-of-one-rank", "parallel.gradients", [0, 1]),
            "ranks do not count alike: rank 0: its loss is 0.873 of what its share of the global batch gives; "
            "rank 1: its loss is 1.17 of what its share of the global batch gives",
            "loss of rank 0 and rank 1",
        ),
        (
            *("replica-drifts", "parallel.replicas", [1]),
            "rank 1 differs in the parameter after of model.norm.weight, which all ranks should hold alike, at step 1; "
            "3 of 175 replicas differ, in 1 parameters",
            "rank 1: model.norm.weight",
        ),
        (
            *("same-rows-on-every-rank", "parallel.data", [1]),
            "ranks 0 and 1 train on 4 of the same rows in step 1, and 4 rows of the global batch are on no rank; "
            "rank 1 is the one that is not at its place",
            "sampler of rank 1",
        ),
    ],
)
def test_a_fault_fails_its_check_and_names_the_rank(
    divided: Divided, slug: str, check: str, ranks: list[int], said: str, first_wrong: str
) -> None:
    verdict = divided.judge(slug)[check]
    assert (verdict.status, verdict.sentence) == (Status.FAIL, said)
    assert (verdict.evidence["ranks"], verdict.first_wrong) == (ranks, first_wrong)
    assert verdict.pattern is Pattern.PARALLELISM


def test_gradients_that_were_not_reduced_are_those_of_one_process_on_no_rank(divided: Divided) -> None:
    verdict = divided.judge("gradients-not-reduced")["parallel.gradients"]
    assert verdict.status is Status.FAIL
    assert verdict.evidence["ranks"] == [0, 1]
    assert "it was not reduced over the ranks" in verdict.sentence


def test_ranks_on_the_same_rows_are_not_held_against_the_global_batch(divided: Divided) -> None:
    verdict = divided.judge("same-rows-on-every-rank")["parallel.gradients"]
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == (
        "the two runs trained on different rows, so that the identity says nothing; see parallel.data"
    )


def test_a_drifting_replica_leaves_the_gradients_of_its_step_alone(divided: Divided) -> None:
    assert divided.judge("replica-drifts")["parallel.gradients"].status is Status.PASS
