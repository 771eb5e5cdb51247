"""Gradients made from the exact ones of a reference, with an error of a stated size."""

from __future__ import annotations

import torch

from checks.references.reference import Reference


def beside(reference: Reference, name: str, ratio: float, *, seed: int = 0) -> torch.Tensor:
    """The exact gradient and an error of `ratio` thresholds, orthogonal to it row by row: no scale or block sees it."""
    exact = exact_of(reference, name)
    rows = exact if exact.dim() > 1 else exact[None]
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    squares = rows.square().sum(1, keepdim=True)
    noise -= torch.where(squares > 0, (noise * rows).sum(1, keepdim=True) / squares, 0.0) * rows
    noise *= squares.sqrt() / noise.norm(dim=1, keepdim=True)
    error = ratio * 8.0 * reference.floor(name).total / float(noise.norm())
    return exact + (noise * error).reshape(exact.shape)


def exact_of(reference: Reference, name: str) -> torch.Tensor:
    full = reference.gradients[name].full
    assert full is not None
    return full
