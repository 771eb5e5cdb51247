"""What the recorder wraps of `swift rlhf`: log-probabilities of DPO and GRPO, and what GRPO generated and rewarded.

Of `swift sft` the recorder needs nothing else: its loss is seen where torch computes it. DPO and GRPO take
log-probabilities of logits by themselves, and GRPO's loss is given an object. What GRPO trains on is kept under the
names of TRL's trainer, which the checks read.

Read by the recorder in the framework's process (`plumbline-capture --hooks`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from plumbline_capture.loss import IGNORED, token_losses
from plumbline_capture.posthook import after_import
from plumbline_capture.represent import keep_tensor

MIXIN, GRPO = "swift.rlhf_trainers.rlhf_mixin", "swift.rlhf_trainers.grpo_trainer"
SEQUENCE, SFT = "swift.sequence_parallel.sequence_parallel", "swift.trainers.seq2seq_trainer"
ROLLOUT = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")


def install(recorder: Any) -> None:
    """Wrap the trainers' methods once they are imported."""
    watch = Watch(recorder)
    after_import(MIXIN, watch.wrap_preferences)
    after_import(GRPO, watch.wrap_grpo)
    after_import(SEQUENCE, watch.wrap_sequence)
    after_import(SFT, watch.wrap_loss)


class Watch:
    """One training with `swift rlhf`."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder

    def wrap_sequence(self, module: Any) -> None:
        """State this rank's place among those that share the positions of a row, and keep the labels of all of them."""
        original, split = module.SequenceParallel.prepare, module.SequenceParallel.prepare_inputs

        @functools.wraps(original)
        def prepare(this: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(this, *args, **kwargs)
            with self.recorder.guarded("mesh"):
                self.recorder.mesh = {"dp": this.dp_rank, "cp": this.sp_rank}
            return result

        @functools.wraps(split)
        def prepare_inputs(this: Any, inputs: Any) -> Any:
            labels = inputs.get("labels")
            if self.recorder.active and labels is not None and torch.is_grad_enabled():
                with self.recorder.guarded("labels"):
                    index = self.recorder.micro_batch().index
                    keep_tensor(self.recorder, labels, kind="batch", name="labels", micro_batch=index)
            return split(this, inputs)

        module.SequenceParallel.prepare, module.SequenceParallel.prepare_inputs = prepare, prepare_inputs

    def wrap_loss(self, module: Any) -> None:
        """Keep the losses of the positions that this rank computes of rows that several share."""
        original, sequence = module.per_token_loss_func_sp, module.sequence_parallel

        @functools.wraps(original)
        def per_token_loss_func_sp(outputs: Any, labels: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            result = original(outputs, labels, *args, **kwargs)
            if self.recorder.active and outputs.logits.requires_grad:
                with self.recorder.guarded("token_loss"):
                    width = sequence.real_position_ids.shape[1]
                    losses = token_losses(outputs.logits.detach().flatten(0, 1), labels.flatten()).view(labels.shape)
                    own = sequence.sp_rank
                    target = place_part(labels.detach().cpu(), own, width, fill=IGNORED)
                    micro_batch = self.recorder.micro_batch()
                    micro_batch.losses = [(target, place_part(losses, own, width, fill=0.0))]
                    micro_batch.loss_source = "logits"
            return result

        module.per_token_loss_func_sp = per_token_loss_func_sp

    def wrap_preferences(self, module: Any) -> None:
        """Keep the targets of the policy's log-probabilities, and these, of each micro-batch of preferences."""
        mixin = module.RLHFTrainerMixin
        original = mixin.get_per_token_logps

        @functools.wraps(original)
        def get_per_token_logps(this: Any, logits: torch.Tensor, labels: torch.Tensor, *args: Any, **kw: Any) -> Any:
            if self.recorder.active and logits.requires_grad and this.model.training:
                with self.recorder.guarded("token_loss"):
                    target = labels.detach().cpu()
                    losses = token_losses(logits.detach().flatten(0, 1), target.to(logits.device).flatten())
                    micro_batch = self.recorder.micro_batch()
                    micro_batch.losses = [(target, losses.view(target.shape))]
                    micro_batch.loss_source = "logits"
            return original(this, logits, labels, *args, **kw)

        mixin.get_per_token_logps = get_per_token_logps

    def wrap_grpo(self, module: Any) -> None:
        """Keep each batch of completions as it was generated and rewarded, and what the loss was given of it."""
        trainer = module.GRPOTrainer
        generate, compute = trainer._generate_and_score_completions, trainer.compute_loss
        score = trainer._get_per_token_logps_and_entropies

        @functools.wraps(generate)
        def _generate_and_score_completions(this: Any, *args: Any, **kwargs: Any) -> Any:
            made = generate(this, *args, **kwargs)
            if self.recorder.active and this.model.training:
                with self.recorder.guarded("rollouts"):
                    self.keep_rollout(made, this._rewards_per_func)
            return made

        @functools.wraps(compute)
        def compute_loss(this: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self.recorder.active and this.model.training:
                with self.recorder.guarded("loss inputs"):
                    one = inputs[0] if isinstance(inputs, list) else inputs
                    self.recorder.micro_batch().given = read_given(one)
            return compute(this, model, inputs, *args, **kwargs)

        @functools.wraps(score)
        def _get_per_token_logps_and_entropies(
            this: Any, model: Any, model_inputs: Any, grpo_batch: Any, *args: Any, **kwargs: Any
        ) -> Any:
            found = score(this, model, model_inputs, grpo_batch, *args, **kwargs)
            if self.recorder.active and this.model.training and found[0].requires_grad:
                with self.recorder.guarded("token_loss"):
                    target, losses = lay_out(model_inputs["input_ids"], found[0].detach(), grpo_batch.completion_mask)
                    if "logits_to_keep" in this.model_kwarg_keys:  # the model was asked for these logits alone
                        width = found[0].shape[1] + 1
                        target, losses = target[:, -width:], losses[:, -width:]
                    micro_batch = self.recorder.micro_batch()
                    micro_batch.losses = [(target, losses)]
                    micro_batch.loss_source = "log_probs"
            return found

        trainer._generate_and_score_completions, trainer.compute_loss = _generate_and_score_completions, compute_loss
        trainer._get_per_token_logps_and_entropies = _get_per_token_logps_and_entropies

    def keep_rollout(self, made: Sequence[Mapping[str, Any]], rewards: torch.Tensor) -> None:
        """Keep one generation, in the order in which it was generated: the micro-batches' rows one below another."""
        parts = [read_given(one) for one in made]
        for name in ROLLOUT:
            width = max(part[name].shape[1] for part in parts)
            rows = [torch.nn.functional.pad(part[name], (width - part[name].shape[1], 0)) for part in parts]
            keep_tensor(self.recorder, torch.cat(rows), kind="rollout", name=name)
        advantages = torch.cat([part["advantages"] for part in parts])
        keep_tensor(self.recorder, advantages, kind="rollout", name="advantages")
        keep_tensor(self.recorder, rewards.detach(), kind="rollout", name="rewards")


def read_given(one: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """What GRPO's loss is given of a micro-batch, under the names of TRL's.

    completion_ids, completion_mask, old_per_token_logps, ref_per_token_logps: (rows, last positions); prompt_ids,
    prompt_mask: (rows, positions); advantages: (rows,).

    Raises:
        ValueError: the tokens of a completion have advantages that differ.
    """
    ids, batch = one["model_inputs"]["input_ids"], one["grpo_batch"]
    mask = batch.completion_mask.bool()
    attended = one["model_inputs"].get("attention_mask")
    attended = torch.ones_like(ids, dtype=torch.bool) if attended is None else attended.bool()
    completion = torch.nn.functional.pad(mask, (ids.shape[1] - mask.shape[1], 0))
    advantages = batch.advantages[:, 0]
    if not bool((batch.advantages == advantages[:, None])[mask].all()):
        raise ValueError("the tokens of one completion have advantages that differ")
    given = {
        "prompt_ids": ids,
        "prompt_mask": attended & ~completion,
        "completion_ids": ids[:, -mask.shape[1] :],
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": batch.old_per_token_logps,
        "ref_per_token_logps": batch.ref_per_token_logps,
    }
    return {name: value for name, value in given.items() if value is not None}


def place_part(part: torch.Tensor, rank: int, width: int, *, fill: float) -> torch.Tensor:
    """(rows, positions) of a rank's equal share of them; `width`: without what they were filled up by."""
    own = part.shape[1]
    whole = part.new_full((part.shape[0], max(width, own * (rank + 1))), fill)
    whole[:, own * rank : own * (rank + 1)] = part
    return whole[:, :width]


def lay_out(
    input_ids: torch.Tensor, log_probs: torch.Tensor, completion_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets and losses of a micro-batch, each (rows, positions): token j of a completion is predicted one before it.

    log_probs, completion_mask: (rows, last positions).
    """
    width = log_probs.shape[1]
    mask = completion_mask.bool()
    target = torch.full_like(input_ids, IGNORED)
    target[:, -width - 1 : -1] = input_ids[:, -width:].masked_fill(~mask, IGNORED)
    losses = torch.zeros(input_ids.shape, dtype=torch.float64)
    losses[:, -width - 1 : -1] = -log_probs.double().cpu().masked_fill(~mask.cpu(), 0.0)
    return target.cpu(), losses
