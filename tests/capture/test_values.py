"""The numbers that the recorder computes by itself."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plumbline_capture.backward import clip_factor
from plumbline_capture.calls import bind_arguments, first_floating, first_output, rows_and_positions, to_float
from plumbline_capture.loss import token_losses
from plumbline_capture.represent import describe, norm_of
from torch.nn import functional

from tests.capture.plain_lm import PlainLM


@settings(deadline=None, max_examples=20)
@given(rows=st.integers(1, 300), classes=st.integers(2, 900), seed=st.integers(0, 1000))
def test_token_losses_are_minus_log_p_in_float64_and_zero_where_ignored(rows: int, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, classes, generator=generator) * 20).to(torch.bfloat16)
    target = torch.randint(0, classes, (rows,), generator=generator)
    target[::3] = -100
    expected = functional.cross_entropy(logits.double(), target, reduction="none")
    torch.testing.assert_close(token_losses(logits, target), expected, rtol=1e-12, atol=1e-12)


def test_statistics_are_those_of_the_finite_part() -> None:
    values = torch.tensor([3.0, -4.0, math.nan, math.inf, 0.0])
    assert describe(values) == {
        "count": 5,
        "mean": pytest.approx(-1 / 3),
        "rms": pytest.approx(math.sqrt(25 / 3)),
        "norm": 5.0,
        "min": -4.0,
        "max": 3.0,
        "nonfinite": 2,
    }
    nothing = {"mean": None, "rms": None, "norm": None, "min": None, "max": None}
    assert describe(torch.full((2,), math.nan)) == {"count": 2, "nonfinite": 2, **nothing}
    assert describe(torch.zeros(0)) == {"count": 0, "nonfinite": 0, **nothing}


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64])
def test_statistics_of_many_blocks_are_those_of_the_whole(dtype: torch.dtype) -> None:
    values = torch.randint(0, 2, (3, 70_001), generator=torch.Generator().manual_seed(0)).to(dtype)
    wide = values.double()
    stats = describe(values)
    assert stats["mean"] == pytest.approx(float(wide.mean()), rel=1e-12)
    assert stats["norm"] == pytest.approx(float(wide.norm()), rel=1e-12)
    assert stats["rms"] == pytest.approx(float(wide.square().mean().sqrt()), rel=1e-12)
    assert (stats["min"], stats["max"]) == (0.0, 1.0)
    assert norm_of(values) == pytest.approx(stats["norm"], rel=1e-15)


@pytest.mark.parametrize(
    ("max_norm", "total_norm", "factor"),
    [(1.0, 4.0, 1 / (4 + 1e-6)), (1.0, 0.5, 1.0), (0.1, 0.1, 0.1 / (0.1 + 1e-6)), (math.inf, 3.0, 1.0)],
)
def test_the_clip_factor_is_torchs(max_norm: float, total_norm: float, factor: float) -> None:
    assert clip_factor(max_norm=max_norm, total_norm=total_norm) == factor


def test_arguments_take_names_from_the_signature_and_keywords_keep_theirs() -> None:
    tokens, mask, extra = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3), torch.ones(1)
    bound = bind_arguments(PlainLM(), (tokens, mask, extra), {"labels": tokens})
    assert list(bound) == ["tokens", "mask", "argument_2", "labels"]
    assert bound["mask"] is mask
    assert rows_and_positions(bound) == (2, 3)
    assert rows_and_positions({"mask": mask}) is None


def test_the_hidden_states_of_a_call_are_told_from_its_other_arguments() -> None:
    hidden, ids = torch.ones(2), torch.zeros(2, dtype=torch.long)
    assert first_floating((ids,), {"scale": torch.ones(1), "hidden_states": hidden}) is hidden
    assert first_floating((ids,), {}) is None
    assert first_output((hidden, ids)) is hidden
    assert first_output({"loss": torch.ones(()), "logits": hidden}) is hidden
    assert first_output(None) is None


def test_only_single_numbers_become_floats() -> None:
    assert to_float(torch.tensor([2.5], dtype=torch.bfloat16)) == 2.5
    assert to_float(3) == 3.0
    assert [to_float(value) for value in (None, True, "1", torch.ones(2))] == [None, None, None, None]
