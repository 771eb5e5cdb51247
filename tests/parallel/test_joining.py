"""Ranks joined into one step: shards add up, replicas are counted once, and what does not fit names its rank."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plumbline_capture.sketch import row_norms, sketch

from checks.captures.capture import Capture, open_capture
from checks.errors import CaptureError
from checks.parallel.comparison import compare_tokens
from checks.parallel.joining import find_heads, join_ranks
from checks.parallel.parts import part_error, same
from checks.parallel.runs import Runs
from checks.parallel.tensors import NotJoined
from tests.parallel.making import Held, RankPart, cut, make_capture

W = "model.layers.0.mlp.up_proj.weight"


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_shards_along_any_dimension_are_the_whole_again(data: st.DataObject) -> None:
    shape = (data.draw(st.integers(2, 9)), data.draw(st.integers(2, 9)))
    whole = draw(*shape, seed=data.draw(st.integers(0, 99)))
    dimension = data.draw(st.integers(0, 1))
    at = data.draw(st.integers(0, shape[dimension]))
    spans = [(0, at), (at, shape[dimension])]
    wheres = [[span, (0, shape[1])] if dimension == 0 else [(0, shape[0]), span] for span in spans]
    with TemporaryDirectory() as directory:
        parts = [RankPart(rank, (cut(whole, W, where),)) for rank, where in enumerate(wheres)]
        joined = join_ranks(make_capture(Path(directory) / "c", parts), 1, processes=2, dp_size=2)
        tensor = joined.tensors("gradient")[W, None]
        assert torch.equal(tensor.read("full"), whole)
        torch.testing.assert_close(tensor.read("sketch"), sketch(whole, W), rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(tensor.read("row_norms"), row_norms(whole), rtol=1e-12, atol=0)
        assert tensor.norm == pytest.approx(float(whole.double().norm()), rel=1e-12)


def test_replicas_are_counted_once(tmp_path: Path) -> None:
    whole = draw(4, 3)
    capture = make_capture(tmp_path / "c", [RankPart(rank, (Held(W, whole),)) for rank in range(2)])
    tensor = join_ranks(capture, 1, processes=2, dp_size=2).tensors("gradient")[W, None]
    assert not tensor.sharded
    assert torch.equal(tensor.read("sketch"), sketch(whole, W))
    assert tensor.norm == pytest.approx(float(whole.double().norm()))
    assert [part.rank for part in tensor.parts] == [0, 1]


def test_partial_sums_are_added_up_and_their_row_norms_are_unknown(tmp_path: Path) -> None:
    one, other = draw(4, 3), draw(4, 3, seed=1)
    held = [Held(W, each, placement={"tp": "partial"}) for each in (one, other)]
    capture = make_capture(tmp_path / "c", [RankPart(rank, (each,)) for rank, each in enumerate(held)])
    tensor = join_ranks(capture, 1, processes=2, dp_size=1).tensors("gradient")[W, None]
    assert torch.equal(tensor.read("full"), one.double() + other.double())
    torch.testing.assert_close(tensor.read("sketch"), sketch(one.double() + other.double(), W))
    assert tensor.read("row_norms") is None
    assert tensor.norm == pytest.approx(float((one.double() + other.double()).norm()))


def test_partial_sums_that_were_sketched_leave_the_norm_open(tmp_path: Path) -> None:
    held = [Held(W, draw(4, 3, seed=s), placement={"tp": "partial"}, kept=("sketch",)) for s in range(2)]
    capture = make_capture(tmp_path / "c", [RankPart(rank, (each,)) for rank, each in enumerate(held)])
    tensor = join_ranks(capture, 1, processes=2, dp_size=1).tensors("gradient")[W, None]
    assert math.isnan(tensor.norm)
    assert tensor.read("full") is None


def test_a_two_dimensional_layout_has_shards_that_are_replicated(tmp_path: Path) -> None:
    whole = draw(4, 6)
    halves = [[(0, 4), (0, 3)], [(0, 4), (3, 6)]]
    parts = [RankPart(rank, (cut(whole, W, halves[rank % 2]),)) for rank in range(4)]
    joined = join_ranks(make_capture(tmp_path / "c", parts), 1, processes=4, dp_size=2)
    tensor = joined.tensors("gradient")[W, None]
    assert [[part.rank for part in held] for held in tensor.shards.values()] == [[0, 2], [1, 3]]
    assert torch.equal(tensor.read("full"), whole)
    assert joined.sharing == {0: 0, 1: 0, 2: 1, 3: 1}


def test_micro_batches_of_data_parallel_ranks_alternate(tmp_path: Path) -> None:
    ids = [[torch.tensor([[10 * rank + index]]) for index in range(2)] for rank in range(4)]
    parts = [
        RankPart(
            rank,
            tuple(Held("input_ids", each, kind="batch", micro_batch=index) for index, each in enumerate(ids[rank])),
            losses=(rank + 0.25, rank + 0.5),
        )
        for rank in range(4)
    ]
    joined = join_ranks(make_capture(tmp_path / "c", parts), 1, processes=4, dp_size=2)
    assert [int(batch.input_ids) for batch in joined.batches if batch.input_ids is not None] == [0, 20, 1, 21]
    assert [(batch.rank, batch.record.backward) for batch in joined.batches] == [
        (0, 0.25),
        (2, 2.25),
        (0, 0.5),
        (2, 2.5),
    ]
    assert joined.losses == {rank: (rank + 0.25, rank + 0.5) for rank in range(4)}


def test_a_missing_rank_is_named_with_what_the_recorder_said(tmp_path: Path) -> None:
    note = {"rank": 1, "step": None, "what": "step", "why": "its process ended before it had recorded one"}
    capture = make_capture(tmp_path / "c", [RankPart(0, (Held(W, draw(2, 2)),))], missing=[note])
    with pytest.raises(NotJoined) as caught:
        join_ranks(capture, 1, processes=2, dp_size=2)
    assert str(caught.value) == "rank 1 of 2 left no record: its process ended before it had recorded one"


def test_a_rank_too_many_is_named(tmp_path: Path) -> None:
    capture = make_capture(tmp_path / "c", [RankPart(rank, (Held(W, draw(2, 2)),)) for rank in range(3)])
    with pytest.raises(NotJoined, match="rank 2 is recorded in a run that was asked to have 2"):
        join_ranks(capture, 1, processes=2, dp_size=2)


def test_ranks_that_disagree_on_steps_are_not_joined(tmp_path: Path) -> None:
    whole = (Held(W, draw(2, 2)),)
    capture = make_capture(tmp_path / "c", [RankPart(0, whole, steps=(1, 3)), RankPart(1, whole, steps=(1,))])
    assert join_ranks(capture, 1, processes=2, dp_size=2).ranks == (0, 1)
    with pytest.raises(NotJoined, match=r"rank 1 recorded steps \[1\], and not step 3: the ranks disagree on steps"):
        join_ranks(capture, 3, processes=2, dp_size=2)


def test_ranks_that_take_different_numbers_of_micro_batches_are_not_joined(tmp_path: Path) -> None:
    whole = (Held(W, draw(2, 2)),)
    capture = make_capture(tmp_path / "c", [RankPart(0, whole), RankPart(1, whole, losses=(1.0, 2.0))])
    with pytest.raises(NotJoined, match="rank 1 took 2 micro-batches in step 1, rank 0 took 1"):
        join_ranks(capture, 1, processes=2, dp_size=2)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ([(2, 3), (0, 3)], r"cover 9 of 12 elements; they are on ranks 0, 1"),
        ([(1, 4), (0, 3)], r"on rank 0, \[0:2, 0:3\] and rank 1, \[1:4, 0:3\] overlap"),
        (None, r"cover 6 of 12 elements; rank 1 recorded none of it"),
    ],
)
def test_shards_that_do_not_tile_the_whole_are_named(
    second: list[tuple[int, int]] | None, said: str, tmp_path: Path
) -> None:
    whole = draw(4, 3)
    held = () if second is None else (cut(whole, W, second),)
    capture = make_capture(tmp_path / "c", [RankPart(0, (cut(whole, W, [(0, 2), (0, 3)]),)), RankPart(1, held)])
    with pytest.raises(NotJoined, match=said):
        join_ranks(capture, 1, processes=2, dp_size=2).tensors("gradient")


def test_shapes_that_differ_between_ranks_are_named(tmp_path: Path) -> None:
    parts = [RankPart(0, (Held(W, draw(4, 3)),)), RankPart(1, (Held(W, draw(2, 3)),))]
    with pytest.raises(NotJoined, match=rf"the gradient of {W} has shape \[2, 3\] on rank 1 and \[4, 3\] on rank 0"):
        join_ranks(make_capture(tmp_path / "c", parts), 1, processes=2, dp_size=2).tensors("gradient")


@pytest.mark.parametrize("kept", [("full", "sketch", "sample"), ("sketch", "sample")])
def test_a_part_is_measured_against_its_own_slice(kept: tuple[str, ...], tmp_path: Path) -> None:
    whole = draw(96, 96)  # more elements than are sampled
    changed = whole.clone()
    changed[48:] *= 1.5
    where = [[(0, 48), (0, 96)], [(48, 96), (0, 96)]]
    parts = [RankPart(rank, (cut(changed, W, where[rank], kept=kept),)) for rank in range(2)]
    joined = join_ranks(make_capture(tmp_path / "two", parts), 1, processes=2, dp_size=2)
    alone = make_capture(tmp_path / "one", [RankPart(0, (Held(W, whole, kept=kept),))])
    reference = alone.tensors(1, "gradient")[W]
    first, second = (part_error(part, reference) for part in joined.tensors("gradient")[W, None].parts)
    assert first == 0.0
    assert second == pytest.approx(0.5, rel=1e-6)


def test_a_part_without_a_sample_cannot_be_measured(tmp_path: Path) -> None:
    held = Held(W, draw(2, 2), kept=("sketch",))
    capture = make_capture(tmp_path / "c", [RankPart(0, (held,))])
    (part,) = join_ranks(capture, 1, processes=1, dp_size=1).tensors("gradient")[W, None].parts
    assert math.isnan(part_error(part, part.record))


def test_numbers_are_the_same_with_their_nans_and_not_with_another_dtype() -> None:
    one = torch.tensor([1.0, math.nan])
    assert same(one, one.clone())
    assert not same(one, torch.tensor([1.0, 2.0]))
    assert not same(one, one.double())
    assert not same(one, None)
    assert not same(torch.zeros(2), torch.zeros(3))


def test_a_rank_is_described_with_what_it_holds(tmp_path: Path) -> None:
    whole = draw(4, 3)
    parts = [RankPart(0, (cut(whole, W, [(0, 2), (0, 3)]), Held("b", draw(3)))), RankPart(1, ())]
    parts[1] = replace(parts[1], tensors=(cut(whole, W, [(2, 4), (0, 3)]), Held("b", draw(3))))
    tensors = join_ranks(make_capture(tmp_path / "c", parts), 1, processes=2, dp_size=2).tensors("gradient")
    assert [part.describe() for part in tensors[W, None].parts] == ["rank 0, [0:2, 0:3]", "rank 1, [2:4, 0:3]"]
    assert [part.describe() for part in tensors["b", None].parts] == ["rank 0", "rank 1"]


def test_a_file_that_is_gone_is_named_with_its_rank(tmp_path: Path) -> None:
    make_capture(tmp_path / "c", [RankPart(rank, (Held(W, draw(2, 2)),)) for rank in range(2)])
    (tmp_path / "c" / "step00001-rank00001.safetensors").unlink()
    with pytest.raises(CaptureError, match=r"step00001-rank00001\.safetensors"):
        open_capture(tmp_path / "c")


def test_a_norm_that_is_spread_over_ranks_is_read_as_unknown(tmp_path: Path) -> None:
    make_capture(tmp_path / "c", [RankPart(0, (Held(W, draw(2, 2)),), norm=2.0)])
    file = tmp_path / "c" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["ranks"][0]["steps"][0]["clips"][0] |= {"total_norm": None, "factor": None}
    file.write_text(json.dumps(manifest))
    (clip,) = open_capture(tmp_path / "c").step(1).clips
    assert math.isnan(clip.total_norm)
    assert math.isnan(clip.factor)


def with_mesh(capture: Capture, mesh: Sequence[Mapping[str, int]]) -> Capture:
    """The same capture, in which the ranks say where they are."""
    ranks = [{**rank, "mesh": dict(place)} for rank, place in zip(capture.manifest["ranks"], mesh, strict=True)]
    return replace(capture, manifest={**capture.manifest, "ranks": ranks})


def test_ranks_that_say_where_they_are_need_not_lie_next_to_each_other(tmp_path: Path) -> None:
    parts = [RankPart(rank, (Held(W, draw(2, 2)),)) for rank in range(4)]
    capture = make_capture(tmp_path / "c", parts)
    inner = with_mesh(capture, [{"dp": rank % 2, "pp": rank // 2} for rank in range(4)])
    joined = join_ranks(inner, 1, processes=4, dp_size=2)
    assert (joined.sharing, joined.dp_size, joined.divides_positions) == ({0: 0, 1: 1, 2: 0, 3: 1}, 2, False)
    assert find_heads(joined.sharing) == (0, 1)
    silent = with_mesh(capture, [{"dp": 0}, {}, {"dp": 1}, {}])
    assert join_ranks(silent, 1, processes=4, dp_size=2).sharing == {0: 0, 1: 0, 2: 1, 3: 1}


def losses_of(rank: int, losses: Sequence[float], targets: Sequence[int]) -> RankPart:
    kept = (
        Held("input_ids", torch.tensor([[5, 6, 7, 8]]), kind="batch", micro_batch=0),
        Held("token_loss", torch.tensor([losses], dtype=torch.float64), kind="token_loss", micro_batch=0),
        Held("target", torch.tensor([targets]), kind="target", micro_batch=0),
        Held(W, draw(2, 2)),
    )
    return RankPart(rank, kept)


def compare(tmp_path: Path, ranks: Sequence[RankPart], mesh: Sequence[Mapping[str, int]]) -> Mapping[int, float] | None:
    single = make_capture(tmp_path / "single", [losses_of(0, [1.0, 2.0, 3.0, 0.0], [6, 7, 8, -100])])
    divided = with_mesh(make_capture(tmp_path / "divided", ranks), mesh)
    one = join_ranks(single, 1, processes=1, dp_size=1)
    return compare_tokens(Runs(join_ranks(divided, 1, processes=2, dp_size=1), one))


def test_context_parallel_ranks_are_held_to_the_positions_that_they_compute(tmp_path: Path) -> None:
    ranks = [losses_of(0, [1.0, 0.0, 0.0, 0.0], [6, -100, -100, -100])]
    ranks += [losses_of(1, [0.0, 2.0, 3.5, 0.0], [-100, 7, 8, -100])]
    places = [{"dp": 0, "cp": 0}, {"dp": 0, "cp": 1}]
    assert compare(tmp_path, ranks, places) == {0: 0.0, 1: 0.5}


def test_a_position_that_no_context_parallel_rank_computes_is_off_by_its_loss(tmp_path: Path) -> None:
    ranks = [losses_of(0, [1.0, 0.0, 0.0, 0.0], [6, -100, -100, -100])]
    ranks += [losses_of(1, [0.0, 2.0, 0.0, 0.0], [-100, 7, -100, -100])]
    assert compare(tmp_path, ranks, [{"dp": 0, "cp": 0}, {"dp": 0, "cp": 1}]) == {0: 3.0, 1: 3.0}


def test_ranks_that_compute_every_position_are_held_to_every_position(tmp_path: Path) -> None:
    ranks = [
        losses_of(0, [1.0, 2.0, 3.0, 0.0], [6, 7, 8, -100]),
        losses_of(1, [1.0, 2.0, 0.0, 0.0], [6, 7, -100, -100]),
    ]
    assert compare(tmp_path, ranks, [{"dp": 0, "tp": 0}, {"dp": 0, "tp": 1}]) == {0: 0.0, 1: 3.0}


def test_a_stage_that_computes_no_loss_has_no_deviation(tmp_path: Path) -> None:
    first = RankPart(
        0, (Held("input_ids", torch.tensor([[5, 6, 7, 8]]), kind="batch", micro_batch=0), Held(W, draw(2, 2)))
    )
    ranks = [first, losses_of(1, [1.0, 2.0, 3.0, 0.0], [6, 7, 8, -100])]
    assert compare(tmp_path, ranks, [{"dp": 0, "pp": 0}, {"dp": 0, "pp": 1}]) == {1: 0.0}
