"""Whether a wrong module computes what a lower precision would have computed.

The reference is run again with some of its operations in bfloat16 or float16, on the inputs that the framework's
module received. Where that gives the framework's output, and the exact computation does not, the mathematics is right
and the numbers are not. An unrelated fault is not reproduced: its error would have to point where rounding points.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

LOW_PRECISIONS = (torch.bfloat16, torch.float16)
LEFT = 0.25
"""An explanation leaves at most this share of the error: rounding at the edge of a step leaves a few percent of it,
and a fault that is none leaves all."""

_PRODUCTS = frozenset(
    {torch.matmul, torch.Tensor.matmul, torch.bmm, torch.Tensor.bmm, F.linear, torch.Tensor.__matmul__}
)
_TIMES = frozenset({torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__})
_WAVES = frozenset({torch.cos, torch.sin, torch.Tensor.cos, torch.Tensor.sin})
_SOFTMAX = frozenset({torch.softmax, torch.Tensor.softmax, F.softmax})
_ALREADY = frozenset({torch.Tensor.to, torch.Tensor.float, torch.Tensor.double, torch.Tensor.type_as})
"""Conversions: rounding them too would round what a module leaves as it is."""


@dataclass(frozen=True)
class Hypothesis:
    """Operations that may have run in a lower precision.

    `within`: expression that the class of the module around them matches, "" for anywhere; `operations`: None for
    every one of them; `inputs`, `outputs`: which side is rounded.
    """

    name: str
    within: str = ""
    operations: frozenset[Any] | None = None
    inputs: bool = True
    outputs: bool = True


HYPOTHESES = (
    Hypothesis("rotary angles", ".*(Rotary|Rope).*", _PRODUCTS | _TIMES),
    Hypothesis("cosines and sines of the rotary angles", ".*(Rotary|Rope).*", _WAVES),
    Hypothesis("rotary table", ".*(Rotary|Rope).*", _WAVES, inputs=False),
    Hypothesis("softmax", "", _SOFTMAX),
    Hypothesis("norm", ".*Norm.*"),
    Hypothesis("router", ".*(Router|Gate)"),
    Hypothesis("matrix products", "", _PRODUCTS),
)


@dataclass(frozen=True)
class Rounding:
    """What explains a wrong output: `what` was computed in `dtype`; `left`: share of the error that it leaves."""

    what: str
    dtype: str
    left: float

    def __str__(self) -> str:
        return f"{self.what} in {self.dtype}"


@torch.no_grad()
def explain(
    compute: Callable[[], Mapping[Any, torch.Tensor]],
    captured: Mapping[Any, torch.Tensor],
    model: nn.Module,
    *,
    dtypes: tuple[torch.dtype, ...] = LOW_PRECISIONS,
) -> Rounding | None:
    """The lower precision that gives the captured outputs best, None where none does.

    `compute`: the reference's outputs of the module, on the inputs that the framework's received; called once as it is
    and once under each hypothesis. `captured`: the framework's, by the same keys and of the same sizes.
    """
    exact = {key: value.double() for key, value in compute().items()}
    error = _distance(captured, exact)
    if not error > 0.0:
        return None
    best: Rounding | None = None
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        for what, outputs in _compute_all(compute, exact, model, dtype):
            left = _distance(captured, outputs) / error
            if left <= LEFT and (best is None or left < best.left):
                best = Rounding(what, name, left)
    return best


def _compute_all(
    compute: Callable[[], Mapping[Any, torch.Tensor]],
    exact: Mapping[Any, torch.Tensor],
    model: nn.Module,
    dtype: torch.dtype,
) -> Iterator[tuple[str, Mapping[Any, torch.Tensor]]]:
    yield "output", {key: value.to(dtype).double() for key, value in exact.items()}
    for hypothesis in HYPOTHESES:
        with lower_precision(model, hypothesis, dtype):
            yield hypothesis.name, compute()


@contextmanager
def lower_precision(model: nn.Module, hypothesis: Hypothesis, dtype: torch.dtype) -> Iterator[None]:
    """Run the operations of a hypothesis in `dtype`; results come back in the dtype that they would have had."""
    mode = _Lowered(hypothesis, dtype)
    with ExitStack() as stack:
        for module in model.modules() if hypothesis.within else ():
            if re.fullmatch(hypothesis.within, type(module).__name__):
                stack.callback(module.register_forward_pre_hook(mode.enter).remove)
                stack.callback(module.register_forward_hook(mode.leave).remove)
        with mode:
            yield


class _Lowered(TorchFunctionMode):
    def __init__(self, hypothesis: Hypothesis, dtype: torch.dtype) -> None:
        super().__init__()
        self._hypothesis = hypothesis
        self._dtype = dtype
        self._depth = 0 if hypothesis.within else 1

    def enter(self, *_: object) -> None:
        self._depth += 1

    def leave(self, *_: object) -> None:
        self._depth -= 1

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = {**(kwargs or {})}
        if not self._depth or not self._concerns(func, args):
            return func(*args, **named)
        usual = _widest(args)
        if self._hypothesis.inputs:
            args = tuple(self._lower(each) for each in args)
            named = {key: self._lower(value) for key, value in named.items() if key != "dtype"}
        out = func(*args, **named)
        if usual is None or not isinstance(out, torch.Tensor) or not out.is_floating_point():
            return out
        return (out.to(self._dtype) if self._hypothesis.outputs else out).to(usual)

    def _concerns(self, func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
        if self._hypothesis.operations is None:
            return func not in _ALREADY and getattr(func, "__name__", "") not in ("__get__", "__set__")
        if func in _TIMES:  # by a number: a scale, no product of the rotation
            return func in self._hypothesis.operations and sum(isinstance(each, torch.Tensor) for each in args) == 2
        return func in self._hypothesis.operations

    def _lower(self, value: Any) -> Any:
        return value.to(self._dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _widest(args: tuple[Any, ...]) -> torch.dtype | None:
    dtypes = [each.dtype for each in args if isinstance(each, torch.Tensor) and each.is_floating_point()]
    return max(dtypes, key=lambda dtype: dtype.itemsize, default=None)


def _distance(captured: Mapping[Any, torch.Tensor], outputs: Mapping[Any, torch.Tensor]) -> float:
    total = 0.0
    for key, value in captured.items():
        total += float((outputs[key].double().reshape(value.shape) - value.double()).square().sum())
    return math.sqrt(total)
