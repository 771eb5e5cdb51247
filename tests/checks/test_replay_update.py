"""The replayed update against numbers made by hand, AdamW and SGD."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from checks.architecture import step_update
from checks.material import Material
from checks.references.optimizer import AdamWSettings, AdamWState, adamw, adamw_in
from checks.references.update import (
    ORDERS,
    ParameterUpdate,
    expected_clip_factor,
    replay_update,
    rounded_clip_factor,
)
from checks.spec import Precision, RunSpec
from checks.verdict import Status
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, capture_of, swap

NORM = "model.norm.weight"
HEAD = "lm_head.weight"
UP = "model.layers.1.mlp.up_proj.weight"
LR, DECAY, MOMENTUM = 0.5, 0.25, 0.75


def as_sgd(material: Material, editing: Edit, *, momentum: float, buffers: bool) -> RunSpec:
    """Make step 1 one of plain SGD, computed here: b = μ·old + g + λθ, θ − lr·b."""
    spec = replace(material.spec, optimizer="sgd", lr=LR, weight_decay=DECAY, momentum=momentum, max_grad_norm=0.0)
    for group in editing.drop_step(3).step()["optimizer"]["groups"]:
        decays = group["parameters"][0] in material.weight_decay_names
        group["settings"] = {"lr": LR, "momentum": momentum, "weight_decay": DECAY if decays else 0.0}
    for name in editing.names("gradient"):
        before = editing.tensor("parameter_before", name).double()
        gradient = editing.tensor("gradient", name).double()
        direction = gradient + (DECAY if name in material.weight_decay_names else 0.0) * before
        editing.drop("optimizer_state", name, field="exp_avg_sq").drop("optimizer_state", name, field="step")
        entry = editing.entry("optimizer_state", name, field="exp_avg")
        if momentum:
            old = torch.full_like(direction, 0.125) if buffers else torch.zeros_like(direction)
            if buffers:
                copy = {**entry, "kind": "optimizer_state_before", "field": "momentum_buffer"}
                copy["representations"] = {k: f"before/{v}" for k, v in entry["representations"].items()}
                editing.manifest["tensors"].append(copy)
                editing.put("optimizer_state_before", name, old, field="momentum_buffer")
            direction = momentum * old + direction
            entry["field"] = "momentum_buffer"
            editing.put("optimizer_state", name, direction, field="momentum_buffer")
        else:
            editing.drop("optimizer_state", name, field="exp_avg")
        editing.put("parameter_after", name, before - LR * direction)
    return spec


@pytest.mark.parametrize(("momentum", "buffers"), [(0.0, False), (MOMENTUM, False), (MOMENTUM, True)])
def test_sgd_is_replayed_from_its_definition(healthy: Material, edit: Editor, momentum: float, buffers: bool) -> None:
    editing = edit(healthy.capture)
    spec = as_sgd(healthy, editing, momentum=momentum, buffers=buffers)
    material = swap(replace(healthy, spec=spec), editing.save())
    verdict = step_update.judge(material)
    assert verdict.status is Status.PASS
    assert verdict.sentence == "25 parameters move as sgd defines, at steps 1"
    assert len(verdict.measurements) == (50 if momentum else 25)
    assert material.capture is not None
    updates = replay_update(
        spec, material.capture, 1, decaying=material.weight_decay_names, total_steps=material.total_steps
    )
    assert max(u.error for u in updates.values()) < 1e-12
    assert all(error < 1e-12 for u in updates.values() for error, _ in u.moments.values())
    other = replace(material, spec=replace(spec, momentum=0.5))
    assert step_update.judge(other).status is Status.FAIL


def test_a_wrong_momentum_buffer_is_seen(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    spec = as_sgd(healthy, editing, momentum=MOMENTUM, buffers=True)
    editing.change("optimizer_state", NORM, lambda buffer: 1.00001 * buffer, field="momentum_buffer")
    verdict = step_update.judge(swap(replace(healthy, spec=spec), editing.save()))
    assert verdict.first_wrong == f"momentum_buffer of {NORM} (step 1)"


def test_sgds_momentum_in_force_is_compared_with_the_asked_one(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    spec = as_sgd(healthy, editing, momentum=MOMENTUM, buffers=True)
    first = editing.step()["optimizer"]["groups"][0]
    first["settings"]["momentum"] = 0.5
    verdict = step_update.judge(swap(replace(healthy, spec=spec), editing.save()))
    assert verdict.sentence == f"momentum of the group of {first['parameters'][0]} is 0.5, asked 0.75"


def test_adamws_first_update_by_hand(healthy: Material) -> None:
    assert healthy.capture is not None
    updates = replay_update(healthy.spec, healthy.capture, 1, decaying=healthy.weight_decay_names, total_steps=3)
    assert list(updates) == list(healthy.capture.tensors(1, "gradient"))
    norm = sum(r.norm**2 for r in healthy.capture.tensors(1, "gradient").values()) ** 0.5
    for name in (NORM, UP):
        sample = {
            kind: healthy.capture.tensors(1, kind)[name].read("sample") for kind in ("gradient", "parameter_before")
        }
        gradient, before = sample["gradient"], sample["parameter_before"]
        assert gradient is not None
        assert before is not None
        clipped = gradient.double() / (norm + 1e-6)
        decay = 0.0 if name == NORM else 0.01
        # β₁ and β₂ cancel in the first update.
        expected = -1e-3 * decay * before.double().flatten() - 1e-3 * clipped.flatten() / (
            clipped.flatten().abs() + 1e-8
        )
        update = updates[name]
        assert float((update.expected - expected).norm()) < 1e-9 * float(expected.norm())
        assert update.error == float((update.change - update.expected).norm())
        assert update.scale == pytest.approx(1.0, abs=1e-3)


def test_a_later_step_starts_from_the_recorded_moments(healthy: Material) -> None:
    assert healthy.capture is not None
    capture = healthy.capture
    updates = replay_update(healthy.spec, capture, 3, decaying=healthy.weight_decay_names, total_steps=3)

    def read(kind: str, field: str | None = None) -> torch.Tensor:
        tensor = capture.tensors(3, kind, field=field)[NORM].read("sample")
        assert tensor is not None
        return tensor.double()

    norm = sum(r.norm**2 for r in capture.tensors(3, "gradient").values()) ** 0.5
    clipped = read("gradient") / (norm + 1e-6)
    m = 0.9 * read("optimizer_state_before", "exp_avg") + 0.1 * clipped
    v = 0.999 * read("optimizer_state_before", "exp_avg_sq") + 0.001 * clipped.square()
    expected = -1e-3 * (m / (1 - 0.9**3)) / ((v / (1 - 0.999**3)).sqrt() + 1e-8)
    assert float((updates[NORM].expected - expected).norm()) < 1e-9 * float(expected.norm())


def test_what_was_not_recorded_is_left_out(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture).drop("parameter_after", NORM).drop("optimizer_state", UP, field="exp_avg")
    capture = editing.save()
    updates = replay_update(healthy.spec, capture, 1, decaying=healthy.weight_decay_names, total_steps=3)
    assert NORM not in updates
    assert len(updates) == 24
    assert list(updates[UP].moments) == ["exp_avg_sq"]


def test_what_has_no_sample_or_no_value_before_is_left_out(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture).drop("parameter_before", NORM)
    del editing.entry("parameter_after", UP)["representations"]["sample"]
    del editing.entry("optimizer_state", HEAD, field="exp_avg")["representations"]["sample"]
    updates = replay_update(healthy.spec, editing.save(), 1, decaying=healthy.weight_decay_names, total_steps=3)
    assert set(updates) == set(editing.names("gradient")) - {NORM, UP}
    assert list(updates[HEAD].moments) == ["exp_avg_sq"]


@pytest.mark.parametrize(
    ("precision", "dtype", "epsilon"),
    [
        ("float32", torch.float32, 2.0**-24),
        ("bf16", torch.float32, 2.0**-24),
        ("bf16_params", torch.bfloat16, 2.0**-9),
    ],
)
def test_the_floor_is_the_worst_order_of_operations_and_the_parameters_rounding(
    healthy: Material, precision: Precision, dtype: torch.dtype, epsilon: float
) -> None:
    spec = replace(healthy.spec, precision=precision)
    capture = capture_of(healthy)
    update = replay_update(spec, capture, 1, decaying=healthy.weight_decay_names, total_steps=3)[UP]
    before, gradient = (capture.tensors(1, kind)[UP].read("sample") for kind in ("parameter_before", "gradient"))
    assert before is not None
    assert gradient is not None
    theta = before.double().flatten()
    clipped = gradient.double().flatten() * expected_clip_factor(spec, capture, 1)
    settings = AdamWSettings(1e-3, 0.9, 0.999, 1e-8, 0.01)
    state = AdamWState.zeros(theta)
    exact, exact_state = adamw(theta, clipped, state, settings)
    own = gradient.double().flatten() * rounded_clip_factor(spec, capture, 1)
    forms = [adamw_in(theta, g, state, settings, dtype=dtype, order=order) for g in (clipped, own) for order in ORDERS]
    errors = [float((form.double() - exact).norm()) for form, _ in forms]
    assert update.floor == pytest.approx(max(errors) + epsilon * float(theta.norm()), rel=1e-9)
    size = float(exact_state.exp_avg_sq.norm())
    moments = [float((s.exp_avg_sq.double() - exact_state.exp_avg_sq).norm()) / size for _, s in forms]
    assert update.moments["exp_avg_sq"][1] == pytest.approx(max(moments) + 4.0 * epsilon, rel=1e-9)


def test_a_buffer_that_sgd_without_momentum_does_not_define_is_not_compared(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    entry = editing.entry("optimizer_state", NORM, field="exp_avg")
    spec = as_sgd(healthy, editing, momentum=0.0, buffers=False)
    editing.manifest["tensors"].append({**entry, "field": "momentum_buffer"})
    updates = replay_update(spec, editing.save(), 1, decaying=healthy.weight_decay_names, total_steps=3)
    assert updates[NORM].moments == {}


def test_an_update_of_nothing_has_the_scale_one() -> None:
    nothing = torch.zeros(3, dtype=torch.float64)
    update = ParameterUpdate("a", nothing + 1.0, nothing, 1.0, {})
    assert (update.scale, update.norm) == (1.0, 0.0)
    assert ParameterUpdate("a", nothing + 1.0, nothing + 2.0, 1.0, {}).scale == 0.5


@pytest.mark.parametrize(
    ("off", "precision", "taken"),
    [
        (1e-6, "float32", True),
        (1e-4, "float32", False),
        (1e-4, "bf16", False),
        (5e-3, "bf16_params", True),
        (0.01, "bf16_params", False),
    ],
)
def test_a_norm_that_is_off_by_its_rounding_is_a_legitimate_one(
    healthy: Material, edit: Editor, off: float, precision: str, taken: bool
) -> None:
    capture = healthy.capture
    assert capture is not None
    spec = replace(healthy.spec, precision=precision)
    exact = expected_clip_factor(spec, capture, 1)
    assert exact < 1.0
    editing = edit(capture)
    editing.step(1)["clips"][-1]["total_norm"] = (1.0 + off) / exact
    own = rounded_clip_factor(spec, editing.save(), 1)
    assert own == (pytest.approx(exact / (1.0 + off), rel=1e-5) if taken else exact)
