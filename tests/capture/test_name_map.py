"""A name map: pieces of parameters become the checkpoint's tensors, and what it leaves out is told."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from plumbline_capture.mapped import canonical_names, keep_named, note_unfilled
from plumbline_capture.name_map import NameMap, Piece, read_name_map
from plumbline_capture.roots import Name
from plumbline_capture.settings import Settings
from plumbline_capture.sketch import sketch
from plumbline_capture.state import Recorder

SHAPES = {"q": (4, 3), "k": (2, 3), "experts": (2, 2, 3)}
FUSED = [  # two groups of a query head pair and a key head
    Piece("q", ((0, 2), (0, 3)), ((0, 2), (0, 3))),
    Piece("k", ((2, 3), (0, 3)), ((0, 1), (0, 3))),
    Piece("q", ((3, 5), (0, 3)), ((2, 4), (0, 3))),
    Piece("k", ((5, 6), (0, 3)), ((1, 2), (0, 3))),
]
PIECES = {
    "fused": FUSED,
    "expert.0": [Piece("experts", ((0, 2), (0, 3)), ((0, 1), (0, 2), (0, 3)))],
    "expert.1": [Piece("experts", ((0, 2), (0, 3)), ((1, 2), (0, 2), (0, 3)))],
}
PARAMETERS = {"fused": (6, 3), "expert.0": (2, 3), "expert.1": (2, 3)}


def recorder_with(names: NameMap | None) -> Recorder:
    recorder = Recorder(Settings(out="unused", steps=(1,)))
    recorder.names = names
    return recorder


def keep(recorder: Recorder, source: str, tensor: torch.Tensor, *, field: str | None = None) -> float:
    return keep_named(recorder, tensor, kind="gradient", name=Name(source, f"module.{source}"), field=field)


def full_of(recorder: Recorder, name: str) -> torch.Tensor:
    return recorder.now.tensors[f"gradient/{name}/full"]


def test_interleaved_rows_are_put_in_the_order_of_the_checkpoint() -> None:
    recorder = recorder_with(NameMap(PIECES, SHAPES))
    fused = torch.arange(18.0).view(6, 3)
    norm = keep(recorder, "fused", fused)
    assert torch.equal(full_of(recorder, "q"), fused[[0, 1, 3, 4]])
    assert torch.equal(full_of(recorder, "k"), fused[[2, 5]])
    assert norm == pytest.approx(float(fused.norm()), rel=1e-7)
    entry = recorder.now.entries["gradient/q"]
    assert (entry.global_shape, entry.slice, entry.placement) == ([4, 3], [[0, 4], [0, 3]], {})
    assert entry.source_name == "fused"


def test_a_tensor_of_several_parameters_is_kept_when_the_last_has_come() -> None:
    recorder = recorder_with(NameMap(PIECES, SHAPES))
    keep(recorder, "expert.1", torch.full((2, 3), 1.0))
    assert "gradient/experts" not in recorder.now.entries
    keep(recorder, "expert.0", torch.zeros(2, 3))
    assert full_of(recorder, "experts")[:, 0, 0].tolist() == [0.0, 1.0]
    assert recorder.now.entries["gradient/experts"].source_name == "expert.0, expert.1"
    assert recorder.now.fillings == {}


def test_what_adds_up_over_ranks_says_so() -> None:
    recorder = recorder_with(NameMap(PIECES, SHAPES))
    fused, name = torch.arange(18.0).view(6, 3), Name("fused", "fused")
    keep_named(recorder, fused, kind="gradient", name=name, partial=True)
    assert recorder.now.entries["gradient/q"].placement == {"ranks": "partial"}
    assert torch.equal(full_of(recorder, "k"), fused[[2, 5]])
    plain = recorder_with(None)
    keep_named(plain, fused, kind="gradient", name=name, partial=True)
    assert plain.now.entries["gradient/fused"].placement == {"ranks": "partial"}


def test_a_part_says_where_it_lies_and_its_sketch_adds_up() -> None:
    whole = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    parts = []
    for rank in range(2):
        rows = (2 * rank, 2 * rank + 2)
        recorder = recorder_with(NameMap({"half": [Piece("q", ((0, 2), (0, 3)), (rows, (0, 3)))]}, SHAPES))
        keep(recorder, "half", whole[slice(*rows)])
        entry = recorder.now.entries["gradient/q"]
        assert (entry.slice, entry.placement) == ([list(rows), [0, 3]], {"ranks": "shard"})
        parts.append(recorder.now.tensors["gradient/q/sketch"])
    expected = sketch(whole, "q", where=[[0, 4], [0, 3]], global_shape=(4, 3))
    assert torch.allclose(parts[0] + parts[1], expected, rtol=0.0, atol=1e-12)


def test_a_counter_of_steps_belongs_to_every_tensor_of_its_parameter() -> None:
    recorder = recorder_with(NameMap(PIECES, SHAPES))
    keep(recorder, "fused", torch.tensor(3.0), field="step")
    assert sorted(recorder.now.entries) == ["gradient/k/step", "gradient/q/step"]


def test_without_a_map_a_parameter_keeps_its_name() -> None:
    recorder = recorder_with(None)
    assert keep(recorder, "fused", torch.ones(2, 2)) == pytest.approx(2.0)
    assert recorder.now.entries["gradient/fused"].source_name == "module.fused"
    assert canonical_names(None, ["a", "b"]) == ["a", "b"]


def test_padding_is_kept_nowhere_and_is_no_part_of_the_norm() -> None:
    padded = {"head": [Piece("q", ((0, 4), (0, 3)), ((0, 4), (0, 3))), Piece("", ((4, 6), (0, 3)), ())]}
    names = NameMap(padded, SHAPES)
    assert names.find_gaps({"head": (6, 3)}) == {}
    recorder = recorder_with(names)
    value = torch.ones(6, 3)
    value[4:] = 100.0
    assert keep(recorder, "head", value) == pytest.approx(math.sqrt(12.0))
    assert list(recorder.now.entries) == ["gradient/q"]
    assert canonical_names(names, ["head"]) == ["q"]


def test_names_of_several_parameters_of_one_tensor_are_listed_once() -> None:
    assert canonical_names(NameMap(PIECES, SHAPES), list(PARAMETERS)) == ["q", "k", "experts"]


def test_pieces_that_never_came_are_told() -> None:
    recorder = recorder_with(NameMap(PIECES, SHAPES))
    keep(recorder, "expert.0", torch.zeros(2, 3))
    note_unfilled(recorder)
    (note,) = recorder.missing
    assert (note.what, note.why) == ("gradient experts", "6 of its 12 elements on this rank were seen")


@pytest.mark.parametrize(
    ("shapes", "source", "said"),
    [
        ({**PARAMETERS, "bias": (3,)}, "bias", "the name map does not state it"),
        ({name: shape for name, shape in PARAMETERS.items() if name != "fused"}, "fused", "the model does not have it"),
        ({**PARAMETERS, "fused": (7, 3)}, "fused", "states 18 of its 21 elements"),
        ({**PARAMETERS, "fused": (5, 3)}, "fused", "lies outside of its shape [5, 3]"),
    ],
)
def test_a_map_that_does_not_fit_the_model_says_where(
    shapes: dict[str, tuple[int, ...]], source: str, said: str
) -> None:
    assert NameMap(PIECES, SHAPES).find_gaps(PARAMETERS) == {}
    gaps = NameMap(PIECES, SHAPES).find_gaps(shapes)
    assert list(gaps) == [source]
    assert said in gaps[source]


def test_an_element_that_is_stated_twice_is_a_gap() -> None:
    twice = {"a": [Piece("q", ((0, 2), (0, 3)), ((0, 2), (0, 3))), Piece("q", ((1, 3), (0, 3)), ((2, 4), (0, 3)))]}
    assert "or some twice" in NameMap(twice, SHAPES).find_gaps({"a": (4, 3)})["a"]


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([Piece("other", ((0, 1),), ((0, 1),))], "states no shape of other"),
        ([Piece("q", ((0, 1), (0, 3)), ((0, 2), (0, 3)))], "is no box of q"),
        ([Piece("q", ((0, 1), (0, 3)), ((4, 5), (0, 3)))], "is no box of q"),
        ([Piece("q", ((0, 1), (0, 3)), ((0, 1), (0, 3))), Piece("q", ((1, 2), (0, 3)), ((2, 3), (0, 3)))], "hold of q"),
    ],
)
def test_a_map_that_contradicts_itself_is_refused(pieces: list[Piece], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        NameMap({"a": pieces}, SHAPES)


def write(path: Path, **changes: Any) -> Path:
    raw = {"a": [{"name": "q", "source": [[0, 4], [0, 3]], "target": [[0, 4], [0, 3]]}]}
    content = {"version": 1, "tensors": {"q": [4, 3]}, "ranks": [raw, {}], **changes}
    path.write_text(json.dumps(content))
    return path


def test_each_rank_reads_its_own_pieces(tmp_path: Path) -> None:
    file = write(tmp_path / "names.json")
    assert read_name_map(file, rank=0).names_of("a") == ("q",)
    assert read_name_map(file, rank=1).names_of("a") == ("a",)
    with pytest.raises(ValueError, match="states nothing for rank 2"):
        read_name_map(file, rank=2)


@pytest.mark.parametrize("changes", [{"version": 2}, {"ranks": 3}, {"tensors": None}])
def test_a_file_that_is_no_map_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"version 2|is no name map"):
        read_name_map(write(tmp_path / "names.json", **changes), rank=0)
