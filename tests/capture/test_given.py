"""What a trainer gives to its loss, and what it generates, is kept; the trainer is left as it was."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plumbline_capture.given import observe_grpo, observe_kto, settle_given, watch_loss
from plumbline_capture.loss import settle_losses
from plumbline_capture.represent import keep_tensor
from plumbline_capture.settings import Settings
from plumbline_capture.state import Recorder


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(Settings(out=str(tmp_path), steps=(1,)))


class Trainer:
    """As Hugging Face's: `compute_loss` is looked up on the instance."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def compute_loss(self, model: Any, inputs: Any, scale: float = 1.0) -> float:
        self.seen.append(inputs)
        return 2.0 * scale


def test_the_losss_inputs_are_kept_but_for_those_that_the_model_got(recorder: Recorder) -> None:
    trainer = Trainer()
    ids, advantages = torch.ones(2, 3, dtype=torch.int64), torch.tensor([0.5, -0.5])
    with watch_loss(recorder, trainer):
        assert (
            trainer.compute_loss("model", {"input_ids": ids, "advantages": advantages, "name": "x"}, scale=3.0) == 6.0
        )
    assert "compute_loss" not in trainer.__dict__
    assert trainer.seen[0]["advantages"] is advantages
    micro_batch = recorder.micro_batch()
    keep_tensor(recorder, ids, kind="batch", name="input_ids", micro_batch=micro_batch.index)
    settle_given(recorder, micro_batch)
    assert sorted(recorder.now.entries) == ["batch/0/input_ids", "loss_input/0/advantages"]
    assert recorder.now.tensors["loss_input/0/advantages/full"].tolist() == [0.5, -0.5]
    assert micro_batch.given == {}


def test_a_compute_loss_that_the_instance_has_already_comes_back(recorder: Recorder) -> None:
    trainer = Trainer()
    own = lambda model, inputs: 7.0  # noqa: E731 (an attribute of the instance, as a user's would be)
    trainer.__dict__["compute_loss"] = own
    with watch_loss(recorder, trainer):
        assert trainer.compute_loss("model", {}) == 7.0
    assert trainer.__dict__["compute_loss"] is own


def test_log_probabilities_of_all_rows_are_kept_where_the_loss_saw_a_part_of_them(recorder: Recorder) -> None:
    """As ORPO's: a cross-entropy of the first half of the rows, and log-probabilities of both out of sight."""
    micro_batch = recorder.micro_batch()
    tokens = torch.tensor([[1, 2, 0], [3, 1, 2]])
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    micro_batch.rows_and_positions = (2, 3)
    micro_batch.losses = [(tokens[0, 1:], torch.zeros(2).double())]
    micro_batch.unlabelled = (logits, tokens)
    settle_losses(recorder, micro_batch)
    kept = recorder.now.tensors["next_token/0/next_token/loss/full"]
    expected = -logits.double().log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
    assert torch.allclose(kept, expected, atol=1e-12)


def test_a_generation_is_kept_with_its_rewards_in_its_own_order(recorder: Recorder) -> None:
    made = {name: torch.arange(4).view(2, 2) for name in ("prompt_ids", "prompt_mask", "completion_ids")}
    made |= {"completion_mask": torch.ones(2, 2), "advantages": torch.tensor([1.0, -1.0])}

    class GRPOTrainer:
        model = SimpleNamespace(training=True)

        def _calculate_rewards(self, *_: Any) -> torch.Tensor:
            return torch.tensor([[0.25], [0.75]])

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
            self._calculate_rewards(inputs)
            return made

    observe_grpo(recorder, SimpleNamespace(GRPOTrainer=GRPOTrainer))  # type: ignore[arg-type]
    assert GRPOTrainer()._generate_and_score_completions([]) is made
    assert recorder.now.tensors["rollout/rewards/full"].tolist() == [[0.25], [0.75]]
    assert recorder.now.tensors["rollout/advantages/full"].tolist() == [1.0, -1.0]
    recorder.now.tensors.clear()
    GRPOTrainer.model.training = False
    GRPOTrainer()._generate_and_score_completions([])
    assert recorder.now.tensors == {}


def test_what_policy_and_reference_say_of_mismatched_answers_is_told_apart_by_order(recorder: Recorder) -> None:
    class KTOTrainer:
        model = SimpleNamespace(training=True)

        def _compute_kl_logps(self, value: float) -> torch.Tensor:
            return torch.tensor([value])

    observe_kto(recorder, SimpleNamespace(KTOTrainer=KTOTrainer))  # type: ignore[arg-type]
    trainer = KTOTrainer()
    assert [trainer._compute_kl_logps(value).item() for value in (1.0, 2.0)] == [1.0, 2.0]
    given = recorder.micro_batch().given
    assert (given["KL_logps"].item(), given["reference_KL_logps"].item()) == (1.0, 2.0)


def test_a_trainer_without_the_methods_is_noted(recorder: Recorder) -> None:
    observe_grpo(recorder, SimpleNamespace())  # type: ignore[arg-type]
    observe_kto(recorder, SimpleNamespace())  # type: ignore[arg-type]
    assert [note.what for note in recorder.missing] == ["rollouts", "mismatched answers"]
