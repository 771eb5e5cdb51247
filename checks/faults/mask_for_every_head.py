"""Every layer makes a float32 mask of all pairs of positions for each head, where sdpa needs none.

What is attended is the same; the mask takes rows × heads × positions² numbers a layer until the backward has passed.

Modelled on a mask copied for every head, https://github.com/ByteDance-Seed/Depth-Anything-3/pull/268
Must be seen by memory.step.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

SLUG = "mask-for-every-head"


def install() -> None:
    """Replace the mask that scaled_dot_product_attention is given while it trains."""
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention

    @functools.wraps(attend)
    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **rest: Any,
    ) -> Any:
        shape = (*query.shape[:-1], key.shape[-2])
        if attn_mask is None:
            allowed = torch.ones(shape[-2:], dtype=torch.bool, device=query.device)
            attn_mask = allowed.tril() if is_causal else allowed
        dense = torch.zeros(shape, dtype=torch.float32, device=query.device)
        dense = dense.masked_fill(~attn_mask, float("-inf")) if attn_mask.dtype == torch.bool else dense + attn_mask
        _say(f"a mask of {tuple(shape)} is made")
        return attend(query, key, value, attn_mask=dense.to(query.dtype), dropout_p=dropout_p, **rest)

    setattr(torch.nn.functional, "scaled_dot_product_attention", scaled_dot_product_attention)  # noqa: B010 (typed)


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
