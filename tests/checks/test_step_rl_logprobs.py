"""step.rl_logprobs: log-probabilities of policy, old policy and reference model that are their own pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from checks.architecture import step_rl_logprobs
from checks.architecture.step_rl_logprobs import find_old
from checks.material import Material
from checks.references.batch import MicroBatch
from checks.references.initial_tokens import TokenAnswers
from checks.verdict import Pattern, Status, Verdict
from tests.checks.rl_runs import draw, make_micro, make_rl_material

FLOOR = 1e-6
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
COUNTED = torch.nn.functional.pad(MASK.bool(), (1, 1))
OWN = -1.0 - draw(2, 4, seed=1).abs()
SAMPLED = OWN + draw(2, 4, seed=2, scale=0.2)
INITIAL = OWN + draw(2, 4, seed=3, scale=0.3)
COOL = INITIAL * 0.8


def lay(values: torch.Tensor) -> torch.Tensor:
    """(rows, completion tokens) → (rows, positions), at the positions that predict them."""
    return torch.nn.functional.pad(values, (1, 1)).masked_fill(~COUNTED, 0.0)


def make_batch(
    policy: torch.Tensor = OWN, old: torch.Tensor | None = SAMPLED, reference: torch.Tensor | None = INITIAL
) -> MicroBatch:
    """Prompts of two tokens."""
    completions = torch.tensor([[10, 11, 12, 13], [20, 21, 0, 0]])
    given = {"completion_ids": completions, "completion_mask": MASK, "advantages": torch.tensor([1.0, -1.0])}
    given |= {} if old is None else {"old_per_token_logps": old.float()}
    given |= {} if reference is None else {"ref_per_token_logps": reference.float()}
    ids = torch.cat([torch.tensor([[1, 2], [1, 2]]), completions], dim=1)
    return make_micro(ids, -lay(policy), COUNTED, given=given)


def refer(values: torch.Tensor, micro: MicroBatch) -> Any:
    """What the judge reads of a reference: token losses, their floor, and the rows that they are of."""
    return SimpleNamespace(token_losses=(-lay(values),), token_floor=FLOOR, micro_batches=(micro,))


def make(
    directory: Path,
    micro: MicroBatch | None = None,
    *,
    step: int = 3,
    change: Callable[[Material], Material] = lambda material: material,
    **settings: Any,
) -> Verdict:
    """Step 3 of a run that trains on the completions of step 1 three times."""
    micro = make_batch() if micro is None else micro
    material = make_rl_material(
        directory,
        objective="grpo",
        scalars={step: [0.0]},
        batches={step: (micro,)},
        steps=step,
        num_iterations=3,
        **settings,
    )
    answers = TokenAnswers((lay(INITIAL),), (torch.full((2, 6), FLOOR, dtype=torch.float64),), (lay(COOL),))
    known: Any = {1: refer(SAMPLED, micro), step: refer(OWN, micro)}
    return step_rl_logprobs.judge(change(replace(material, references=known, token_answers={step: answers})))


def test_log_probabilities_of_all_three_models_pass(tmp_path: Path) -> None:
    verdict = make(tmp_path)
    assert verdict.status is Status.PASS
    assert verdict.sentence.endswith("6 of the policy, 6 of the old policy, 6 of the reference model")
    assert set(verdict.detection_limits) == {"policy", "old policy", "reference model"}
    assert verdict.detection_limits["policy"] == pytest.approx(8.0 * FLOOR)
    compared: Any = verdict.evidence["compared"]
    assert [one["of"] for one in compared] == ["policy", "old policy", "reference model"]


OTHERS: dict[str, tuple[MicroBatch, str, Pattern, str]] = {
    "policy at another temperature": (
        make_batch(policy=COOL),
        "temperature",
        Pattern.OBJECTIVE_SCALE,
        "log-probabilities of the policy are those at a temperature of 1, and 0.8 was asked",
    ),
    "reference at another temperature": (
        make_batch(reference=COOL),
        "temperature",
        Pattern.OBJECTIVE_SCALE,
        "log-probabilities of the reference model are those at a temperature of 1",
    ),
    "reference of the policy": (
        make_batch(reference=OWN),
        "reference model",
        Pattern.STATE_TRANSFER,
        "are the policy's own of this step, so that there is no penalty",
    ),
    "old of the policy": (make_batch(old=OWN), "old policy", Pattern.STATE_TRANSFER, "so that every ratio is 1"),
    "one token off": (
        make_batch(reference=torch.roll(INITIAL, 1, dims=1)),
        "completion mask",
        Pattern.LOSS_MASK,
        "log-probabilities of the reference model are those of the token before",
    ),
    "noise": (
        make_batch(old=SAMPLED + draw(2, 4, seed=9, scale=0.1)),
        "old policy",
        Pattern.OBJECTIVE_SCALE,
        "log-probabilities of the old policy differ from those of its weights by up to ",
    ),
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_log_probabilities_of_another_model_or_temperature_fail_and_are_named(name: str, tmp_path: Path) -> None:
    micro, where, pattern, said = OTHERS[name]
    verdict = make(tmp_path, micro, temperature=0.8)
    assert (verdict.status, verdict.first_wrong, verdict.pattern) == (Status.FAIL, where, pattern), verdict.sentence
    assert said in verdict.sentence


def test_one_log_probability_just_beyond_what_is_allowed_fails(tmp_path: Path) -> None:
    for share, status in ((0.8, Status.PASS), (1.2, Status.FAIL)):
        off = OWN.clone()
        off[1, 1] += share * 8.0 * FLOOR
        assert make(tmp_path / str(share), make_batch(policy=off)).status is status


def test_what_the_completions_padding_holds_is_no_matter(tmp_path: Path) -> None:
    padded = INITIAL.clone()
    padded[1, 2:] = 99.0
    assert make(tmp_path, make_batch(reference=padded)).status is Status.PASS


def test_old_log_probabilities_of_a_step_that_is_not_known_are_left_open(tmp_path: Path) -> None:
    def forget(material: Material) -> Material:
        return replace(material, references={3: material.references[3]})

    verdict = make(tmp_path, change=forget)
    assert verdict.status is Status.PASS
    assert verdict.sentence.endswith(
        "6 of the policy, 6 of the reference model; not judged: step 3: the weights of step 1, which generated its "
        "completions, are not known"
    )


def test_noise_that_hides_a_temperature_is_inconclusive(tmp_path: Path) -> None:
    def blur(material: Material) -> Material:
        known: Any = dict(material.references)
        known[3].token_floor = 0.1
        return replace(material, references=known)

    verdict = make(tmp_path, change=blur)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.endswith("which would hide another temperature; run with precision=float32")


def test_completions_that_were_not_recorded_are_inconclusive(tmp_path: Path) -> None:
    verdict = make(tmp_path, replace(make_batch(), given={}))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == (
        "step 3, micro-batch 0: completions or advantages were not recorded as the loss was given them"
    )


def test_rows_of_another_step_are_found_by_their_tokens() -> None:
    micro = make_batch()
    turned = replace(micro, input_ids=micro.input_ids.flip(0))
    losses = torch.arange(12, dtype=torch.float64).view(2, 6)
    found = find_old(turned, (micro,), (losses,))
    assert found is not None
    assert found.tolist() == losses.flip(0).tolist()
    assert find_old(replace(turned, input_ids=turned.input_ids + 1), (micro,), (losses,)) is None
