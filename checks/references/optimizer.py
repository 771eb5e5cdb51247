"""Optimizers, clipping, schedules and decay groups from their definitions, element by element."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from checks.spec import Schedule

Order = Literal["definition", "foreach", "fused"]
"""Orders of the same operations: as the paper writes them; one for each of torch.optim.AdamW's, each rounded to the
dtype; as its fused kernel, which keeps float32 within for 16-bit tensors and rounds once at the end."""

CLIP_EPSILON = 1e-6
"""Added to the norm by torch.nn.utils.clip_grad_norm_."""


@dataclass(frozen=True)
class AdamWSettings:
    """AdamW's settings; `weight_decay` is that of the parameter's group."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclass(frozen=True)
class AdamWState:
    """Updates done so far, and the running means of g and g² (the parameter's shape)."""

    step: int
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor

    @classmethod
    def zeros(cls, parameter: torch.Tensor) -> AdamWState:
        """The state before the first update, in float64."""
        zero = torch.zeros_like(parameter, dtype=torch.float64)
        return cls(step=0, exp_avg=zero, exp_avg_sq=zero.clone())


@dataclass(frozen=True)
class SGDSettings:
    """SGD's settings, as torch.optim.SGD names them."""

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0


@dataclass(frozen=True)
class SGDState:
    """The momentum buffer; None before the first update and without momentum."""

    momentum_buffer: torch.Tensor | None = None


def adamw(
    parameter: torch.Tensor, gradient: torch.Tensor, state: AdamWState, settings: AdamWSettings
) -> tuple[torch.Tensor, AdamWState]:
    """One update in float64: the new parameter and state, any shape.

    m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², θ ← θ − lr·λ·θ − lr · (m/(1−β₁ᵗ)) / (√(v/(1−β₂ᵗ)) + ε):
    arXiv:1711.05101, algorithm 2, in the form of torch.optim.AdamW, whose decay is multiplied by lr; the bias
    correction is that of arXiv:1412.6980.
    """
    return adamw_in(parameter, gradient, state, settings, dtype=torch.float64, order="definition")


def adamw_in(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: AdamWState,
    settings: AdamWSettings,
    *,
    dtype: torch.dtype,
    order: Order,
) -> tuple[torch.Tensor, AdamWState]:
    """The same update with everything held in `dtype` and one of the legitimate orders of operations."""
    compute = torch.float32 if order == "fused" and dtype.itemsize < torch.float32.itemsize else dtype
    theta, g, m, v = (tensor.to(dtype).to(compute) for tensor in (parameter, gradient, state.exp_avg, state.exp_avg_sq))
    step, lr, decay = state.step + 1, settings.lr, settings.weight_decay
    correction1, correction2 = 1.0 - settings.beta1**step, 1.0 - settings.beta2**step
    if order == "definition":
        m = settings.beta1 * m + (1.0 - settings.beta1) * g
        v = settings.beta2 * v + (1.0 - settings.beta2) * g.square()
        theta = theta - lr * decay * theta - lr * (m / correction1) / ((v / correction2).sqrt() + settings.eps)
    else:
        theta = theta * (1.0 - lr * decay)
        m = torch.lerp(m, g, 1.0 - settings.beta1)
        v = torch.addcmul(v * settings.beta2, g, g, value=1.0 - settings.beta2)
        root = v.sqrt() / math.sqrt(correction2) + settings.eps
        theta = torch.addcdiv(theta, m, root, value=-lr / correction1)
    return theta.to(dtype), AdamWState(step, m.to(dtype), v.to(dtype))


def sgd(
    parameter: torch.Tensor, gradient: torch.Tensor, state: SGDState, settings: SGDSettings
) -> tuple[torch.Tensor, SGDState]:
    """One update in float64: g ← g + λθ, b ← μb + (1−τ)g (b = g at first), θ ← θ − lr·b, or lr·(g + μb) with Nesterov.

    The form of torch.optim.SGD; http://proceedings.mlr.press/v28/sutskever13.html has lr inside the buffer. See
    https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html
    """
    return sgd_in(parameter, gradient, state, settings, dtype=torch.float64)


def sgd_in(
    parameter: torch.Tensor, gradient: torch.Tensor, state: SGDState, settings: SGDSettings, *, dtype: torch.dtype
) -> tuple[torch.Tensor, SGDState]:
    """The same update with everything held in `dtype`."""
    theta, direction = parameter.to(dtype), gradient.to(dtype)
    direction = direction + settings.weight_decay * theta
    if settings.momentum == 0.0:
        return theta - settings.lr * direction, SGDState(None)
    if state.momentum_buffer is None:
        buffer = direction
    else:
        buffer = settings.momentum * state.momentum_buffer.to(dtype) + (1.0 - settings.dampening) * direction
    direction = direction + settings.momentum * buffer if settings.nesterov else buffer
    return theta - settings.lr * direction, SGDState(buffer)


def clip_factor(total_norm: float, max_norm: float) -> float:
    """What gradients are multiplied by: max_norm / (total_norm + 1e-6), at most 1, as torch defines it.

    An infinite norm gives 0, a norm that is not a number gives one that is not.
    """
    ratio = max_norm / (total_norm + CLIP_EPSILON)
    return 1.0 if ratio > 1.0 else ratio


def learning_rate(schedule: Schedule, step: int, *, base_lr: float, warmup_steps: int = 0, total_steps: int) -> float:
    """The rate in force in the `step`-th update, counted from 1.

    After u = step − 1 updates: base · u / warmup while u < warmup (so the first update with warm-up has rate 0), then
    constant, linear to 0 at total_steps, or a half cosine: transformers' `get_scheduler` (optimization.py), where
    a constant rate with warm-up is called constant_with_warmup. Raises ValueError for a step before 1.
    """
    if step < 1:
        raise ValueError(f"steps count from 1, not {step}")
    done = step - 1
    if done < warmup_steps:
        return base_lr * done / warmup_steps
    span = max(1, total_steps - warmup_steps)
    if schedule == "constant":
        return base_lr
    if schedule == "linear":
        return base_lr * max(0.0, (total_steps - done) / span)
    if schedule == "cosine":
        return base_lr * max(0.0, 0.5 * (1.0 + math.cos(math.pi * (done - warmup_steps) / span)))
    raise ValueError(f"schedule {schedule!r} is none of constant, linear, cosine")


def decays(name: str, shape: tuple[int, ...], module_class: str) -> bool:
    """Whether weight decay applies to a parameter: to all but norms and biases.

    Norms are told by their class, or by a `weight` of one dimension, which no linear, convolution or embedding layer
    has. Equal to transformers' `Trainer.get_decay_parameter_names` on the families tested.
    """
    _, _, field = name.rpartition(".")
    if "bias" in field.lower() or "norm" in module_class.lower():
        return False
    return not (field == "weight" and len(shape) == 1)
