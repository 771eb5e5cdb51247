"""ms-swift: what its hooks make of GRPO's batches and of ranks that share positions, without ms-swift."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plumbline_capture.loss import IGNORED

from workers.frameworks.ms_swift.hooks import Watch, lay_out, place_part, read_given

IDS = torch.tensor([[1, 2, 3, 4, 5, 0], [1, 2, 6, 7, 8, 9]])
ATTENDED = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]])
MASK = torch.tensor([[False, True, True, False], [True, True, True, True]])
"""of the last four positions"""


def make_batch(**changes: Any) -> dict[str, Any]:
    log_probs = torch.arange(8.0).view(2, 4)
    fields: dict[str, Any] = {
        "completion_mask": MASK,
        "advantages": torch.tensor([[0.7], [-0.7]]).expand(2, 4),
        "old_per_token_logps": log_probs,
        "ref_per_token_logps": None,
        **changes,
    }
    inputs = {"input_ids": IDS, "attention_mask": ATTENDED}
    return {"model_inputs": inputs, "grpo_batch": SimpleNamespace(**fields)}


def test_what_grpos_loss_is_given_has_the_names_of_trls() -> None:
    given = read_given(make_batch())
    assert set(given) == {
        *("prompt_ids", "prompt_mask", "completion_ids", "completion_mask"),
        *("advantages", "old_per_token_logps"),
    }
    assert given["prompt_mask"].tolist() == [
        [True, True, True, False, False, False],
        [True, True, False, False, False, False],
    ]
    assert given["completion_ids"].tolist() == [[3, 4, 5, 0], [6, 7, 8, 9]]
    assert given["advantages"].tolist() == pytest.approx([0.7, -0.7])


def test_tokens_of_one_completion_with_advantages_of_their_own_are_refused() -> None:
    advantages = torch.tensor([[0.7, 0.7, 0.7, 0.7], [-0.7, -0.7, -0.7, 0.1]])
    with pytest.raises(ValueError, match="the tokens of one completion have advantages that differ"):
        read_given(make_batch(advantages=advantages))
    advantages[0, 3], advantages[1, 3] = 5.0, -0.7  # beyond the completion
    assert read_given(make_batch(advantages=advantages))["advantages"].tolist() == pytest.approx([0.7, -0.7])


def test_a_token_of_a_completion_is_predicted_one_position_before_it() -> None:
    target, losses = lay_out(IDS, -torch.arange(1.0, 9.0).view(2, 4), MASK)
    assert target.tolist() == [[IGNORED, IGNORED, 4, 5, IGNORED, IGNORED], [IGNORED, 6, 7, 8, 9, IGNORED]]
    assert losses.tolist() == [[0.0, 0.0, 2.0, 3.0, 0.0, 0.0], [0.0, 5.0, 6.0, 7.0, 8.0, 0.0]]


def test_a_ranks_share_of_the_positions_stands_where_it_belongs() -> None:
    part = torch.tensor([[4, 5, IGNORED]])
    assert place_part(part, 0, 5, fill=IGNORED).tolist() == [[4, 5, IGNORED, IGNORED, IGNORED]]
    assert place_part(part, 1, 5, fill=IGNORED).tolist() == [[IGNORED, IGNORED, IGNORED, 4, 5]]  # 6 with what fills up


def test_a_generation_is_kept_with_all_its_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, torch.Tensor] = {}

    def keep(recorder: object, value: torch.Tensor, *, kind: str, name: str) -> None:
        assert kind == "rollout"
        kept[name] = value

    monkeypatch.setattr("workers.frameworks.ms_swift.hooks.keep_tensor", keep)
    short = {"model_inputs": {"input_ids": IDS[:, 2:]}, "grpo_batch": make_batch()["grpo_batch"]}
    Watch(None).keep_rollout([make_batch(), short], torch.arange(4.0)[:, None])
    assert kept["prompt_ids"].shape == (4, 6)
    assert kept["prompt_ids"][2].tolist() == [0, 0, 3, 4, 5, 0]
    assert kept["completion_mask"].shape == (4, 4)
    assert kept["advantages"].tolist() == pytest.approx([0.7, -0.7, 0.7, -0.7])
    assert kept["rewards"].flatten().tolist() == [0.0, 1.0, 2.0, 3.0]
