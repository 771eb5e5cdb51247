"""The load-balancing term that a mixture-of-experts run adds to its loss, as the run's own config states it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from checks.references.balance import load_balancing_loss
from checks.references.batch import MicroBatch
from checks.references.step import ForwardBatch


@dataclass
class AuxiliaryLoss:
    """coefficient · E · Σ_e f_e P_e over the tokens of one micro-batch, averaged over the step's micro-batches."""

    coefficient: float
    top_k: int
    micro_batches: int
    last_total: float = 0.0
    _logits: list[tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=list)
    """of each router's forward: its logits, and the experts that it chose where it says so"""
    _handles: list[torch.utils.hooks.RemovableHandle] = field(default_factory=list)

    @classmethod
    def of(cls, config: Mapping[str, object], micro_batches: Sequence[MicroBatch]) -> AuxiliaryLoss | None:
        """None unless the run asked for router logits and gives their loss a weight."""
        coefficient = config.get("router_aux_loss_coef")
        if not config.get("output_router_logits") or not isinstance(coefficient, float) or coefficient == 0.0:
            return None
        top_k = config.get("num_experts_per_tok")
        return cls(coefficient, top_k, len(micro_batches)) if isinstance(top_k, int) else None

    def hook(self, model: nn.Module) -> Callable[[Sequence[ForwardBatch]], torch.Tensor | None]:
        """Collect router logits of each forward until `release`; the returned function turns them into the term."""
        self.release()
        self._logits.clear()
        self.last_total = 0.0
        self._handles = [module.register_forward_hook(self._collect) for module in model.modules() if is_router(module)]
        return self._term

    def release(self) -> None:
        """Collect no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _collect(self, _module: nn.Module, _args: object, output: object) -> None:
        given = output if isinstance(output, tuple) else (output,)
        parts = [part for part in given if isinstance(part, torch.Tensor)]
        if parts:
            chosen = next((part for part in parts if not part.is_floating_point()), None)
            self._logits.append((parts[0], chosen))

    def _term(self, group: Sequence[ForwardBatch]) -> torch.Tensor | None:
        if not self._logits:
            return None
        layers = len(self._logits) // len(group)
        taken = [
            [(*self._logits[index * layers + layer], _real_tokens(batch)) for index, batch in enumerate(group)]
            for layer in range(layers)
        ]
        self._logits.clear()
        logits = [torch.cat([scores[real] for scores, _, real in parts]) for parts in taken]
        # The choice that is replayed, not the top-k of these logits: the two may differ where experts nearly tie.
        chosen = [[picked[real] for _, picked, real in parts if picked is not None] for parts in taken]
        complete = all(len(picked) == len(group) for picked in chosen)
        selected = [torch.cat(picked) for picked in chosen] if complete else None
        loss = load_balancing_loss(logits, top_k=self.top_k, selected=selected)
        term = self.coefficient * loss / self.micro_batches
        self.last_total += float(term.detach())
        return term


def _real_tokens(batch: ForwardBatch) -> torch.Tensor:
    if batch.attention_mask is None:
        return torch.ones(batch.input_ids.numel(), dtype=torch.bool)
    return batch.attention_mask.reshape(-1).bool()


def is_router(module: nn.Module) -> bool:
    """Whether a module of a reference model scores experts."""
    return "Router" in type(module).__name__
