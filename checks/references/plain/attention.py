"""Softmax attention, and which key a query may attend to; shared by the families.

Sources: arXiv:1706.03762, section 3.2.1; grouped queries arXiv:2305.13245; sliding windows arXiv:2310.06825.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch.nn import functional as F

from checks.errors import BadRequest

Attention = Literal["eager", "sdpa"]


def mix_values(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    *,
    scaling: float,
    attention: Attention,
    accumulate: torch.dtype,
) -> torch.Tensor:
    """softmax(q·k · scaling) · v, the softmax in `accumulate`; neighbouring query heads share a key and value head.

    query: (B, heads, S, d); key: (B, kv heads, S, d); value: (B, kv heads, S, v); attention_mask: (B or 1, 1, S, S)
    bool, True = attends → (B, heads, S, v). A query that may attend to nothing yields 0.
    """
    key, value = share_heads(key, query.shape[1]), share_heads(value, query.shape[1])
    if attention == "sdpa":
        return F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
    scores = (query @ key.transpose(-1, -2) * scaling).to(accumulate)
    return softmax_where(scores, attention_mask).to(query.dtype) @ value


def share_heads(states: torch.Tensor, heads: int) -> torch.Tensor:
    """Repeat each key or value head for the query heads of its group: (B, kv heads, S, d) → (B, heads, S, d)."""
    return states.repeat_interleave(heads // states.shape[1], dim=1)


def softmax_where(scores: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension where the mask is True, 0 elsewhere and where it is False throughout."""
    nowhere = ~attention_mask.any(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(~attention_mask, -math.inf), dim=-1).masked_fill(nowhere, 0.0)


def allow_earlier(
    length: int, attention_mask: torch.Tensor | None, *, device: torch.device, window: int | None = None
) -> torch.Tensor:
    """Which key a query may attend to: itself and earlier ones, padding (0 in the mask) excluded.

    attention_mask: (B, S), nonzero = token; window: the last so many keys only, its own included → (B or 1, 1, S, S)
    bool. Raises BadRequest for a mask of another shape.
    """
    allowed = torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None]
    if window is not None:
        allowed = allowed.triu(1 - window)
    if attention_mask is None:
        return allowed
    if attention_mask.dim() != 2 or attention_mask.shape[1] != length:
        found = f"has shape {tuple(attention_mask.shape)}"
        raise BadRequest("attention_mask", found, f"give a padding mask of (rows, {length})")
    return allowed & attention_mask.bool()[:, None, None, :]
