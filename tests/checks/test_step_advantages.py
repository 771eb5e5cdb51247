"""step.advantages: rewards that are centred and scaled in their group pass; every other way fails and is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.architecture import step_advantages
from checks.objectives import needs_completions
from checks.references.batch import MicroBatch
from checks.references.objectives.advantages import group_advantages
from checks.verdict import Pattern, Status, Verdict
from tests.checks.data_runs import make_spec
from tests.checks.rl_runs import Tensors, make_micro, make_rl_material

REWARDS = torch.tensor([[0.1, 0.4, 0.2, 0.9], [0.5, 0.5, 0.6, 0.1]])
PROMPTS = torch.tensor([[0, 7, 8]] * 4 + [[5, 6, 9]] * 4)
PROMPT_MASK = torch.tensor([[0, 1, 1]] * 4 + [[1, 1, 1]] * 4)
COMPLETIONS = torch.arange(100, 124).view(8, 3)
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]] * 4)


def make_rollout(advantages: torch.Tensor, rewards: torch.Tensor = REWARDS, **changes: torch.Tensor) -> Tensors:
    made = {
        "prompt_ids": PROMPTS,
        "prompt_mask": PROMPT_MASK,
        "completion_ids": COMPLETIONS,
        "completion_mask": MASK,
        "advantages": advantages.flatten().float(),
        "rewards": rewards.reshape(-1, 1),
    }
    return {**made, **changes}


def train_on(rollout: Tensors, order: Sequence[int] = (3, 0, 6, 5, 1, 2, 7, 4)) -> tuple[MicroBatch, ...]:
    """Two micro-batches of the generated rows, shuffled, each with its own advantage."""
    batches = []
    for part in (order[:4], order[4:]):
        rows = list(part)
        ids = torch.cat([rollout["prompt_ids"], rollout["completion_ids"]], dim=1)[rows]
        mask = torch.cat([rollout["prompt_mask"], rollout["completion_mask"]], dim=1)[rows]
        counted = torch.zeros_like(ids, dtype=torch.bool)
        given = {"advantages": rollout["advantages"][rows]}
        micro = make_micro(ids, torch.zeros(ids.shape), counted, given=given)
        kept = [row.nonzero().flatten() for row in mask]
        documents = tuple(
            replace(document, start=int(places[0]), stop=int(places[-1]) + 1)
            for document, places in zip(micro.documents, kept, strict=True)
        )
        batches.append(replace(micro, documents=documents))
    return tuple(batches)


def judge(
    directory: Path,
    rollout: Tensors,
    *,
    batches: Sequence[MicroBatch] | None = None,
    step: int = 1,
    **settings: Any,
) -> Verdict:
    material = make_rl_material(
        directory,
        objective="grpo",
        scalars={1: [0.0, 0.0], step: [0.0, 0.0]},
        batches={step: batches or train_on(rollout)},
        rollouts={1: rollout},
        num_generations=4,
        **settings,
    )
    return step_advantages.judge(material)


def test_rewards_centred_and_scaled_in_their_group_pass(tmp_path: Path) -> None:
    verdict = judge(tmp_path, make_rollout(group_advantages(REWARDS)))
    assert verdict.status is Status.PASS
    assert verdict.sentence.startswith("advantages of 2 groups of 4 completions in 1 steps are their rewards, centred")
    assert "sample deviation + 0.0001" in verdict.sentence
    assert verdict.detection_limits["advantages"] < 1e-4
    rows: Any = verdict.evidence["rows"]
    assert [row["reward"] for row in rows[:4]] == pytest.approx([0.1, 0.4, 0.2, 0.9])
    assert [row["advantage"] for row in rows] == pytest.approx([row["expected"] for row in rows], abs=1e-6)


@pytest.mark.parametrize("epsilon", [1e-4, 1e-6, 0.0])
def test_every_frameworks_epsilon_passes_and_is_told(epsilon: float, tmp_path: Path) -> None:
    verdict = judge(tmp_path, make_rollout(group_advantages(REWARDS, epsilon=epsilon)))
    assert verdict.status is Status.PASS
    found: Any = verdict.evidence["epsilon"]
    assert abs(found - epsilon) <= 1e-6


def test_rewards_that_are_only_centred_pass_for_dr_grpo_alone(tmp_path: Path) -> None:
    rollout = make_rollout(group_advantages(REWARDS, scale="none"))
    assert judge(tmp_path / "dr", rollout, grpo_loss="dr_grpo").status is Status.PASS
    verdict = judge(tmp_path / "grpo", rollout)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "standard deviation")
    scaled = judge(tmp_path / "scaled", make_rollout(group_advantages(REWARDS)), grpo_loss="dr_grpo")
    assert "divided by their group's deviation, which Dr. GRPO does not" in scaled.sentence


STD = REWARDS.double().std(dim=1, keepdim=True)
OTHERS: dict[str, tuple[Callable[[], torch.Tensor], str, str]] = {
    "not centred": (lambda: REWARDS.double() / (STD + 1e-4), "mean", "not centred"),
    "population": (lambda: group_advantages(REWARDS, ddof=0), "standard deviation", "population"),
    "batch": (lambda: group_advantages(REWARDS, scale="batch"), "standard deviation", "all rewards of the step"),
    "whole batch": (
        lambda: (REWARDS.double() - REWARDS.double().mean()) / (REWARDS.double().std() + 1e-4),
        "groups",
        "mean and deviation are those of all rewards",
    ),
    "reversed": (lambda: -group_advantages(REWARDS), "advantages", "wrong sign"),
    "rewards": (lambda: REWARDS.double(), "advantages", "advantages are the rewards"),
    "other": (lambda: group_advantages(REWARDS) * 1.01, "advantages", "the advantage of completion"),
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_other_advantages_fail_and_are_named(name: str, tmp_path: Path) -> None:
    make, where, said = OTHERS[name]
    verdict = judge(tmp_path, make_rollout(make()))
    assert (verdict.status, verdict.first_wrong, verdict.pattern) == (Status.FAIL, where, Pattern.OBJECTIVE_SCALE)
    assert said in verdict.sentence


def test_an_advantage_just_beyond_what_rounding_allows_fails(tmp_path: Path) -> None:
    right = group_advantages(REWARDS)
    allowed = judge(tmp_path / "plain", make_rollout(right)).measurements[0].threshold
    for share, status in ((0.5, Status.PASS), (3.0, Status.FAIL)):
        off = right.clone()
        off[0, 3] += share * allowed
        assert judge(tmp_path / str(share), make_rollout(off)).status is status


def test_rows_with_another_completions_advantage_fail(tmp_path: Path) -> None:
    rollout = make_rollout(group_advantages(REWARDS))
    first, second = train_on(rollout)
    moved = replace(first, given={"advantages": first.given["advantages"].roll(1)})
    verdict = judge(tmp_path, rollout, batches=(moved, second))
    assert (verdict.status, verdict.pattern, verdict.first_wrong) == (Status.FAIL, Pattern.STATE_TRANSFER, "rows")
    assert verdict.sentence == (
        "step 1: 4 rows are trained with the advantage of another completion: the shuffle parts them"
    )


def test_rows_that_were_never_generated_fail(tmp_path: Path) -> None:
    rollout = make_rollout(group_advantages(REWARDS))
    first, second = train_on(rollout)
    strange = replace(first, input_ids=first.input_ids + 1)
    verdict = judge(tmp_path, rollout, batches=(strange, second))
    assert verdict.sentence == "step 1: 4 rows are none of the completions that were generated in step 1"


def test_a_group_of_two_prompts_fails(tmp_path: Path) -> None:
    mixed = PROMPTS[[0, 1, 2, 4, 3, 5, 6, 7]]
    masks = PROMPT_MASK[[0, 1, 2, 4, 3, 5, 6, 7]]
    verdict = judge(tmp_path, make_rollout(group_advantages(REWARDS), prompt_ids=mixed, prompt_mask=masks))
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "groups")
    assert verdict.sentence == "step 1: 2 of 2 groups hold completions of several prompts"


def test_equal_rewards_compare_nothing(tmp_path: Path) -> None:
    equal = torch.full((2, 4), 0.3)
    verdict = judge(tmp_path, make_rollout(torch.zeros(2, 4), rewards=equal))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.endswith("set num_generations higher, or temperature")


def test_rounding_of_a_mean_of_equal_rewards_is_no_fault(tmp_path: Path) -> None:
    equal = torch.tensor([[0.1, 0.4, 0.2, 0.9], [0.7, 0.7, 0.7, 0.7]])
    advantages = group_advantages(equal)
    advantages[1] = 6e-8 / 1e-4
    assert judge(tmp_path, make_rollout(advantages, rewards=equal)).status is Status.PASS


def test_a_later_step_is_held_against_the_completions_that_it_still_trains_on(tmp_path: Path) -> None:
    rollout = make_rollout(group_advantages(REWARDS))
    verdict = judge(tmp_path / "same", rollout, step=3, steps=3, num_iterations=3)
    assert verdict.status is Status.PASS
    open_ = judge(tmp_path / "other", rollout, step=3, steps=3, num_iterations=2)
    assert open_.status is Status.INCONCLUSIVE
    fresh: Any = open_.evidence.get("not_judged", [open_.sentence])
    assert any("were not recorded" in one or "no reference" in one for one in fresh)


def test_one_group_a_step_says_that_its_deviation_may_be_the_batchs(tmp_path: Path) -> None:
    half = {name: value[:4] for name, value in make_rollout(group_advantages(REWARDS)).items()}
    batches = train_on(half, order=(3, 0, 1, 2))[:1]
    verdict = judge(tmp_path, half, batches=batches)
    assert verdict.status is Status.PASS
    assert "with one group a step the deviation may be the batch's" in verdict.sentence


def test_rewards_that_were_not_recorded_are_inconclusive(tmp_path: Path) -> None:
    rollout = {name: value for name, value in make_rollout(group_advantages(REWARDS)).items() if name != "rewards"}
    verdict = judge(tmp_path, rollout, batches=train_on(make_rollout(group_advantages(REWARDS))))
    assert verdict.status is Status.INCONCLUSIVE
    assert "or their rewards or advantages, were not recorded" in verdict.sentence


def test_only_runs_on_completions_are_judged() -> None:
    assert needs_completions(replace(make_spec(), objective="grpo")) is None
    assert needs_completions(make_spec()) == "the run does not train on completions of its own (objective=sft)"
