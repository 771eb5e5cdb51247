"""What the recorder wraps of Miles: rollouts, each micro-batch and its loss, and Megatron's own steps.

Miles lays sequences one after the other, and context-parallel ranks have some positions of each. Here every sequence
is a row, its prompt padded on the left and its completion on the right, and what belongs to a token stands at its
place: zero, or −100, where another rank computes it. A rank's scalar is recorded as its share of the step's objective,
so that the shares of all ranks with other rows or positions add up to it.

Read by the recorder in the framework's process (`plumbline-capture --hooks`).
"""

from __future__ import annotations

import functools
import importlib
import os
import runpy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from plumbline_capture.framework import keep_batch, keep_given, keep_losses, keep_rollout, state_package
from plumbline_capture.posthook import after_import

IGNORED = -100
COMMIT = "PLUMBLINE_MILES_COMMIT"
STEP, LOSS = "miles.backends.megatron_utils.model", "miles.backends.training_utils.loss"
LOSSES = "miles.backends.training_utils.loss_hub.losses"
_MEGATRON = runpy.run_path(str(Path(__file__).parent.parent / "megatron_core" / "hooks.py"))
wrap_clipping, wrap_making, OPTIMIZER = (_MEGATRON[name] for name in ("wrap_clipping", "wrap_making", "OPTIMIZER"))


def install(recorder: Any) -> None:
    """Wrap Miles' functions, and Megatron's, once they are imported."""
    watch = Watch(recorder)
    state_package(recorder, "miles", os.environ.get(COMMIT, "unknown"))
    after_import(OPTIMIZER, functools.partial(wrap_clipping, recorder))
    after_import("megatron.core.optimizer", functools.partial(wrap_making, recorder))
    after_import(STEP, watch.wrap_step)
    after_import(LOSS, watch.wrap_advantages)
    after_import(LOSSES, watch.wrap_log_probs)


@dataclass(frozen=True)
class Rows:
    """Sequences as rows: `prompts`, `completions`: lengths; `own`: of each row, the completion's tokens that this rank
    computes, in the order in which Miles holds them.
    """

    tokens: Sequence[torch.Tensor]
    masks: Sequence[torch.Tensor]
    prompts: Sequence[int]
    completions: Sequence[int]
    own: Sequence[torch.Tensor]

    @property
    def before(self) -> int:
        """Columns of prompts."""
        return max(self.prompts)

    @property
    def width(self) -> int:
        """Columns of completions."""
        return max(self.completions)

    def lay_batch(self) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask`, (rows, before + width)."""
        ids = torch.zeros(len(self.tokens), self.before + self.width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, (tokens, prompt) in enumerate(zip(self.tokens, self.prompts, strict=True)):
            start = self.before - prompt
            ids[row, start : start + tokens.numel()] = tokens.cpu()
            mask[row, start : start + tokens.numel()] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def lay_mask(self) -> torch.Tensor:
        """(rows, width) int64: the tokens of completions that count."""
        laid = torch.zeros(len(self.tokens), self.width, dtype=torch.long)
        for row, mask in enumerate(self.masks):
            laid[row, : mask.numel()] = mask.cpu()
        return laid

    def lay(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """(rows, width) of what this rank holds of each completion's tokens; 0 elsewhere."""
        laid = torch.zeros(len(self.tokens), self.width, dtype=values[0].dtype)
        for row, (own, value) in enumerate(zip(self.own, values, strict=True)):
            laid[row, own] = value.detach().cpu()
        return laid

    def lay_target(self) -> torch.Tensor:
        """(rows, before + width) int64: the token after each position that counts and that this rank computes."""
        batch, counted = self.lay_batch()["input_ids"], self.lay_mask().bool()
        target = torch.full_like(batch, IGNORED)
        for row, own in enumerate(self.own):
            places = own[counted[row, own]] + self.before
            target[row, places - 1] = batch[row, places]
        return target

    def split(self) -> dict[str, torch.Tensor]:
        """The prompts, padded on the left, and the completions, padded on the right."""
        batch = self.lay_batch()
        ids, mask = batch["input_ids"], batch["attention_mask"]
        return {
            "prompt_ids": ids[:, : self.before],
            "prompt_mask": mask[:, : self.before],
            "completion_ids": ids[:, self.before :],
            "completion_mask": self.lay_mask(),
        }


def read_rows(batch: Any, tokens: Sequence[torch.Tensor]) -> Rows:
    """The rows of a rollout or of a micro-batch, of which `tokens` are the whole sequences."""
    totals, completions = list(batch["total_lengths"]), list(batch["response_lengths"])
    mpu: Any = importlib.import_module("megatron.core.parallel_state")
    rank, size = mpu.get_context_parallel_rank(), mpu.get_context_parallel_world_size()
    own = [own_tokens(t, c, cp_rank=rank, cp_size=size) for t, c in zip(totals, completions, strict=True)]
    prompts = [total - completion for total, completion in zip(totals, completions, strict=True)]
    return Rows(tokens, batch["loss_masks"], prompts, completions, own)


def own_tokens(total: int, completion: int, *, cp_rank: int, cp_size: int) -> torch.Tensor:
    """The tokens of a completion whose log-probabilities a context-parallel rank computes: (n,) int64, from 0.

    A sequence, filled up to a multiple of 2 · cp_size, is cut into as many chunks; rank r has r and 2 · cp_size − 1 − r
    of them (docs of Miles' `cp_utils.py`); the position before a token computes it.
    """
    prompt = total - completion
    if cp_size == 1:
        return torch.arange(completion)
    size = -(-total // (2 * cp_size))
    parts = []
    for chunk in (cp_rank, 2 * cp_size - 1 - cp_rank):
        first, stop = max(chunk * size, prompt - 1), min((chunk + 1) * size, total - 1)
        parts.append(torch.arange(first, max(first, stop)) + 1 - prompt)
    return torch.cat(parts)


class Watch:
    """One training: the micro-batches whose loss has not been seen yet, the oldest first."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.waiting: list[tuple[int, Rows]] = []
        self.log_probs: Any = None
        """what the policy says of the tokens of the micro-batch whose loss is computed"""

    def wrap_step(self, module: Any) -> None:
        """Keep each micro-batch as the step takes it, and its loss."""
        take, loss = module.get_batch, module.loss_function

        @functools.wraps(take)
        def get_batch(iterator: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
            batch = take(iterator, keys, *args, **kwargs)
            if "advantages" in keys:
                with self.recorder.guarded("batch"):
                    self._keep_batch(batch)
            return batch

        @functools.wraps(loss)
        def loss_function(args: Any, batch: Any, num_microbatches: int, *rest: Any, **kwargs: Any) -> Any:
            self.log_probs = None
            result = loss(args, batch, num_microbatches, *rest, **kwargs)
            if self.waiting:
                index, rows = self.waiting.pop(0)
                with self.recorder.guarded(f"target of micro-batch {index}"):
                    share = float(result[0].detach())
                    if not args.calculate_per_token_loss:
                        # Megatron divides by the micro-batches, and averages over the ranks
                        share /= num_microbatches * _count_ranks()
                    self._keep_losses(index, rows, share, result[0].dtype)
            return result

        module.get_batch, module.loss_function = get_batch, loss_function

    def wrap_log_probs(self, module: Any) -> None:
        """Remember what the policy says of the tokens, as the loss takes it."""
        original = module.get_log_probs_and_entropy

        @functools.wraps(original)
        def get_log_probs_and_entropy(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            self.log_probs = [value.detach() for value in found["log_probs"]]
            return found

        module.get_log_probs_and_entropy = get_log_probs_and_entropy

    def wrap_advantages(self, module: Any) -> None:
        """Keep each rollout with the advantages that Miles computes of it."""
        original = module.compute_advantages_and_returns

        @functools.wraps(original)
        def compute_advantages_and_returns(args: Any, data: Any) -> Any:
            result = original(args, data)
            with self.recorder.guarded("rollouts"):
                rows = read_rows(data, data["tokens"])
                given = {**rows.split(), "rewards": torch.tensor(data["raw_reward"], dtype=torch.float32)}
                keep_rollout(self.recorder, given | _lay_all(rows, data, ("values",)))
            return result

        module.compute_advantages_and_returns = compute_advantages_and_returns

    def _keep_batch(self, batch: Any) -> None:
        rows = read_rows(batch, batch["unconcat_tokens"])
        index = keep_batch(self.recorder, rows.lay_batch())
        if index is None:
            return
        parts = rows.split()
        given = {name: parts[name] for name in ("completion_ids", "completion_mask")}
        keep_given(self.recorder, index, given | _lay_all(rows, batch, ()))
        self.waiting.append((index, rows))

    def _keep_losses(self, index: int, rows: Rows, share: float, dtype: torch.dtype) -> None:
        target = rows.lay_target()
        losses = torch.zeros(target.shape, dtype=torch.float64)
        losses[:, rows.before - 1 : -1] = -rows.lay(self.log_probs).double()
        keep_losses(self.recorder, index, target=target, losses=losses, scalar=share, dtype=dtype)


def _lay_all(rows: Rows, values: Any, more: Sequence[str]) -> dict[str, torch.Tensor]:
    """What of the tokens was given, under the recorder's names."""
    names = {"advantages": "advantages", "log_probs": "old_per_token_logps", "ref_log_probs": "ref_per_token_logps"}
    names |= {name: name for name in more}
    return {name: rows.lay(values[source]) for source, name in names.items() if values.get(source) is not None}


def _count_ranks() -> int:
    mpu: Any = importlib.import_module("megatron.core.parallel_state")
    return int(mpu.get_data_parallel_world_size(with_context_parallel=True))
