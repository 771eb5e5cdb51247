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
    _logits: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, config: Mapping[str, object], micro_batches: Sequence[MicroBatch]) -> AuxiliaryLoss | None:
        """None unless the run asked for router logits and gives their loss a weight."""
        coefficient = config.get("router_aux_loss_coef")
        if not config.get("output_router_logits") or not isinstance(coefficient, float) or coefficient == 0.0:
            return None
        top_k = config.get("num_experts_per_tok")
        return cls(coefficient, top_k, len(micro_batches)) if isinstance(top_k, int) else None

    def hook(self, model: nn.Module) -> Callable[[Sequence[ForwardBatch]], torch.Tensor | None]:
        """Collect router logits of each forward from now on; the returned function turns them into the term."""
        self._logits.clear()
        self.last_total = 0.0
        for module in model.modules():
            if _is_router(module) and not getattr(module, "_plumbline_router", False):
                module.register_forward_hook(self._collect)
                module._plumbline_router = True  # type: ignore[assignment]
        return self._term

    def _collect(self, _module: nn.Module, _args: object, output: object) -> None:
        logits = output[0] if isinstance(output, tuple) else output
        if isinstance(logits, torch.Tensor):
            self._logits.append(logits)

    def _term(self, group: Sequence[ForwardBatch]) -> torch.Tensor | None:
        if not self._logits:
            return None
        layers = len(self._logits) // len(group)
        by_layer = [
            torch.cat([self._logits[index * layers + layer][_real_tokens(batch)] for index, batch in enumerate(group)])
            for layer in range(layers)
        ]
        self._logits.clear()
        loss = load_balancing_loss(by_layer, top_k=self.top_k)
        term = self.coefficient * loss / self.micro_batches
        self.last_total += float(term.detach())
        return term


def _real_tokens(batch: ForwardBatch) -> torch.Tensor:
    if batch.attention_mask is None:
        return torch.ones(batch.input_ids.numel(), dtype=torch.bool)
    return batch.attention_mask.reshape(-1).bool()


def _is_router(module: nn.Module) -> bool:
    return "Router" in type(module).__name__
