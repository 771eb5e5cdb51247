"""Optimizers, clipping and schedules, against hand-computed values, torch.optim and transformers' own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.references.optimizer import (
    AdamWSettings,
    AdamWState,
    SGDSettings,
    SGDState,
    adamw,
    adamw_in,
    clip_factor,
    learning_rate,
    sgd,
    sgd_in,
)
from checks.spec import Schedule

STEPS = 6


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def worst(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def step_torch(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    parameter.grad = gradient.clone()
    optimizer.step()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(("beta1", "beta2", "eps"), [(0.9, 0.999, 1e-8), (0.8, 0.95, 1e-3)])
def test_adamw_equals_torch_in_float64(beta1: float, beta2: float, eps: float, decay: float, fused: bool) -> None:
    ours, theirs = draw(0, 3, 5), torch.nn.Parameter(draw(0, 3, 5))
    chosen = AdamWSettings(lr=0.03, beta1=beta1, beta2=beta2, eps=eps, weight_decay=decay)
    optimizer = torch.optim.AdamW([theirs], lr=0.03, betas=(beta1, beta2), eps=eps, weight_decay=decay, fused=fused)
    state = AdamWState.zeros(ours)
    for step in range(STEPS):
        gradient = draw(step + 1, 3, 5)
        ours, state = adamw(ours, gradient, state, chosen)
        step_torch(optimizer, theirs, gradient)
        held = optimizer.state[theirs]
        assert worst(ours, theirs.detach()) < 1e-14
        assert worst(state.exp_avg, held["exp_avg"]) < 1e-14
        assert worst(state.exp_avg_sq, held["exp_avg_sq"]) < 1e-14
        assert state.step == int(held["step"]) == step + 1


def test_two_adamw_updates_by_hand() -> None:
    chosen = AdamWSettings(lr=0.1, beta1=0.5, beta2=0.75, eps=0.5, weight_decay=0.2)
    parameter = torch.tensor([2.0])
    parameter, state = adamw(parameter, torch.tensor([4.0]), AdamWState.zeros(parameter), chosen)
    first = 2.0 - 0.1 * 0.2 * 2.0 - 0.1 * 4.0 / (4.0 + 0.5)
    assert parameter.item() == pytest.approx(first, rel=1e-15)
    assert (state.step, state.exp_avg.item(), state.exp_avg_sq.item()) == (1, 2.0, 4.0)
    parameter, state = adamw(parameter, torch.tensor([-1.0]), state, chosen)
    m, v = 0.5 * 2.0 - 0.5, 0.75 * 4.0 + 0.25
    second = first - 0.1 * 0.2 * first - 0.1 * (m / 0.75) / (math.sqrt(v / (1 - 0.75**2)) + 0.5)
    assert parameter.item() == pytest.approx(second, rel=1e-15)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3))
def test_adamws_first_update_is_blind_to_the_scale_of_the_gradient(seed: int, scale: float) -> None:
    parameter, gradient = draw(seed, 9), draw(seed + 1, 9)
    chosen = AdamWSettings(lr=0.01, eps=0.0, weight_decay=0.1)
    once, _ = adamw(parameter, gradient, AdamWState.zeros(parameter), chosen)
    scaled, _ = adamw(parameter, scale * gradient, AdamWState.zeros(parameter), chosen)
    assert torch.allclose(once, scaled, rtol=0, atol=1e-14)
    assert torch.allclose(once, parameter * (1 - 0.001) - 0.01 * gradient.sign(), rtol=0, atol=1e-14)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_adamw_works_element_by_element(seed: int) -> None:
    parameter, gradient = draw(seed, 4, 3), draw(seed + 1, 4, 3)
    state = AdamWState(3, draw(seed + 2, 4, 3), draw(seed + 3, 4, 3).square())
    chosen = AdamWSettings(lr=0.01, weight_decay=0.1)
    whole, _ = adamw(parameter, gradient, state, chosen)
    flat = AdamWState(3, state.exp_avg.flatten()[2:7], state.exp_avg_sq.flatten()[2:7])
    part, _ = adamw(parameter.flatten()[2:7], gradient.flatten()[2:7], flat, chosen)
    assert torch.equal(part, whole.flatten()[2:7])


def test_adamw_leaves_its_arguments_as_they_were() -> None:
    parameter, gradient, state = draw(0, 4), draw(1, 4), AdamWState(1, draw(2, 4), draw(3, 4).square())
    kept = [tensor.clone() for tensor in (parameter, gradient, state.exp_avg, state.exp_avg_sq)]
    adamw(parameter, gradient, state, AdamWSettings(lr=0.1, weight_decay=0.1))
    assert all(map(torch.equal, kept, (parameter, gradient, state.exp_avg, state.exp_avg_sq)))


@pytest.mark.parametrize("order", ["definition", "foreach", "fused"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 3e-2)])
def test_every_order_in_a_narrow_dtype_stays_near_float64(dtype: torch.dtype, bound: float, order: Any) -> None:
    parameter, gradient = draw(0, 400).to(dtype), draw(1, 400).to(dtype)
    state = AdamWState(4, draw(2, 400).to(dtype), draw(3, 400).square().to(dtype))
    chosen = AdamWSettings(lr=0.01, weight_decay=0.1)
    exact, exact_state = adamw(parameter, gradient, state, chosen)
    narrow, narrow_state = adamw_in(parameter, gradient, state, chosen, dtype=dtype, order=order)
    assert {narrow.dtype, narrow_state.exp_avg.dtype, narrow_state.exp_avg_sq.dtype} == {dtype}
    assert 0.0 < worst(narrow.double(), exact) < bound
    assert 0.0 < worst(narrow_state.exp_avg.double(), exact_state.exp_avg) < bound


def test_the_orders_differ_by_rounding_only_and_agree_in_float64() -> None:
    parameter, gradient = draw(0, 400), draw(1, 400)
    state = AdamWState(4, draw(2, 400), draw(3, 400).square())
    chosen = AdamWSettings(lr=0.01, weight_decay=0.1)
    for dtype, least, most in ((torch.float64, 0.0, 1e-15), (torch.float32, 1e-9, 1e-6), (torch.bfloat16, 1e-5, 3e-2)):
        a, b = (
            adamw_in(parameter, gradient, state, chosen, dtype=dtype, order=order)[0]
            for order in ("definition", "foreach")
        )
        assert least <= worst(a.double(), b.double()) < most


@pytest.mark.parametrize("fused", [False, True])
def test_torchs_own_rounding_in_bf16_is_reproduced_bit_by_bit(fused: bool) -> None:
    theirs = torch.nn.Parameter(draw(0, 256).bfloat16())
    ours, state = theirs.detach().clone(), AdamWState.zeros(theirs)
    optimizer = torch.optim.AdamW([theirs], lr=0.03, weight_decay=0.1, fused=fused, foreach=False)
    chosen = AdamWSettings(lr=0.03, weight_decay=0.1)
    order: Any = "fused" if fused else "foreach"
    for step in range(3):
        gradient = draw(step + 1, 256).bfloat16()
        ours, state = adamw_in(ours, gradient, state, chosen, dtype=torch.bfloat16, order=order)
        step_torch(optimizer, theirs, gradient)
        assert torch.equal(ours, theirs.detach())
        assert torch.equal(state.exp_avg, optimizer.state[theirs]["exp_avg"])
        assert torch.equal(state.exp_avg_sq, optimizer.state[theirs]["exp_avg_sq"])


SGD_CASES = [
    SGDSettings(lr=0.1),
    SGDSettings(lr=0.1, weight_decay=0.2),
    SGDSettings(lr=0.1, momentum=0.9),
    SGDSettings(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
    SGDSettings(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
]


@pytest.mark.parametrize("chosen", SGD_CASES)
def test_sgd_equals_torch_in_float64(chosen: SGDSettings) -> None:
    ours, theirs, state = draw(0, 3, 5), torch.nn.Parameter(draw(0, 3, 5)), SGDState()
    optimizer = torch.optim.SGD(
        [theirs],
        lr=chosen.lr,
        momentum=chosen.momentum,
        dampening=chosen.dampening,
        nesterov=chosen.nesterov,
        weight_decay=chosen.weight_decay,
    )
    for step in range(STEPS):
        gradient = draw(step + 1, 3, 5)
        ours, state = sgd(ours, gradient, state, chosen)
        step_torch(optimizer, theirs, gradient)
        assert worst(ours, theirs.detach()) < 1e-14
        buffer = optimizer.state[theirs].get("momentum_buffer")
        assert (state.momentum_buffer is None) == (buffer is None)
        if state.momentum_buffer is not None:
            assert worst(state.momentum_buffer, buffer) < 1e-14


def test_two_sgd_updates_by_hand() -> None:
    chosen = SGDSettings(lr=0.5, momentum=0.5, dampening=0.25, weight_decay=0.1)
    parameter, state = sgd(torch.tensor([2.0]), torch.tensor([1.0]), SGDState(), chosen)
    assert parameter.item() == pytest.approx(2.0 - 0.5 * 1.2, rel=1e-15)
    parameter, state = sgd(parameter, torch.tensor([-1.0]), state, chosen)
    buffer = 0.5 * 1.2 + 0.75 * (-1.0 + 0.1 * 1.4)
    assert parameter.item() == pytest.approx(1.4 - 0.5 * buffer, rel=1e-15)
    narrow, _ = sgd_in(torch.tensor([2.0]), torch.tensor([1.0]), SGDState(), chosen, dtype=torch.bfloat16)
    assert narrow.dtype == torch.bfloat16


@settings(max_examples=40, deadline=None)
@given(norm=st.floats(1e-6, 1e6), max_norm=st.floats(1e-3, 1e3))
def test_the_clip_factor_is_what_torch_multiplies_by(norm: float, max_norm: float) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    parameter.grad = torch.tensor([norm], dtype=torch.float64)
    torch.nn.utils.clip_grad_norm_([parameter], max_norm)
    assert parameter.grad.item() == pytest.approx(norm * clip_factor(norm, max_norm), rel=1e-14)


def test_the_clip_factor_by_hand_and_at_its_edges() -> None:
    assert clip_factor(4.0, 1.0) == 1.0 / (4.0 + 1e-6)
    assert clip_factor(1.0, 1.0) == 1.0 / (1.0 + 1e-6)
    assert clip_factor(0.5, 1.0) == 1.0
    assert clip_factor(math.inf, 1.0) == 0.0
    assert math.isnan(clip_factor(math.nan, 1.0))


def rates_of_transformers(schedule: str, warmup: int, total: int) -> list[float]:
    name = "constant_with_warmup" if schedule == "constant" else schedule
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler = transformers.get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=total)
    rates = []
    for _ in range(total + 2):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(("warmup", "total"), [(0, 5), (3, 10), (1, 1), (4, 4), (7, 5)])
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_learning_rates_equal_those_of_transformers(schedule: Schedule, warmup: int, total: int) -> None:
    ours = [
        learning_rate(schedule, step, base_lr=0.3, warmup_steps=warmup, total_steps=total)
        for step in range(1, total + 3)
    ]
    assert ours == pytest.approx(rates_of_transformers(schedule, warmup, total), rel=1e-14, abs=1e-18)


def test_learning_rates_by_hand() -> None:
    assert learning_rate("linear", 1, base_lr=0.4, warmup_steps=2, total_steps=6) == 0.0
    assert learning_rate("linear", 2, base_lr=0.4, warmup_steps=2, total_steps=6) == 0.2
    assert learning_rate("linear", 3, base_lr=0.4, warmup_steps=2, total_steps=6) == 0.4
    assert learning_rate("linear", 5, base_lr=0.4, warmup_steps=2, total_steps=6) == 0.2
    assert learning_rate("cosine", 5, base_lr=0.4, warmup_steps=2, total_steps=6) == pytest.approx(0.2, rel=1e-15)
    assert learning_rate("constant", 1, base_lr=0.4, total_steps=6) == 0.4


def test_a_step_before_the_first_and_an_unknown_schedule_are_refused() -> None:
    unknown: Any = "polynomial"
    with pytest.raises(ValueError, match="count from 1"):
        learning_rate("constant", 0, base_lr=0.1, total_steps=3)
    with pytest.raises(ValueError, match="schedule 'polynomial' is none of constant, linear, cosine"):
        learning_rate(unknown, 1, base_lr=0.1, total_steps=3)
