"""Stacked experts of a mixture: each token runs through its chosen ones, and their outputs are added by weight.

Source: arXiv:2101.03961, equation 2. The weights are stacked as transformers holds them in memory, so that gradients
have the names and shapes that a run's have.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class Experts(nn.Module):
    """E SwiGLU experts: gate_up_proj (E, 2i, h), an expert's gate rows before its up rows; down_proj (E, h, i)."""

    def __init__(self, experts: int, *, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * intermediate_size, hidden_size))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden_size, intermediate_size))
        self.act_fn = nn.SiLU()

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """hidden_states: (tokens, h); top_k_index, top_k_weights: (tokens, k) → (tokens, h)."""
        return add_experts(self.run_expert, self.gate_up_proj.shape[0], hidden_states, top_k_index, top_k_weights)

    def run_expert(self, expert: int, hidden_states: torch.Tensor) -> torch.Tensor:
        """(n, h) → (n, h) through one expert: down(silu(gate(x)) · up(x))."""
        gate, up = F.linear(hidden_states, self.gate_up_proj[expert]).chunk(2, dim=-1)
        return F.linear(self.act_fn(gate) * up, self.down_proj[expert])


def add_experts(
    run_expert: Callable[[int, torch.Tensor], torch.Tensor],
    experts: int,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """Σ over a token's chosen experts of weight · expert(x).

    hidden_states: (tokens, h); top_k_index: (tokens, k) in [0, experts); top_k_weights: (tokens, k) → (tokens, h).
    """
    output = torch.zeros_like(hidden_states)
    for expert in range(experts):
        token, choice = torch.where(top_k_index == expert)
        result = run_expert(expert, hidden_states[token]) * top_k_weights[token, choice, None]
        output = output.index_add(0, token, result.to(output.dtype))
    return output
