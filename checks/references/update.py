"""The optimizer step from its definition, replayed element by element on the recorded samples.

Settings come from what was asked; gradients, parameters and state before the step from the capture: this reference
judges the optimizer alone, and the gradients have a check of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from checks.captures.capture import Capture, TensorRecord
from checks.references.model import PARAMETER_DTYPES
from checks.references.optimizer import (
    AdamWSettings,
    AdamWState,
    Order,
    SGDSettings,
    SGDState,
    adamw,
    adamw_in,
    clip_factor,
    learning_rate,
    sgd,
    sgd_in,
)
from checks.spec import RunSpec
from checks.tolerance import EPSILON

ORDERS: tuple[Order, ...] = ("definition", "foreach", "fused")
MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}


@dataclass(frozen=True)
class ParameterUpdate:
    """One parameter's step at its sampled elements, (m,) float64 each.

    `change` and `expected`: parameter after − before, recorded and from the definition; `floor`: ‖·‖ of what float32
    arithmetic in other orders makes of it; `moments`: state name → (relative error, floor).
    """

    name: str
    change: torch.Tensor
    expected: torch.Tensor
    floor: float
    moments: Mapping[str, tuple[float, float]]
    rounds_away: bool = False
    """the definition, too, leaves every sampled element where it is: the parameter's dtype rounds the step away"""

    @property
    def error(self) -> float:
        return float((self.change - self.expected).norm())

    @property
    def norm(self) -> float:
        return float(self.expected.norm())

    @property
    def scale(self) -> float:
        square = float(self.expected.square().sum())
        return float(self.change @ self.expected) / square if square else 1.0

    @property
    def cosine(self) -> float:
        """Direction of the recorded change against the definition's; 1 where both are zero, 0 where one is."""
        norms = float(self.change.norm()) * self.norm
        if norms == 0.0:
            return 1.0 if float(self.change.norm()) == self.norm else 0.0
        return max(-1.0, min(1.0, float(self.change @ self.expected) / norms))


def expected_clip_factor(spec: RunSpec, capture: Capture, step: int) -> float:
    """min(1, max_norm / (‖g‖ + 1e-6)) from the recorded gradients' exact norms; 1 where no clipping was asked."""
    if spec.max_grad_norm <= 0.0:
        return 1.0
    total = math.sqrt(math.fsum(r.norm**2 for r in capture.tensors(step, "gradient").values()))
    return clip_factor(total, spec.max_grad_norm)


def rounded_clip_factor(spec: RunSpec, capture: Capture, step: int) -> float:
    """The factor from the norm that the framework computed, where that is the exact one up to the rounding of its sum.

    A sum of n squares in float32 is off by about √n ε where its roundings are random, and the norm of bfloat16
    gradients is rounded to bfloat16 besides. A norm that is further off is wrong, and the exact factor is returned.
    """
    exact = expected_clip_factor(spec, capture, step)
    gradients, clips = capture.tensors(step, "gradient").values(), capture.step(step).clips
    if exact == 1.0 or not clips:
        return exact
    own = clip_factor(clips[-1].total_norm, spec.max_grad_norm)
    largest = max((math.prod(record.global_shape) for record in gradients), default=1)
    rounding = math.sqrt(largest) * EPSILON["float32"]
    if spec.precision == "bf16_params":
        rounding += 4.0 * EPSILON["bf16_params"]
    return own if abs(own / exact - 1.0) <= rounding else exact


def replay_update(
    spec: RunSpec,
    capture: Capture,
    step: int,
    *,
    decaying: frozenset[str],
    total_steps: int,
    float32: frozenset[str] = frozenset(),
) -> dict[str, ParameterUpdate]:
    """Replay one step of every recorded parameter that has a gradient; names without samples are left out.

    `float32`: parameters that are held, and stepped, in float32 although the run asks for a narrower dtype.
    """
    lr = learning_rate(spec.schedule, step, base_lr=spec.lr, warmup_steps=spec.warmup_steps, total_steps=total_steps)
    factor, own_factor = expected_clip_factor(spec, capture, step), rounded_clip_factor(spec, capture, step)
    before, after = capture.tensors(step, "parameter_before"), capture.tensors(step, "parameter_after")
    gradients = capture.tensors(step, "gradient")
    found = {}
    for name, record in gradients.items():
        if name not in before or name not in after:
            continue
        parts = [_values(before[name]), _values(record), _values(after[name])]
        if any(part is None for part in parts):
            continue
        parameter, gradient, new = (part for part in parts if part is not None)
        decay = spec.weight_decay if name in decaying else 0.0
        moments = {
            key: (
                _state(capture, step, "optimizer_state_before", key, name),
                _state(capture, step, "optimizer_state", key, name),
            )
            for key in MOMENTS[spec.optimizer]
        }
        clipped = (gradient * factor, gradient * own_factor)
        dtype = torch.float32 if name in float32 else PARAMETER_DTYPES[spec.precision]
        found[name] = _replay(spec, name, parameter, clipped, new, moments, lr=lr, decay=decay, step=step, dtype=dtype)
    return found


def _replay(
    spec: RunSpec,
    name: str,
    parameter: torch.Tensor,
    gradients: tuple[torch.Tensor, torch.Tensor],
    new: torch.Tensor,
    moments: Mapping[str, tuple[torch.Tensor | None, torch.Tensor | None]],
    *,
    lr: float,
    decay: float,
    step: int,
    dtype: torch.dtype,
) -> ParameterUpdate:
    """`gradients`: clipped by the exact factor, and by the one that the framework's rounded norm gives."""
    gradient, *_ = gradients
    states: list[dict[str, torch.Tensor]]
    if spec.optimizer == "adamw":
        settings = AdamWSettings(lr, spec.beta1, spec.beta2, spec.eps, decay)
        m, v = (moments[key][0] for key in MOMENTS["adamw"])
        zero = torch.zeros_like(parameter)
        state = AdamWState(step - 1, zero if m is None else m, zero if v is None else v)
        exact, exact_state = adamw(parameter, gradient, state, settings)
        rounded = [adamw_in(parameter, g, state, settings, dtype=dtype, order=o) for g in gradients for o in ORDERS]
        states = [{"exp_avg": s.exp_avg, "exp_avg_sq": s.exp_avg_sq} for s in (exact_state, *(s for _, s in rounded))]
        forms = [theta for theta, _ in rounded]
    else:
        plain = SGDSettings(lr, spec.momentum, weight_decay=decay)
        buffer = SGDState(moments["momentum_buffer"][0])
        exact, sgd_state = sgd(parameter, gradient, buffer, plain)
        stepped = [sgd_in(parameter, g, buffer, plain, dtype=dtype) for g in gradients]
        states = [
            {} if s.momentum_buffer is None else {"momentum_buffer": s.momentum_buffer}
            for s in (sgd_state, *(s for _, s in stepped))
        ]
        forms = [theta for theta, _ in stepped]
    epsilon = 2.0**-24 if dtype == torch.float32 else EPSILON["bf16_params"]
    floor = max(float((form.double() - exact).norm()) for form in forms) + epsilon * float(parameter.norm())
    return ParameterUpdate(
        name,
        new - parameter,
        exact - parameter,
        floor,
        _judge_moments(moments, states, epsilon=epsilon),
        rounds_away=any(torch.equal(form.double(), parameter) for form in forms),
    )


def _judge_moments(
    moments: Mapping[str, tuple[torch.Tensor | None, torch.Tensor | None]],
    states: list[dict[str, torch.Tensor]],
    *,
    epsilon: float,
) -> dict[str, tuple[float, float]]:
    """State name → relative error of the recorded moment after the step, and its floor."""
    found = {}
    for key, (_, after) in moments.items():
        exact = states[0].get(key)
        if after is None or exact is None:
            continue
        size = float(exact.norm())
        if size == 0.0:
            continue
        floor = max(float((s[key].double() - exact).norm()) for s in states[1:]) / size + 4.0 * epsilon
        found[key] = (float((after - exact).norm()) / size, floor)
    return found


def _values(record: TensorRecord) -> torch.Tensor | None:
    sample = record.read("sample")
    return None if sample is None else sample.double().flatten()


def _state(capture: Capture, step: int, kind: str, field: str, name: str) -> torch.Tensor | None:
    record = capture.tensors(step, kind, field=field).get(name)
    return None if record is None else _values(record)
