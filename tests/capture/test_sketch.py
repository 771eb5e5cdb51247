"""The sketch: bit by bit, additive, an unbiased estimate of norms and inner products."""

from __future__ import annotations

import json
import math
from importlib.resources import files

import plumbline_capture.sketch as module
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plumbline_capture.sketch import K, row_norms, sample, sample_positions, seed_of, signs, sketch

from tests.capture import reference_sketch

VECTORS = json.loads((files("plumbline_capture") / "sketch_vectors.json").read_text())["vectors"]


def test_the_shipped_vectors_are_those_of_the_plain_python_implementation() -> None:
    assert json.loads(json.dumps(reference_sketch.vectors())) == VECTORS


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
def test_sketch_signs_and_positions_match_the_shipped_vectors(vector: dict[str, object]) -> None:
    name, count, offset = str(vector["name"]), int(str(vector["count"])), int(str(vector["offset"]))
    values = torch.tensor([float(7 * i % 11 - 5) for i in range(count)])
    total = sketch(values, name, offset=offset)
    assert str(seed_of(name)) == vector["seed"]
    assert signs(name, 0, 128).tolist() == vector["first_signs"]
    assert total[:16].tolist() == vector["first_bins"]
    assert total[-4:].tolist() == vector["last_bins"]
    assert float((total * total).sum()) == vector["sum_of_squares"]
    assert float((total * torch.arange(1, K + 1)).sum()) == vector["weighted_sum"]
    positions = sample_positions(name, 1_000_003)
    assert (len(positions), positions[:8].tolist()) == (vector["samples"], vector["first_positions"])
    assert int(positions.sum()) == vector["sum_of_positions"]


@settings(deadline=None, max_examples=25)
@given(
    count=st.integers(1, 9_000),
    offset=st.integers(0, 1 << 40),
    name=st.text(min_size=1, max_size=8),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_any_run_sketches_as_in_plain_python(count: int, offset: int, name: str, dtype: torch.dtype) -> None:
    values = torch.randint(-8, 9, (count,), generator=torch.Generator().manual_seed(count)).to(dtype)
    assert sketch(values, name, offset=offset).tolist() == reference_sketch.sketch(values.tolist(), name, offset=offset)


def test_runs_longer_than_all_internal_chunks_sketch_the_same_in_pieces() -> None:
    count = module._CPU_CHUNK * module._CHUNKS_HASHED + 3 * K + 17
    values = torch.randint(-9, 10, (count,), generator=torch.Generator().manual_seed(0)).float()
    whole = sketch(values, "w", offset=99)
    for cut in (1, 64, K, module._CPU_CHUNK - 1, count - 5):
        assert torch.equal(sketch(values[:cut], "w", offset=99) + sketch(values[cut:], "w", offset=99 + cut), whole)
    assert torch.equal(signs("w", 99, count) * values, _signed(values, "w", offset=99))


def _signed(values: torch.Tensor, name: str, *, offset: int) -> torch.Tensor:
    pieces = range(0, len(values), 10_000)
    return torch.cat([signs(name, offset + p, len(values[p : p + 10_000])) * values[p : p + 10_000] for p in pieces])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(7, 300, 11), (900, 6, 5), (2, 3, 4)])
def test_sketches_and_samples_of_slices_add_up_to_the_whole(shape: tuple[int, ...], axis: int) -> None:
    whole = torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(1)).float()
    cut = shape[axis] // 2
    parts = []
    for start, stop in ((0, cut), (cut, shape[axis])):
        where = [[start, stop] if dimension == axis else [0, size] for dimension, size in enumerate(shape)]
        parts.append((whole.narrow(axis, start, stop - start), where))
    total = sum(sketch(part, "n", where=where, global_shape=shape) for part, where in parts)
    assert torch.equal(total, sketch(whole, "n"))
    drawn = torch.cat([sample(part, "n", where=where, global_shape=shape) for part, where in parts])
    assert sorted(drawn.tolist()) == sorted(sample(whole, "n").tolist())


def test_a_slice_of_a_large_tensor_is_embedded_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.randint(-9, 10, (40, 30), generator=torch.Generator().manual_seed(2)).float()
    monkeypatch.setattr(module, "_COLUMN_BLOCK", 3 * 30)
    where = [[5, 37], [10, 22]]
    rest = whole.clone()
    rest[5:37, 10:22] = 0
    part = sketch(whole[5:37, 10:22], "n", where=where, global_shape=(40, 30))
    assert torch.equal(part + sketch(rest, "n"), sketch(whole, "n"))


def test_a_slice_that_does_not_fit_its_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"where: .* does not have the tensor's shape \(3, 2\)"):
        sketch(torch.zeros(3, 2), "n", where=[[0, 2], [0, 2]], global_shape=(4, 2))
    with pytest.raises(ValueError, match="without global_shape"):
        sketch(torch.zeros(3, 2), "n", where=[[0, 3], [0, 2]])


@pytest.mark.parametrize("kind", ["dense", "rank one", "one row", "one column"])
def test_norms_and_inner_products_come_out_within_five_standard_errors(kind: str) -> None:
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(300, 200, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.zeros(300, 200, dtype=torch.float64)
    if kind == "rank one":
        a = torch.outer(a[:, 0], a[0])
    elif kind in ("one row", "one column"):
        mask[(7, slice(None)) if kind == "one row" else (slice(None), 7)] = 1
        a = a * mask
    sketched_a, sketched_b = sketch(a, "n"), sketch(b, "n")
    standard_error = 1 / math.sqrt(2 * K)
    assert float(sketched_a.norm() / a.norm()) == pytest.approx(1, abs=5 * standard_error)
    assert float(sketched_a @ sketched_b) == pytest.approx(
        float((a * b).sum()), abs=5 * float(a.norm() * b.norm()) / math.sqrt(K)
    )
    assert torch.allclose(sketch(2 * a - 3 * b, "n"), 2 * sketched_a - 3 * sketched_b, rtol=0, atol=1e-10)


def test_signs_differ_between_names_and_are_balanced() -> None:
    one, other = signs("a.weight", 0, 100_000), signs("b.weight", 0, 100_000)
    assert abs(float(one.mean())) < 5 / math.sqrt(100_000)
    assert abs(float((one * other).mean())) < 5 / math.sqrt(100_000)


@pytest.mark.parametrize("shape", [(5, 3), (3, 70_000), (2, 3, 4), (4, 0), (0, 3), (1_000, 700)])
def test_row_norms_are_exact_in_float64(shape: tuple[int, ...]) -> None:
    t = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    expected = t.double().reshape(shape[0], math.prod(shape[1:])).square().sum(1).sqrt()
    torch.testing.assert_close(row_norms(t), expected, rtol=1e-13, atol=0)


def test_sketching_uses_no_randomness_and_no_defaults() -> None:
    before = torch.get_rng_state()
    try:
        torch.set_default_dtype(torch.bfloat16)
        total = sketch(torch.ones(10_000), "n")
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(total, sketch(torch.ones(10_000, dtype=torch.float32), "n"))
    assert torch.equal(torch.get_rng_state(), before)
