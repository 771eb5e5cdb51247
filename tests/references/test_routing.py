"""Recorded expert choices: replayed alike by the plain models and transformers' classes, and judged by their margin."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.references.batch import Document, MicroBatch
from checks.references.hf import lift_casts, load_hf
from checks.references.plain import load_plain
from checks.references.routing import Choices, Replay, judge_choices, lost_margins
from checks.references.step import StepResult, run_step
from tests.references.checkpoints import draw_batch, save_checkpoint

# As many groups as experts are chosen: the top-k of groups must not be taken for that of experts.
GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 2}
ROUTERS = {
    "qwen3_moe": ("model.layers.1.mlp.gate", {}),
    "deepseek_v3": ("model.layers.1.mlp.gate", GROUPS),
    "gpt_oss": ("model.layers.1.mlp.router", {}),
}


def one_micro_batch(ids: torch.Tensor) -> MicroBatch:
    rows, length = ids.shape
    counted = torch.ones_like(ids, dtype=torch.bool)
    counted[:, -1] = False
    return MicroBatch(
        input_ids=ids,
        targets_seen=torch.cat([ids[:, 1:], torch.zeros_like(ids[:, :1])], 1),
        counted=counted,
        token_losses_seen=None,
        position_ids=None,
        documents=tuple(Document(row, 0, length) for row in range(rows)),
        boundaries="mask",
        unbounded=None,
    )


def replay_step(model: Any, micro: MicroBatch, choices: Choices) -> tuple[StepResult, Replay]:
    replay = Replay(choices, [micro])
    replay.attach(model)
    with lift_casts():
        result = run_step(model, [micro], denominator=46, before_forward=replay.begin)
    replay.detach()
    return result, replay


@pytest.mark.parametrize("family", ROUTERS)
def test_plain_models_replay_choices_as_the_classes_do(tmp_path: Path, family: str) -> None:
    router, settings = ROUTERS[family]
    checkpoint = save_checkpoint(tmp_path, family, **settings)
    micro = one_micro_batch(draw_batch())
    experts = settings.get("n_routed_experts", 4)
    drawn = torch.rand(2, 24, experts, generator=torch.Generator().manual_seed(5)).argsort(-1)[..., :2]
    choices = {router: (drawn,)}
    plain, ours = replay_step(load_plain(checkpoint, dtype=torch.float64, attention="eager"), micro, choices)
    theirs, held = replay_step(load_hf(checkpoint, dtype=torch.float64, attention="eager"), micro, choices)
    free, _ = replay_step(load_plain(checkpoint, dtype=torch.float64, attention="eager"), micro, {})
    assert abs(plain.loss - theirs.loss) < 1e-12
    assert abs(plain.loss - free.loss) > 1e-3
    assert all(torch.allclose(plain.gradients[n], g, rtol=0, atol=1e-11) for n, g in theirs.gradients.items())
    assert torch.allclose(ours.scores[router][0], held.scores[router][0], rtol=0, atol=1e-12)
    assert list(ours.groups) == list(held.groups) == ([router] if family == "deepseek_v3" else [])
    if ours.groups:
        assert ours.groups[router][0].shape == (2, 24, 4, 2)
        assert torch.allclose(ours.groups[router][0], held.groups[router][0], rtol=0, atol=1e-12)
        assert (ours.scores[router][0].isfinite().sum(-1) == 4).all()


@pytest.mark.parametrize("family", ROUTERS)
def test_a_model_s_own_choices_have_no_margin_and_replay_to_the_same_step(tmp_path: Path, family: str) -> None:
    router, settings = ROUTERS[family]
    model: Any = load_plain(save_checkpoint(tmp_path, family, **settings), dtype=torch.float64, attention="eager")
    chosen: list[torch.Tensor] = []
    handle = model.get_submodule(router).register_forward_hook(lambda _m, _a, out: chosen.append(out[2]))
    micro = one_micro_batch(draw_batch())
    free, _ = replay_step(model, micro, {})
    handle.remove()
    choices = {router: (torch.cat(chosen).view(2, 24, 2),)}
    replayed, replay = replay_step(model, micro, choices)
    assert abs(replayed.loss - free.loss) < 1e-14
    (error,) = judge_choices(choices, replay.scores, [], groups=replay.groups)
    assert (error.router, error.tokens, error.differing, error.margin) == (router, 48, 0, 0.0)


def test_without_groups_the_margin_is_that_of_the_worst_chosen_expert() -> None:
    scores = torch.tensor([[0.9, 0.5, 0.4, 0.1]], dtype=torch.float64)
    assert lost_margins(scores, torch.tensor([[1, 0]]), None).tolist() == [0.0]
    assert lost_margins(scores, torch.tensor([[0, 2]]), None).tolist() == pytest.approx([0.1])
    assert lost_margins(scores, torch.tensor([[3, 0]]), None).tolist() == pytest.approx([0.4])


def test_a_group_that_lost_by_little_has_a_small_margin() -> None:
    # Sums of two: 1.4, 1.38 and 0.3; one group is kept, the first.
    groups = torch.tensor([[[0.8, 0.6], [0.7, 0.68], [0.2, 0.1]]], dtype=torch.float64)
    scores = groups.clone()
    scores[:, 1:] = -math.inf
    flat = scores.flatten(-2)
    assert lost_margins(flat, torch.tensor([[0]]), groups).tolist() == [0.0]
    assert lost_margins(flat, torch.tensor([[1]]), groups).tolist() == pytest.approx([0.2])
    assert lost_margins(flat, torch.tensor([[2]]), groups).tolist() == pytest.approx([0.01])
    assert lost_margins(flat, torch.tensor([[3]]), groups).tolist() == pytest.approx([0.02])  # the other was better
    assert lost_margins(flat, torch.tensor([[4]]), groups).tolist() == pytest.approx([0.55])


def test_an_expert_of_a_kept_group_is_judged_among_all_kept_groups() -> None:
    groups = torch.tensor([[[0.8, 0.1], [0.7, 0.6], [0.2, 0.1]]], dtype=torch.float64)
    flat = groups.clone()
    flat[:, 2] = -math.inf
    assert lost_margins(flat.flatten(-2), torch.tensor([[0, 2]]), groups).tolist() == [0.0]
    assert lost_margins(flat.flatten(-2), torch.tensor([[2, 3]]), groups).tolist() == pytest.approx([0.1])


def test_differing_tokens_and_the_floor_are_counted_over_real_tokens() -> None:
    exact = torch.tensor([[[0.9, 0.5, 0.4], [0.2, 0.6, 0.1], [math.nan] * 3]], dtype=torch.float64)
    noisy = (exact + torch.tensor([0.0, 0.02, -0.01])).float()
    choices = {"router": (torch.tensor([[[2], [1], [0]]]),)}
    (error,) = judge_choices(choices, {"router": [exact]}, [{"router": [noisy]}], groups={})
    assert (error.tokens, error.differing) == (2, 1)
    assert error.margin == pytest.approx(0.5)
    assert error.floor == pytest.approx(0.02, rel=1e-5)
