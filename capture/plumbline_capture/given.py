"""What a trainer gives to its loss beside the model's batch, and what it generated to train on."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Callable, Dict, List, Mapping

import torch

from plumbline_capture.calls import named_tensors
from plumbline_capture.represent import keep_tensor
from plumbline_capture.state import MicroBatch, Recorder

ROLLOUT_INPUTS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages")
"""of TRL's generation batch, in the order in which it was generated (`trl/trainer/grpo_trainer.py`)"""


class watch_loss:
    """While it is entered, remember the inputs of a trainer's `compute_loss` for the micro-batch that they make."""

    def __init__(self, recorder: Recorder, trainer: Any) -> None:
        self._recorder = recorder
        self._trainer = trainer
        self._own: Dict[str, Any] = trainer.__dict__

    def __enter__(self) -> None:
        self._had = self._own.get("compute_loss")
        original: Callable[..., Any] = self._trainer.compute_loss

        @functools.wraps(original)
        def compute_loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            with self._recorder.guarded("loss inputs"):
                if isinstance(inputs, Mapping):
                    self._recorder.micro_batch().given = dict(inputs)
            return original(model, inputs, *args, **kwargs)

        self._own["compute_loss"] = compute_loss

    def __exit__(self, *_: Any) -> None:
        if self._had is None:
            self._own.pop("compute_loss", None)
        else:
            self._own["compute_loss"] = self._had


def settle_given(recorder: Recorder, micro_batch: MicroBatch) -> None:
    """Keep the tensors that the loss was given and the model was not; called when the micro-batch's backward begins."""
    given, micro_batch.given = micro_batch.given, {}
    prefix = f"batch/{micro_batch.index}/"
    for name, value in named_tensors(given):
        if f"{prefix}{name}" not in recorder.now.entries:
            keep_tensor(recorder, value, kind="loss_input", name=name, micro_batch=micro_batch.index)


def observe_kto(recorder: Recorder, module: ModuleType) -> None:
    """Observe TRL's KTOTrainer: what policy and reference model, in this order, say of mismatched answers."""
    trainer: Any = getattr(module, "KTOTrainer", None)
    compute = getattr(trainer, "_compute_kl_logps", None)
    if compute is None:
        recorder.note_missing("mismatched answers", "trl's KTOTrainer has not the method that scores them")
        return

    @functools.wraps(compute)
    def _compute_kl_logps(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = compute(self, *args, **kwargs)
        if recorder.active and self.model.training and isinstance(found, torch.Tensor):
            with recorder.guarded("mismatched answers"):
                given = recorder.micro_batch().given
                name = "reference_KL_logps" if "KL_logps" in given else "KL_logps"
                given[name] = found.detach()
        return found

    trainer._compute_kl_logps = _compute_kl_logps


def observe_grpo(recorder: Recorder, module: ModuleType) -> None:
    """Observe TRL's GRPOTrainer: each batch of completions that it generates, with their rewards and advantages."""
    trainer: Any = getattr(module, "GRPOTrainer", None)
    generate = getattr(trainer, "_generate_and_score_completions", None)
    reward = getattr(trainer, "_calculate_rewards", None)
    if generate is None or reward is None:
        recorder.note_missing("rollouts", "trl's GRPOTrainer has not the two methods that generate and reward")
        return
    rewards: List[torch.Tensor] = []

    @functools.wraps(reward)
    def _calculate_rewards(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = reward(self, *args, **kwargs)
        if isinstance(found, torch.Tensor):
            rewards.append(found.detach())
        return found

    @functools.wraps(generate)
    def _generate_and_score_completions(self: Any, *args: Any, **kwargs: Any) -> Any:
        rewards.clear()
        made = generate(self, *args, **kwargs)
        if recorder.active and self.model.training:
            with recorder.guarded("rollouts"):
                _keep_rollout(recorder, made, rewards)
        rewards.clear()
        return made

    trainer._calculate_rewards = _calculate_rewards
    trainer._generate_and_score_completions = _generate_and_score_completions


def _keep_rollout(recorder: Recorder, made: Mapping[str, Any], rewards: List[torch.Tensor]) -> None:
    """Keep one generation of this step; of several the last one is kept."""
    for name in ROLLOUT_INPUTS:
        keep_tensor(recorder, made[name], kind="rollout", name=name)
    if len(rewards) != 1:
        recorder.note_missing("rewards", f"rewards were computed {len(rewards)} times for one generation")
        return
    keep_tensor(recorder, rewards[0], kind="rollout", name="rewards")
