"""Adapters that an engine holds merged into their base: W + (alpha / r) · B A (arXiv:2106.09685, equation 3)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from checks.captures.capture import TensorRecord
from checks.transfer.states import known_values, round_off

FACTORS = (".lora_A.weight", ".lora_B.weight")
ROUNDINGS = 4.0
"""Of the product, the scale, the sum and the cast, in whatever order and dtype the trainer's own: each once."""

FLOAT64_SLACK = 2.0**-50
"""Relative: the comparison's own."""


def adapted(records: Mapping[str, TensorRecord]) -> tuple[str, ...]:
    """Base weights that have both factors."""
    paths = [name.removesuffix(FACTORS[0]) for name in records if name.endswith(FACTORS[0])]
    return tuple(f"{path}.weight" for path in paths if path + FACTORS[1] in records and f"{path}.weight" in records)


def merged_numbers(
    name: str, records: Mapping[str, TensorRecord], *, scale: float
) -> tuple[torch.Tensor | None, torch.Tensor] | None:
    """Flat positions, None for all, and the base with its adapters merged there, float64; None where factors or base
    were not recorded.
    """
    found = _merge(name, records, scale=scale)
    return None if found is None else found[:2]


def is_merged(tensor: torch.Tensor, name: str, records: Mapping[str, TensorRecord], *, scale: float) -> bool | None:
    """Whether a tensor is the base with its adapters merged, within the merge's own rounding; None where factors or
    base were not recorded.
    """
    found = _merge(name, records, scale=scale)
    if found is None:
        return None
    positions, exact, size = found
    own = torch.finfo(getattr(torch, records[name].dtype.removeprefix("torch."))).eps / 2.0
    cast = round_off(records[name].dtype, tensor) + FLOAT64_SLACK
    allowed = ROUNDINGS * own * size + cast * (exact.abs() + size * own)
    mine = (tensor.reshape(-1) if positions is None else tensor.reshape(-1)[positions]).double()
    return bool(((mine - exact).abs() <= allowed).all())


def _merge(
    name: str, records: Mapping[str, TensorRecord], *, scale: float
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor] | None:
    """Positions, W + scale · B A there, and the size of its summands: |W| + scale · |B| |A|."""
    path = name.removesuffix(".weight")
    base = known_values(records[name])
    a, b = (records[path + factor].read("full") for factor in FACTORS)
    if base is None or a is None or b is None:
        return None
    positions, numbers = base
    flat = torch.arange(numbers.numel()) if positions is None else positions
    columns = records[name].global_shape[1]
    left, right = b.double()[flat // columns], a.double().T[flat % columns]
    exact = numbers.double() + scale * (left * right).sum(1)
    return positions, exact, numbers.double().abs() + abs(scale) * (left.abs() * right.abs()).sum(1)
