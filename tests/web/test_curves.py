"""Curves: stored whole, and drawn with fewer points without hiding one that matters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from checks.captures.log import LogRecord
from plumbline_web.curves.domain import read_curves, store_curves
from plumbline_web.curves.downsample import MOST_POINTS, choose, downsample
from plumbline_web.curves.models import CHUNK_POINTS, Chunk, Series
from plumbline_web.curves.series import Curve, place_along, smooth, subtract
from plumbline_web.validations.models import FrameworkRun
from tests.web.factories import make_validation

VALUES = hnp.arrays(
    np.float64,
    st.integers(1, 400),
    elements=st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf]),
)


def curve_of(values: object) -> Curve:
    array = np.asarray(values, dtype=np.float64)
    return Curve(np.arange(1, array.size + 1), array)


@given(VALUES, st.integers(8, 60))
def test_no_spike_is_lost(values: np.ndarray, most: int) -> None:
    curve = curve_of(values)
    sampled = downsample(curve, most=most)
    finite = values[np.isfinite(values)]
    shown = sampled.curve.values[np.isfinite(sampled.curve.values)]
    assert sampled.curve.steps.size <= most
    assert sampled.of == values.size
    assert (np.diff(sampled.curve.steps) > 0).all()
    assert sampled.curve.steps[0] == 1
    assert sampled.curve.steps[-1] == values.size
    if finite.size:
        assert shown.min() == finite.min()
        assert shown.max() == finite.max()


@given(VALUES, st.integers(8, 60))
def test_each_stretch_keeps_its_own_extremes_and_a_step_that_is_no_number(values: np.ndarray, most: int) -> None:
    if values.size <= most:
        return
    kept = set(choose(curve_of(values), most=most).tolist())
    stretches = max(1, (most - 2) // (2 if np.isfinite(values).all() else 3))
    length = math.ceil(values.size / stretches)
    for start in range(0, values.size, length):
        part = values[start : start + length]
        mine = [values[i] for i in sorted(kept) if start <= i < start + length]
        finite = part[np.isfinite(part)]
        if finite.size:
            assert finite.min() in mine
            assert finite.max() in mine
        if finite.size < part.size:
            assert any(not math.isfinite(value) for value in mine)


@given(VALUES)
def test_every_step_that_is_no_number_is_marked(values: np.ndarray) -> None:
    sampled = downsample(curve_of(values), most=500)
    assert sampled.markers.tolist() == [i + 1 for i, value in enumerate(values) if not math.isfinite(value)]
    assert sampled.nonfinite == len(sampled.markers)


def test_a_short_curve_is_drawn_whole_and_a_long_one_says_what_it_is() -> None:
    values = np.zeros(100_000)
    values[43_210] = 9.0
    values[70_000:70_002] = math.nan
    sampled = downsample(curve_of(values))
    assert sampled.curve.steps.size <= MOST_POINTS
    assert 9.0 in sampled.curve.values
    assert sampled.note.endswith(" of 100,000 points, extremes kept; 2 not finite")
    assert downsample(curve_of([1.0, 2.0])).note == "2 points"


@given(VALUES)
def test_no_smoothing_is_the_curve_itself(values: np.ndarray) -> None:
    finite = np.isfinite(values)
    smoothed = smooth(curve_of(values), 0.0).values
    assert (smoothed[finite] == values[finite]).all()
    assert np.isnan(smoothed[~finite]).all()


@given(st.floats(-1e3, 1e3), st.floats(0.01, 0.999))
def test_the_mean_of_a_constant_is_the_constant_from_the_first_step_on(value: float, weight: float) -> None:
    smoothed = smooth(curve_of([value, math.nan, value, value]), weight).values
    assert smoothed[[0, 2, 3]] == pytest.approx(value)


def test_a_difference_is_taken_at_the_common_steps() -> None:
    ours = Curve(np.array([1, 2, 4]), np.array([1.0, 5.0, math.inf]))
    base = Curve(np.array([2, 3, 4]), np.array([4.5, 0.0, math.inf]))
    difference = subtract(ours, base)
    assert difference.steps.tolist() == [2, 4]
    assert difference.values[0] == 0.5
    assert math.isnan(difference.values[1])


def test_a_difference_below_float32_is_kept() -> None:
    difference = subtract(curve_of([1.0 + 1e-12]), curve_of([1.0]))
    assert difference.values.tolist() == [(1.0 + 1e-12) - 1.0]


def test_points_lie_where_the_other_axis_has_their_step() -> None:
    axis = Curve(np.array([1, 2, 3]), np.array([10.0, 20.0, 30.0]))
    places = place_along(Curve(np.array([2, 3, 4]), np.zeros(3)), axis)
    assert places is not None
    assert places[:2].tolist() == [20.0, 30.0]
    assert math.isnan(places[2])
    assert place_along(axis, None) is None


@pytest.fixture
def run(db: None) -> FrameworkRun:
    run: FrameworkRun = make_validation(settings={"batch": 2, "accumulation": 3}).runs.first()
    return run


def test_what_is_stored_is_read_back_bit_by_bit(run: FrameworkRun) -> None:
    values = np.random.default_rng(0).standard_normal(CHUNK_POINTS + 5)
    values[7], values[CHUNK_POINTS + 1] = math.nan, math.inf
    store_curves(run, [LogRecord(i + 1, float(value), None, 1e-3, tokens=8.0) for i, value in enumerate(values)])
    curves = read_curves([run.pk], ["loss", "learning_rate", "samples", "grad_norm"])[run.pk]
    assert set(curves) == {"loss", "learning_rate", "samples"}
    assert curves["loss"].values.tobytes() == values.tobytes()
    assert curves["loss"].steps.tolist() == list(range(1, CHUNK_POINTS + 6))
    assert curves["samples"].values.tolist() == [6.0 * step for step in range(1, CHUNK_POINTS + 6)]


def test_a_chunk_knows_its_extremes_and_what_is_not_finite(run: FrameworkRun) -> None:
    store_curves(
        run, [LogRecord(1, 2.0, None, None), LogRecord(2, -math.inf, None, None), LogRecord(3, 7.0, 1.0, None)]
    )
    series = Series.objects.get(run=run, name="loss")
    chunk = series.chunks.get()
    assert (series.points, chunk.count, chunk.minimum, chunk.maximum, chunk.nonfinite) == (3, 3, 2.0, 7.0, 1)


def test_a_series_is_cut_into_chunks_of_4096(run: FrameworkRun) -> None:
    store_curves(run, [LogRecord(step, 1.0, None, None) for step in range(1, 2 * CHUNK_POINTS + 2)])
    chunks = Chunk.objects.filter(series__run=run, series__name="loss").order_by("number")
    assert list(chunks.values_list("number", "count")) == [(0, 4096), (1, 4096), (2, 1)]


def test_storing_again_replaces_and_a_step_logged_twice_counts_with_its_last_record(run: FrameworkRun) -> None:
    store_curves(run, [LogRecord(1, 1.0, 1.0, 1.0)])
    store_curves(run, [LogRecord(2, 3.0, None, None), LogRecord(1, 2.0, None, None), LogRecord(2, 4.0, None, None)])
    curves = read_curves([run.pk], ["loss", "grad_norm"])[run.pk]
    assert list(curves) == ["loss"]
    assert curves["loss"].values.tolist() == [2.0, 4.0]


def test_a_run_without_records_has_no_curve(run: FrameworkRun) -> None:
    store_curves(run, [])
    assert read_curves([run.pk], ["loss"]) == {}


@settings(max_examples=20)
@given(st.lists(st.floats(), min_size=1, max_size=50))
def test_summaries_of_any_values_are_finite_or_none(values: list[float]) -> None:
    curve = curve_of(values)
    for number in (curve.smallest, curve.largest):
        assert number is None or math.isfinite(number)
