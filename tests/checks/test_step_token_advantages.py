"""step.advantages of ppo and reinforce_plus_plus: tokens' own advantages pass; every other way fails and is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.architecture import step_advantages
from checks.references.batch import Document
from checks.references.objectives.advantages import (
    DISCOUNT,
    TRACE,
    generalised_advantages,
    normalise_over_batch,
    token_returns,
)
from checks.verdict import Pattern, Status, Verdict
from tests.checks.rl_runs import Tensors, make_micro, make_rl_material

BETA = 0.1
REWARDS = torch.tensor([0.1, 0.9, 0.4, 0.6])
PROMPTS = torch.tensor([[5, 7, 8]] * 4)
COMPLETIONS = torch.arange(100, 116).view(4, 4)
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]])
OLD = -torch.linspace(1.0, 3.0, 16).view(4, 4)
REFERENCE = OLD + torch.linspace(-0.3, 0.2, 16).view(4, 4)
VALUES = torch.linspace(-0.5, 0.5, 16).view(4, 4)
KL = (OLD.double() - REFERENCE.double()).masked_fill(MASK == 0, 0.0)
RETURNS = token_returns(REWARDS, KL, MASK.bool(), beta=BETA)


def token_rewards() -> torch.Tensor:
    """−β KL of each token, and the completion's reward at its last."""
    rewards = -BETA * KL
    for row, last in enumerate(MASK.sum(dim=1) - 1):
        rewards[row, last] += REWARDS[row].double()
    return rewards


def generalise(lam: float = TRACE) -> tuple[torch.Tensor, torch.Tensor]:
    return generalised_advantages(token_rewards(), VALUES.double(), MASK.bool(), gamma=DISCOUNT, lam=lam)


def make_rollout(advantages: torch.Tensor, **changes: torch.Tensor) -> Tensors:
    made = {
        "prompt_ids": PROMPTS,
        "prompt_mask": torch.ones_like(PROMPTS),
        "completion_ids": COMPLETIONS,
        "completion_mask": MASK,
        "rewards": REWARDS,
        "advantages": advantages.float(),
        "old_per_token_logps": OLD,
        "ref_per_token_logps": REFERENCE,
        "values": VALUES,
    }
    return {**made, **changes}


def judge(directory: Path, rollout: Tensors, *, objective: str, given: torch.Tensor | None = None) -> Verdict:
    ids = torch.cat([PROMPTS, COMPLETIONS], dim=1)
    advantages = rollout["advantages"] if given is None else given
    loss_inputs = {"advantages": advantages, "completion_mask": MASK, "completion_ids": COMPLETIONS}
    micro = make_micro(ids, torch.zeros(ids.shape), torch.zeros_like(ids, dtype=torch.bool), given=loss_inputs)
    lengths = (3 + MASK.sum(dim=1)).tolist()
    micro = replace(micro, documents=tuple(Document(row, 0, stop) for row, stop in enumerate(lengths)))
    material = make_rl_material(
        directory,
        objective=objective,
        scalars={1: [0.0]},
        batches={1: (micro,)},
        rollouts={1: rollout},
        beta=BETA,
    )
    return step_advantages.judge(material)


@pytest.mark.parametrize(("ddof", "said"), [(0, "population"), (1, "sample")])
def test_returns_normalised_over_all_tokens_pass_by_either_deviation(ddof: int, said: str, tmp_path: Path) -> None:
    found = normalise_over_batch(RETURNS, MASK.bool(), ddof=ddof)
    verdict = judge(tmp_path, make_rollout(found), objective="reinforce_plus_plus")
    assert verdict.status is Status.PASS, verdict.sentence
    assert verdict.sentence.startswith("advantages of 10 tokens in 1 steps are their returns, normalised over the")
    assert f"deviation of a {said}" in verdict.sentence
    assert verdict.detection_limits["advantages"] < 1e-3
    rows: Any = verdict.evidence["rows"]
    assert [row["tokens"] for row in rows] == [4, 2, 3, 1]


def test_generalised_advantages_pass(tmp_path: Path) -> None:
    verdict = judge(tmp_path, make_rollout(generalise()[0]), objective="ppo")
    assert verdict.status is Status.PASS, verdict.sentence
    assert "generalised ones of their rewards and recorded values" in verdict.sentence


MEAN = RETURNS[MASK.bool()].mean()
FIRSTS = RETURNS[:, 0]
OTHERS: dict[str, tuple[str, Callable[[], torch.Tensor], str, str]] = {
    "raw": ("reinforce_plus_plus", lambda: RETURNS, "whitening", "advantages are not normalised"),
    "centred": ("reinforce_plus_plus", lambda: RETURNS - MEAN, "whitening", "centred and not divided"),
    "rows": (
        "reinforce_plus_plus",
        lambda: (RETURNS - FIRSTS.mean()) / FIRSTS.std(correction=0),
        "whitening",
        "those of completions, each counted once",
    ),
    "sign": ("reinforce_plus_plus", lambda: -normalise_over_batch(RETURNS, MASK.bool()), "advantages", "wrong sign"),
    "off": (
        "reinforce_plus_plus",
        lambda: normalise_over_batch(RETURNS, MASK.bool()) * 1.01,
        "advantages",
        "the advantage of token",
    ),
    "one": ("ppo", lambda: generalise(1.0)[0], "trace", "λ is 1"),
    "zero": ("ppo", lambda: generalise(0.0)[0], "trace", "λ is 0"),
    "returns": ("ppo", lambda: generalise()[1], "values", "no value is taken from them"),
    "reversed": ("ppo", lambda: -generalise()[0], "advantages", "wrong sign"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_advantages_fail_and_are_named(case: str, tmp_path: Path) -> None:
    objective, make, where, said = OTHERS[case]
    verdict = judge(tmp_path, make_rollout(make()), objective=objective)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, where), verdict.sentence
    assert said in verdict.sentence
    assert verdict.pattern is (Pattern.PARALLELISM if where == "whitening" else Pattern.OBJECTIVE_SCALE)


def test_a_row_that_is_trained_with_other_advantages_fails(tmp_path: Path) -> None:
    rollout = make_rollout(generalise()[0])
    given = rollout["advantages"].clone()
    given[2, 1] += 0.5
    verdict = judge(tmp_path, rollout, objective="ppo", given=given)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "rows")
    assert verdict.sentence.startswith("step 1: 1 rows are trained with other advantages")


@pytest.mark.parametrize("lacking", ["values", "old_per_token_logps", "rewards"])
def test_a_rollout_that_was_not_all_recorded_is_inconclusive(lacking: str, tmp_path: Path) -> None:
    rollout = make_rollout(generalise()[0])
    given = rollout["advantages"]
    verdict = judge(tmp_path, {k: v for k, v in rollout.items() if k != lacking}, objective="ppo", given=given)
    assert verdict.status is Status.INCONCLUSIVE
    assert f"{lacking} of the completions" in verdict.sentence


def test_advantages_that_are_all_zero_tell_nothing(tmp_path: Path) -> None:
    nothing = make_rollout(torch.zeros(4, 4), rewards=torch.zeros(4), values=torch.zeros(4, 4), ref_per_token_logps=OLD)
    verdict = judge(tmp_path, nothing, objective="ppo")
    assert verdict.status is Status.INCONCLUSIVE
    assert "every advantage is zero" in verdict.sentence
