"""Values that hold no more than a lower precision can: all low bits of their float32 are zero."""

from __future__ import annotations

import torch

LOWER = (torch.bfloat16, torch.float16)
"""The narrower significand first: what bfloat16 holds of the usual sizes float16 holds too."""
FEWEST = 16
"""Values that are not zero: one in 2^16 float32 numbers is a bfloat16, and one in 2^13 a float16."""


def held_by(values: torch.Tensor) -> str | None:
    """The lowest precision that holds every value exactly, None where there is none or too few are not zero.

    >>> held_by(torch.randn(64).bfloat16().float())
    'bfloat16'
    """
    values = values[values != 0]
    if values.numel() < FEWEST:
        return None
    return next((name_of(dtype) for dtype in LOWER if _holds(dtype, values)), None)


def rounded_from(values: torch.Tensor, exact: torch.Tensor) -> str | None:
    """The lower precision that `values` are `exact` in, None where they are equal, or differ otherwise.

    values: (n,) as they were recorded; exact: (n,) as they should be. Many values may be rounded up or down, each one
    step of the lower precision away; few must be the nearest ones.
    """
    exact = exact.to(values.dtype)
    if values.shape != exact.shape or values.equal(exact):
        return None
    for dtype in LOWER:
        if values.equal(exact.to(dtype).to(values.dtype)):
            return name_of(dtype)
        step = torch.finfo(dtype).eps * exact.abs().clamp(min=torch.finfo(dtype).tiny)
        if held_by(values) == name_of(dtype) and bool(((values - exact).abs() <= step).all()):
            return name_of(dtype)
    return None


def name_of(dtype: torch.dtype | str) -> str:
    """`bfloat16` of `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")


def _holds(dtype: torch.dtype, values: torch.Tensor) -> bool:
    return values.to(dtype).to(values.dtype).equal(values)
