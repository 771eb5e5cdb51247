"""The heatmap: where a tensor sits, and which colour it has."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline_web.validations.stepdiff.grid import build_grid
from plumbline_web.validations.stepdiff.heat import list_swatches, shade
from plumbline_web.validations.stepdiff.names import OUTSIDE, place
from plumbline_web.validations.stepdiff.tensors import Tensor
from tests.web.test_stepdiff import QUERY


def tensor(name: str, ratio: float, *, holds: bool | None = None) -> Tensor:
    return Tensor(name, ratio * 1e-5, 1.25e-6, 1e-5, None, ratio, ratio <= 1.0 if holds is None else holds)


@pytest.mark.parametrize(
    ("name", "row", "group", "short"),
    [
        ("model.embed_tokens.weight", "embed_tokens", "", OUTSIDE),
        ("model.norm.weight", "norm", "", OUTSIDE),
        ("lm_head.weight", "lm_head", "", OUTSIDE),
        ("model.layers.12.self_attn.q_proj.weight", "layers.12", "self_attn", "q_proj"),
        ("model.layers.0.self_attn.q_proj.bias", "layers.0", "self_attn", "q_proj bias"),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", "layers.0", "self_attn", "q_proj lora_A"),
        ("model.layers.0.input_layernorm.weight", "layers.0", "", "input_layernorm"),
        ("model.layers.3.mlp.experts.gate_up_proj", "layers.3", "mlp.experts", "gate_up_proj"),
        ("model.layers.3.mlp.experts.17.up_proj.weight", "layers.3", "mlp.experts", "up_proj"),
        ("model.language_model.layers.3.mlp.up_proj.weight", "language_model.layers.3", "mlp", "up_proj"),
    ],
)
def test_a_tensor_has_its_place(name: str, row: str, group: str, short: str) -> None:
    where = place(name)
    assert (where.row, where.group, where.short) == (row, group, short)


def test_the_hue_turns_where_the_threshold_lies() -> None:
    assert shade(1.0, holds=True) == "heat-n1"
    assert shade(1.0001, holds=False) == "heat-p1"
    assert shade(0.5, holds=False) == "heat-p1"
    assert (shade(0.0, holds=True), shade(1e-30, holds=True)) == ("heat-n8", "heat-n8")
    assert (shade(math.inf, holds=False), shade(1e30, holds=False)) == ("heat-p8", "heat-p8")
    assert shade(math.nan, holds=False) == "heat-nan"
    assert shade(0.125, holds=True) == "heat-n2"
    assert shade(31.0, holds=False) == "heat-p3"


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_more_error_is_never_a_weaker_colour(one: float, other: float) -> None:
    order = [swatch.shade for swatch in list_swatches()]
    low, high = sorted((one, other))
    assert order.index(shade(low, holds=low <= 1.0)) <= order.index(shade(high, holds=high <= 1.0))


def test_the_legend_says_where_each_colour_begins() -> None:
    swatches = {swatch.shade: swatch for swatch in list_swatches()}
    assert len(swatches) == 16
    assert swatches["heat-n8"].low == pytest.approx(1e-4)
    assert swatches["heat-p1"].low == 1.0
    for name, swatch in swatches.items():
        assert shade(swatch.low * 1.01, holds=swatch.low < 1.0) == name


def test_rows_and_columns_come_in_the_order_of_the_model() -> None:
    names = [
        "model.embed_tokens.weight",
        QUERY,
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
    ]
    grid = build_grid(tensor(name, 0.1) for name in names)
    assert [row.title for row in grid.rows] == ["embed_tokens", "layers.0", "layers.1", "norm", "lm_head"]
    assert [column.title for column in grid.columns] == [OUTSIDE, "q_proj", "k_proj", "up_proj", "input_layernorm"]
    assert [(group.title, group.span) for group in grid.groups] == [("", 1), ("self_attn", 2), ("mlp", 1), ("", 1)]
    assert [cell is not None for cell in grid.rows[1].cells] == [False, True, False, True, True]
    assert (grid.wrong, grid.total) == (0, 8)


def test_the_experts_of_a_layer_share_a_cell_and_the_wrong_one_shows() -> None:
    names = [f"model.layers.0.mlp.experts.{i}.up_proj.weight" for i in range(4)]
    grid = build_grid(tensor(name, 5.0 if i == 2 else 0.2) for i, name in enumerate(names))
    cell = grid.rows[0].cells[0]
    assert cell is not None
    assert (cell.count, cell.expert, cell.tensor.name, cell.shade) == (4, 2, names[2], "heat-p2")
    assert "worst of 4 experts" in cell.hover


def test_a_cell_shows_two_digits_and_the_whole_value_on_hover() -> None:
    cell = build_grid([tensor(QUERY, 304.4)]).rows[0].cells[0]
    assert cell is not None
    assert cell.text == "3.0e-3"
    assert repr(304.4 * 1e-5) in cell.hover
    assert "304 × its threshold 1e-05" in cell.hover
    assert "noise floor 1.25e-06" in cell.hover
