"""Miles: recorded rollouts, the checkout and its commit, what is refused, its arguments, and what its hooks lay out."""

from __future__ import annotations

import runpy
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.errors import BadRequest
from checks.models import resolve_model
from checks.samples import resolve_data
from checks.spec import RunSpec
from workers.frameworks import adapter
from workers.frameworks.miles.adapter import HOOKS
from workers.frameworks.miles.arguments import build_arguments
from workers.frameworks.miles.checkout import STEP, VARIABLE, find_checkout
from workers.frameworks.miles.rollouts import record_rollouts

pytestmark = pytest.mark.usefixtures("_shared_cache")


def spec_of(model: str = "tiny:qwen3", **settings: Any) -> RunSpec:
    asked = {"objective": "grpo", "num_generations": 4, **settings}
    return RunSpec("miles", resolve_model(model).path, resolve_data("gsm8k_sample"), **asked)


def test_a_rollout_holds_groups_of_one_prompt_with_lengths_and_rewards_of_their_own() -> None:
    spec = spec_of(steps=3, batch=2, accumulation=4)
    rows = record_rollouts(spec)
    assert len(rows) == 3 * 2 * 4
    assert [row["group"] for row in rows] == [group for group in range(6) for _ in range(4)]
    for row in rows:
        assert 8 <= row["response_length"] <= 16 == spec.max_completion_length
        assert len(row["tokens"]) <= spec.seq_len
        assert row["loss_mask"] == [1] * row["response_length"]
        assert 0.0 <= row["reward"] <= 1.0
    prompts = [tuple(row["tokens"][: -row["response_length"]]) for row in rows]
    assert all(len(set(prompts[start : start + 4])) == 1 for start in range(0, 24, 4))
    assert len(set(prompts)) == 6
    assert len({row["reward"] for row in rows[:4]}) > 1
    assert len({row["response_length"] for row in rows[:4]}) > 1


def test_rollouts_are_the_same_in_every_run_and_other_ones_by_another_seed() -> None:
    assert record_rollouts(spec_of()) == record_rollouts(spec_of())
    assert record_rollouts(spec_of()) != record_rollouts(spec_of(seed=1))
    # however a step's rows are divided into micro-batches
    assert record_rollouts(spec_of(batch=4, accumulation=2)) == record_rollouts(spec_of(batch=2, accumulation=4))


def test_steps_on_the_same_completions_take_one_rollout_and_ppo_records_values() -> None:
    assert len(record_rollouts(spec_of(steps=3, num_iterations=2, batch=2, accumulation=2))) == 2 * 4
    (first, *_) = record_rollouts(spec_of(objective="ppo"))
    assert len(first["values"]) == first["response_length"]
    assert all(-0.5 <= value <= 0.5 for value in first["values"])


def test_prompts_without_room_for_a_completion_are_refused() -> None:
    with pytest.raises(BadRequest, match="seq_len: 18 leaves no prompt beside 16 tokens"):
        record_rollouts(spec_of(seq_len=18))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"objective": "sft"}, "objective: Miles is not run with sft"),
        ({"grpo_loss": "dr_grpo"}, "grpo_loss: Miles is not run with dr_grpo; give one of grpo, gspo, dapo, ppo"),
        ({"grpo_loss": "bnpo"}, "grpo_loss: Miles is not run with bnpo"),
        ({"packing": True}, "packing: true has no meaning for completions"),
        ({"dp_size": 2, "sharding": "ddp"}, "dp_size: Miles, as it is run here, divides nothing"),
        ({"pp_size": 2}, "pp_size: Miles, as it is run here, divides nothing"),
        ({"num_generations": 3}, "num_generations: 3 does not divide the 4 rows"),
        ({"precision": "bf16"}, "precision: Miles is run in float32 only"),
        ({"tp_size": 3}, "tp_size: 3 does not divide"),
        ({"options": ("gamma=1",)}, "options: miles is run with no option"),
    ],
)
def test_what_miles_is_not_run_with_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        adapter("miles").check(spec_of(**settings))
    assert said in str(caught.value)


def test_models_with_experts_are_refused() -> None:
    with pytest.raises(BadRequest, match="Miles is run with dense models here"):
        adapter("miles").check(spec_of("tiny:qwen3_moe"))


def test_other_frameworks_name_miles_for_its_objectives() -> None:
    for name in ("trl", "plain"):
        spec = RunSpec(name, resolve_model("tiny:qwen3").path, resolve_data("gsm8k_sample"), objective="ppo")
        with pytest.raises(BadRequest, match="framework miles"):
            adapter(name).check(spec)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"advantage_estimator": "grpo", "eps_clip": 0.2, "eps_clip_high": 0.2, "kl_loss_coef": 0.1}),
        ({"grpo_loss": "gspo"}, {"advantage_estimator": "gspo", "eps_clip": 3e-4, "eps_clip_high": 4e-4}),
        ({"grpo_loss": "dapo"}, {"advantage_estimator": "grpo", "eps_clip_high": 0.28, "calculate_per_token_loss": 1}),
        ({"beta": 0.0}, {"use_kl_loss": False, "kl_coef": 0.0}),
        ({"objective": "ppo"}, {"advantage_estimator": "ppo", "lambd": 0.95, "kl_coef": 0.1, "use_kl_loss": False}),
        (
            {"objective": "reinforce_plus_plus"},
            {"normalize_advantages": True, "kl_loss_type": "k1", "calculate_per_token_loss": True},
        ),
    ],
)
def test_arguments_say_what_the_spec_says(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    found = build_arguments(spec_of(**settings))
    assert {name: found[name] for name in expected} == expected
    assert (found["global_batch_size"], found["micro_batch_size"], found["rollout_batch_size"]) == (4, 2, 1)


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    return subprocess.run(
        ["git", *identity, "-C", str(directory), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_checkout_is_named_by_a_variable_and_told_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(BadRequest, match="PLUMBLINE_MILES_CHECKOUT is unset; clone https://github"):
        find_checkout()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(BadRequest, match="so it is no checkout of Miles"):
        find_checkout()
    file = tmp_path / STEP
    file.parent.mkdir(parents=True)
    file.write_text("")
    with pytest.raises(BadRequest, match="name a clone, not an archive"):
        find_checkout()
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "m")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert find_checkout().commit == commit
    assert find_checkout().path == tmp_path.resolve()
    file.write_text("changed = True\n")
    assert find_checkout().commit == f"{commit}+changed"


LOADED = runpy.run_path(str(HOOKS))
Rows, own_tokens = LOADED["Rows"], LOADED["own_tokens"]


@pytest.mark.parametrize("size", [2, 3])
def test_context_parallel_ranks_have_each_token_of_a_completion_once(size: int) -> None:
    for total, completion in ((11, 6), (12, 9), (13, 2), (5, 4), (40, 1)):
        parts = [own_tokens(total, completion, cp_rank=rank, cp_size=size) for rank in range(size)]
        assert sorted(torch.cat(parts).tolist()) == list(range(completion))
        for part in parts:
            assert all(one < other for one, other in pairwise(part.tolist()))
    assert own_tokens(11, 6, cp_rank=0, cp_size=1).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_rank_has_the_tokens_that_the_positions_of_its_two_chunks_predict() -> None:
    # 12 tokens over 2 ranks in chunks of 3: rank 0 has positions 0-2 and 9-11, rank 1 has 3-8; the prompt has 4 tokens.
    assert own_tokens(12, 8, cp_rank=0, cp_size=2).tolist() == [6, 7]
    assert own_tokens(12, 8, cp_rank=1, cp_size=2).tolist() == [0, 1, 2, 3, 4, 5]


def test_sequences_become_rows_with_what_belongs_to_a_token_at_its_place() -> None:
    rows = Rows(
        tokens=[torch.tensor([1, 2, 3, 4, 5]), torch.tensor([6, 7, 8])],
        masks=[torch.tensor([1, 0, 1]), torch.tensor([1, 1])],
        prompts=[2, 1],
        completions=[3, 2],
        own=[torch.tensor([1, 2]), torch.tensor([0])],
    )
    batch = rows.lay_batch()
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5], [0, 6, 7, 8, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [0, 1, 1, 1, 0]]
    assert rows.lay_mask().tolist() == [[1, 0, 1], [1, 1, 0]]
    assert rows.lay([torch.tensor([0.5, 0.25]), torch.tensor([2.0])]).tolist() == [[0.0, 0.5, 0.25], [2.0, 0.0, 0.0]]
    # token 1 of the first completion does not count, and token 1 of the second is another rank's
    assert rows.lay_target().tolist() == [[-100, -100, -100, 5, -100], [-100, 7, -100, -100, -100]]
    split = rows.split()
    assert split["prompt_ids"].tolist() == [[1, 2], [0, 6]]
    assert split["completion_ids"].tolist() == [[3, 4, 5], [7, 8, 0]]
    assert split["prompt_mask"].tolist() == [[1, 1], [0, 1]]
