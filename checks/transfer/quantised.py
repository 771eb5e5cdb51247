"""Weights that a directory holds in int8 or float8 with scales, and the error that their format allows.

Layouts: `weight` with `weight_scale` for the tensor, a row or a block, and `weight_zero_point`, as compressed-tensors
writes them (https://github.com/vllm-project/compressed-tensors); `weight` with `weight_scale_inv` for blocks of
`quantization_config.weight_block_size`, as DeepSeek-V3 does (https://huggingface.co/deepseek-ai/DeepSeek-V3). In each
the weight is the stored number times its scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from checks.transfer.dump import Dump

SCALES = ("_scale", "_scale_inv")
BESIDE = (*SCALES, "_zero_point", "_shape", "_g_idx", "_global_scale")
"""What stands beside a quantised weight, under its name with this at the end."""

ACTIVATION_SCALES = ("input_scale", "input_zero_point", "output_scale")

HALF_STEP: Mapping[torch.dtype, float] = {torch.int8: 0.5, torch.uint8: 0.5}
"""Of integers: half of the step between two of them, in scales."""

LARGEST: Mapping[torch.dtype, float] = {torch.int8: 127.0, torch.uint8: 255.0}

HALF_SPACING: Mapping[torch.dtype, float] = {torch.float8_e4m3fn: 2.0**-4, torch.float8_e5m2: 2.0**-3}
"""Of float8: half of the spacing of its numbers, relative: 3 and 2 bits of mantissa (https://arxiv.org/abs/2209.05433,
table 1)."""

SMALLEST: Mapping[torch.dtype, float] = {torch.float8_e4m3fn: 2.0**-9, torch.float8_e5m2: 2.0**-16}
"""The smallest subnormal number, below which the spacing is the same everywhere."""

BF16_CAST = 2.0**-8
"""Exports are often cast to bf16 before they are quantised: its round-off, relative."""

FLOAT32_SLACK = 2.0**-20
"""Relative: the quotient by the scale, the product and the scale itself are float32."""


@dataclass(frozen=True)
class Quantised:
    """One quantised tensor of a dump. `layout`: tensor, row, or block of `block` rows and columns."""

    name: str
    scale: str
    zero_point: str | None
    dtype: str
    layout: str
    block: tuple[int, int] = (0, 0)


class UnknownLayout(ValueError):
    """A quantised tensor whose scales fit none of the known layouts; `str()` says which and why."""


def beside_weights(shapes: Mapping[str, Any]) -> frozenset[str]:
    """Tensors that stand beside a weight and are none: scales, zero points, and the scales of activations."""
    found = set()
    for name in shapes:
        path, _, attribute = name.rpartition(".")
        base = next((name.removesuffix(end) for end in BESIDE if name.endswith(end)), None)
        if (base is not None and base in shapes) or (attribute in ACTIVATION_SCALES and f"{path}.weight" in shapes):
            found.add(name)
    return frozenset(found)


def find_quantised(dump: Dump) -> Iterator[Quantised]:
    """Every tensor of a dump that has a scale beside it.

    Raises:
        UnknownLayout: its scales fit no layout.
    """
    for name, shape in dump.shapes.items():
        scale = next((name + end for end in SCALES if name + end in dump.shapes), None)
        if scale is None:
            continue
        zero_point = f"{name}_zero_point" if f"{name}_zero_point" in dump.shapes else None
        dtype = str(dump.read(name).dtype).removeprefix("torch.")
        layout, block = _read_layout(name, shape, dump.shapes[scale], dump.config)
        yield Quantised(name, scale, zero_point, dtype, layout, block)


def _read_layout(
    name: str, shape: Sequence[int], scale: Sequence[int], config: Mapping[str, Any]
) -> tuple[str, tuple[int, int]]:
    if math.prod(scale) == 1:
        return "tensor", (0, 0)
    if tuple(scale) in ((shape[0],), (shape[0], 1)):
        return "row", (0, 0)
    quantisation = config.get("quantization_config")
    stated = quantisation.get("weight_block_size") if isinstance(quantisation, dict) else None
    if isinstance(stated, list) and len(stated) == 2 and len(shape) == 2:
        rows, columns = (int(size) for size in stated)
        if tuple(scale) == (math.ceil(shape[0] / rows), math.ceil(shape[1] / columns)):
            return "block", (rows, columns)
    raise UnknownLayout(
        f"{name} of shape {list(shape)} has scales of shape {list(scale)}: neither one, nor one a row, nor one a block "
        f"of quantization_config.weight_block_size ({stated})"
    )


@dataclass(frozen=True)
class Dequantised:
    """`weight`, `allowed`: of the tensor's shape, float64: what it stands for, and the error that its format allows;
    `reach`: of integers with symmetric scales, the largest weight that the largest scale reaches; else None.
    """

    weight: torch.Tensor
    allowed: torch.Tensor
    reach: float | None = None


def dequantise(dump: Dump, each: Quantised) -> Dequantised:
    """The numbers times their scales.

    Raises:
        UnknownLayout: stored in a dtype whose spacing is not known here.
    """
    stored = dump.read(each.name)
    scale = expand(dump.read(each.scale).double(), stored.shape, each)
    numbers = stored.double()
    if each.zero_point is not None:
        numbers = numbers - expand(dump.read(each.zero_point).double(), stored.shape, each)
    weight = numbers * scale
    if stored.dtype in HALF_STEP:
        allowed = HALF_STEP[stored.dtype] * scale.abs()
    elif stored.dtype in HALF_SPACING:
        spacing = HALF_SPACING[stored.dtype] * numbers.abs()
        allowed = spacing.clamp(min=SMALLEST[stored.dtype] / 2.0) * scale.abs()
    else:
        raise UnknownLayout(f"{each.name} is stored in {each.dtype}, whose numbers cannot be read here")
    symmetric = stored.dtype in LARGEST and each.zero_point is None
    return Dequantised(weight, allowed, LARGEST[stored.dtype] * float(scale.abs().max()) if symmetric else None)


def expand(scale: torch.Tensor, shape: Sequence[int], each: Quantised) -> torch.Tensor:
    """Scales of (), (1,), (rows,), (rows, 1) or (blocks, blocks), one for each element."""
    if each.layout == "tensor":
        return scale.reshape(()).expand(tuple(shape))
    if each.layout == "row":
        return scale.reshape(shape[0], *[1] * (len(shape) - 1)).expand(tuple(shape))
    rows, columns = each.block
    return scale.repeat_interleave(rows, 0)[: shape[0]].repeat_interleave(columns, 1)[:, : shape[1]]


STRATEGIES = {"tensor": "tensor", "channel": "row", "block": "block"}
"""of compressed-tensors' `config_groups` → the layout of scales"""


def other_axis(each: Quantised, shape: Sequence[int], config: Mapping[str, Any]) -> str | None:
    """What is wrong with the axis of scales by what config.json states; None where nothing is, or none is stated."""
    quantisation = config.get("quantization_config")
    listed = quantisation if isinstance(quantisation, dict) else {}
    groups = listed.get("config_groups")
    weights = [group.get("weights") or {} for group in groups.values()] if isinstance(groups, dict) else []
    stated = {STRATEGIES[each["strategy"]] for each in weights if each.get("strategy") in STRATEGIES}
    sizes = listed.get("weight_block_size")
    if isinstance(sizes, list):
        stated = {"block"}
    if len(stated) != 1 or each.layout in stated:
        return None
    (axis,) = stated
    fits = isinstance(sizes, list) and all(size <= block for size, block in zip(shape, sizes, strict=False))
    if each.layout == "tensor" and (fits or (axis == "row" and shape[0] == 1)):
        return None  # one block, or one row, is the whole tensor
    return f"its scales are one a {each.layout}, quantization_config states one a {axis}"


def unasked(each: Quantised, config: Mapping[str, Any]) -> str | None:
    """Why a tensor should not be quantised; None where it may."""
    path = each.name.removesuffix(".weight")
    module = path.rpartition(".")[2]
    quantisation = config.get("quantization_config")
    listed = quantisation if isinstance(quantisation, dict) else {}
    ignored = [*(listed.get("ignore") or ()), *(listed.get("modules_to_not_convert") or ())]
    if any(path == name or path.startswith(f"{name}.") or module == name for name in ignored):
        return "quantization_config says that it is not"
    if module in ("lm_head", "embed_tokens"):
        return "an output layer or embedding keeps its precision"
    if module in ("gate", "router"):
        return "a router keeps its precision, or tokens go to other experts"
    if "norm" in module:
        return "a norm keeps its precision"
    return None
