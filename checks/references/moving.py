"""Inputs that no method can tell from the given ones: what moves with them is noise."""

from __future__ import annotations

import torch
from torch import nn


def move_inputs(model: nn.Module, epsilon: float, seed: int) -> torch.utils.hooks.RemovableHandle:
    """Multiply the embeddings' output by 1 ± 2ε: an input that no method can tell from the given one."""
    generator = torch.Generator().manual_seed(seed)

    def move(_module: nn.Module, _args: object, output: torch.Tensor) -> torch.Tensor:
        sign = torch.randint(0, 2, output.shape, generator=generator).to(output.dtype) * 2 - 1
        return output * (1 + epsilon * 2 * sign)

    find = getattr(model, "get_input_embeddings", None)  # of transformers: GPT-2's are called otherwise
    embeddings: nn.Module = model.get_submodule("model.embed_tokens") if find is None else find()
    return embeddings.register_forward_hook(move)
