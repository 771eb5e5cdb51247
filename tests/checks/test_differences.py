"""How far a tensor is from its reference, in full and from sketches; and which rows belong together."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plumbline_capture.sketch import row_norms, sketch

from checks.captures.blocks import WHOLE, Blocks, blocks_of, head_dim, kind_of, layer_of
from checks.captures.differences import (
    Difference,
    Projection,
    difference,
    project,
    record_difference,
    sketch_difference,
)
from checks.material import Material
from tests.checks.conftest import Editor

NAME = "model.layers.0.mlp.up_proj.weight"
CONFIG = {"head_dim": 16, "hidden_size": 64, "num_attention_heads": 4}


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_difference_states_error_norms_scale_and_cosine() -> None:
    d = difference(double(6.0, 8.0, 1.0), project(NAME, double(3.0, 4.0, 0.0), WHOLE))
    assert d.error == pytest.approx(math.sqrt(26.0), rel=1e-15)
    assert d.norm == 5.0
    assert d.other_norm == pytest.approx(math.sqrt(101.0))
    assert (d.dot, d.square, d.other_square) == (50.0, 25.0, 101.0)
    assert d.relative == pytest.approx(math.sqrt(26.0) / 5.0)
    assert d.scale == 2.0
    assert d.cosine == pytest.approx(50.0 / math.sqrt(25.0 * 101.0))
    assert d.residual(2.0) == pytest.approx(1.0)
    assert d.residual(1.0) == pytest.approx(math.sqrt(26.0))


def test_zero_tensors_have_a_scale_and_a_direction_only_when_both_are_zero() -> None:
    both = difference(double(0.0, 0.0), project(NAME, double(0.0, 0.0), WHOLE))
    assert (both.relative, both.scale, both.cosine) == (0.0, 1.0, 1.0)
    one = difference(double(1.0, 0.0), project(NAME, double(0.0, 0.0), WHOLE))
    assert (one.relative, one.cosine) == (math.inf, 0.0)
    assert math.isnan(one.scale)
    other = difference(double(0.0, 0.0), project(NAME, double(1.0, 0.0), WHOLE))
    assert (other.relative, other.scale, other.cosine) == (1.0, 0.0, 0.0)


def test_rounding_never_makes_a_cosine_larger_than_one_or_a_residual_imaginary() -> None:
    none = torch.empty(0, dtype=torch.float64)
    assert Difference(0.0, 1.0, 1.0, 1.0 + 1e-15, 1.0, 1.0, none, none).cosine == 1.0
    assert Difference(0.0, 1.0, 1.0, -1.0 - 1e-15, 1.0, 1.0, none, none).cosine == -1.0
    assert Difference(0.0, 1.0, 1.0, 1.0 + 1e-15, 1.0, 1.0, none, none).residual(1.0) == 0.0


def test_lower_precisions_are_compared_in_float64() -> None:
    b = project(NAME, double(1.0, 2.0**-30), WHOLE)
    d = difference(torch.tensor([1.0, 0.0], dtype=torch.bfloat16), b)
    assert d.error == 2.0**-30


def test_block_errors_are_differences_of_block_norms() -> None:
    b = project(NAME, torch.tensor([[3.0], [4.0], [5.0], [12.0]]), Blocks("head", 2, 2))
    a = torch.tensor([[6.0], [8.0], [0.0], [12.0]])
    assert b.block_norms.tolist() == [5.0, 13.0]
    for d in (
        difference(a, b),
        sketch_difference(sketch(a, NAME), float(a.norm()), row_norms(a), b),
    ):
        assert d.block_errors.tolist() == [5.0, 1.0]
        assert d.block_norms.tolist() == [5.0, 13.0]
    assert sketch_difference(sketch(a, NAME), 1.0, None, b).block_errors.numel() == 0
    vector = project(NAME, double(1.0, 2.0), Blocks("head", 1, 2))
    assert vector.block_norms.numel() == 0


def test_a_sketch_gives_error_scale_and_cosine_within_a_few_percent_and_exact_multiples_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    b = torch.randn(128, 96, generator=generator, dtype=torch.float64)
    a = b + 1e-3 * torch.randn(128, 96, generator=generator, dtype=torch.float64)
    reference = project(NAME, b, WHOLE)
    full, estimate = difference(a, reference), sketch_difference(sketch(a, NAME), float(a.norm()), None, reference)
    assert estimate.error == pytest.approx(full.error, rel=0.04)
    assert estimate.other_norm == full.other_norm
    assert estimate.scale == pytest.approx(full.scale, abs=1e-4)
    assert estimate.cosine == pytest.approx(full.cosine, abs=1e-6)
    half = sketch_difference(sketch(0.5 * b, NAME), 1.0, None, reference)
    assert half.scale == pytest.approx(0.5, rel=1e-12)
    assert half.cosine == pytest.approx(1.0, abs=1e-12)
    assert half.residual(0.5) < 1e-6


def test_a_reference_whose_values_were_dropped_is_compared_by_sketch() -> None:
    b = torch.randn(64, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    kept = project(NAME, b, Blocks("head", 32, 2))
    dropped = type(kept)(kept.name, kept.blocks, None, kept.sketch, kept.norm, kept.block_norms)
    d = difference(1.5 * b, dropped)
    assert d.scale == pytest.approx(1.5, rel=1e-12)
    assert d.other_norm == pytest.approx(1.5 * kept.norm)
    assert (d.block_errors / kept.block_norms).tolist() == pytest.approx([0.5, 0.5])
    single = difference(1.5 * b.float(), dropped)
    assert single.other_norm == pytest.approx(float((1.5 * b.float()).double().norm()), rel=1e-14)
    whole = project(NAME, b, WHOLE)
    assert sketch_difference(sketch(b, NAME), 1.0, row_norms(b), whole).block_errors.numel() == 0


def test_a_record_is_compared_by_its_fullest_representation(healthy: Material, edit: Editor) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    editing = edit(healthy.capture)
    gradient = editing.tensor("gradient", name).double()
    reference = project(name, gradient, Blocks("head", 16, 4))
    capture = editing.put("gradient", name, 1.25 * gradient).save()
    record = capture.tensors(1, "gradient")[name]
    assert record_difference(record, reference).error == pytest.approx(0.25 * reference.norm, rel=1e-12)
    dropped = Projection(name, WHOLE, None, reference.sketch, reference.norm, double())
    assert record_difference(record, dropped).error == pytest.approx(0.25 * reference.norm, rel=0.05)
    sketched = edit(capture).keep_sketches().save().tensors(1, "gradient")[name]
    assert sketched.read("full") is None
    estimate = record_difference(sketched, reference)
    assert estimate.error == pytest.approx(0.25 * reference.norm, rel=0.05)
    assert (estimate.block_errors / reference.block_norms).tolist() == pytest.approx([0.25] * 4, rel=1e-9)


def test_a_record_of_another_shape_or_without_values_is_refused(healthy: Material, edit: Editor) -> None:
    assert healthy.capture is not None
    record = healthy.capture.tensors(1, "gradient")["model.norm.weight"]
    with pytest.raises(ValueError, match=r"model\.norm\.weight has shape \(64,\), its reference \(63,\)"):
        record_difference(record, project(record.name, double(*[1.0] * 63), WHOLE))
    moment = healthy.capture.tensors(1, "optimizer_state", field="exp_avg")["model.norm.weight"]
    bare = type(moment)(moment.name, "gradient", None, None, moment.dtype, (64,), moment.stats, {})
    with pytest.raises(ValueError, match="neither in full nor as a sketch"):
        record_difference(bare, project(record.name, double(*[1.0] * 64), WHOLE))


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (64, 64), Blocks("head", 16, 4)),
        ("model.layers.0.self_attn.k_proj.weight", (32, 64), Blocks("head", 16, 2)),
        ("model.layers.0.self_attn.v_proj.weight", (16, 64), WHOLE),
        ("model.layers.0.self_attn.q_proj.weight", (40, 64), WHOLE),
        ("model.layers.0.self_attn.o_proj.weight", (64, 64), WHOLE),
        ("model.layers.0.self_attn.q_proj.bias", (64,), WHOLE),
        ("model.embed_tokens.weight", (512, 64), Blocks("vocabulary row", 1, 512)),
        ("lm_head.weight", (512, 64), Blocks("vocabulary row", 1, 512)),
        ("model.layers.1.mlp.experts.down_proj", (8, 64, 32), Blocks("expert", 1, 8)),
        ("model.layers.1.conv.weight", (8, 64, 32), WHOLE),
        ("model.layers.1.mlp.experts.gate.weight", (8, 64), WHOLE),
        ("weight", (8, 8), WHOLE),
    ],
)
def test_rows_that_belong_together_are_told_by_name(name: str, shape: tuple[int, ...], expected: Blocks) -> None:
    assert blocks_of(name, shape, config=CONFIG) == expected


def test_the_head_dimension_is_the_stated_one_or_follows_from_the_width() -> None:
    assert head_dim({"head_dim": 32, "hidden_size": 64, "num_attention_heads": 4}) == 32
    assert head_dim({"hidden_size": 64, "num_attention_heads": 4}) == 16
    assert head_dim({"hidden_size": 64}) is None
    assert head_dim({"num_attention_heads": 4}) is None
    assert blocks_of("a.q_proj.weight", (64, 64), config={}) == WHOLE


def test_block_norms_pool_the_rows_of_a_block() -> None:
    assert Blocks("head", 2, 2).pool(double(3.0, 4.0, 5.0, 12.0)).tolist() == [5.0, 13.0]


@pytest.mark.parametrize(
    ("name", "kind", "layer"),
    [
        ("model.embed_tokens.weight", "embed_tokens", None),
        ("lm_head.weight", "lm_head", None),
        ("model.layers.3.self_attn.q_proj.weight", "q_proj", 3),
        ("model.layers.3.self_attn.q_proj.bias", "q_proj bias", 3),
        ("model.layers.0.input_layernorm.weight", "norm", 0),
        ("model.layers.12.self_attn.q_norm.weight", "norm", 12),
        ("model.layers.1.mlp.experts.gate_up_proj", "gate_up_proj", 1),
        ("model.layers.1.mlp.experts.7.up_proj.weight", "up_proj", 1),
        ("model.layers.1.self_attn.sinks", "sinks", 1),
        ("model.layers.1.self_attn.q_proj.lora_A.weight", "q_proj.lora_A", 1),
        ("model.layers.1.self_attn.q_proj.lora_B.weight", "q_proj.lora_B", 1),
        ("model.layers.1.mlp.experts.7.weight", "weight", 1),
        ("model.stages.3.norm.weight", "norm", None),
        ("layers.norm.weight", "norm", None),
        ("weight", "weight", None),
    ],
)
def test_kind_and_layer_are_told_by_name(name: str, kind: str, layer: int | None) -> None:
    assert (kind_of(name), layer_of(name)) == (kind, layer)


@settings(deadline=None)
@given(st.lists(st.floats(min_value=-1e3, max_value=1e3), min_size=4, max_size=4), st.floats(0.1, 10.0))
def test_a_multiple_of_the_reference_has_that_scale(values: list[float], c: float) -> None:
    b = double(*values)
    if float(b.norm()) < 1e-6:
        return
    d = difference(c * b, project(NAME, b, WHOLE))
    assert d.scale == pytest.approx(c, rel=1e-9)
    assert d.cosine == pytest.approx(1.0, abs=1e-9)
    assert d.residual(c) <= 1e-6 * float(b.norm()) * max(1.0, c)
