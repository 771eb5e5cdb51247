"""Two captures side by side."""

from __future__ import annotations

import math
import tarfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.captures.capture import Capture, open_capture
from checks.captures.compare import CHUNK_ELEMENTS, KINDS, TensorComparison, compare_captures, stream_moments
from checks.captures.files import StoredTensor
from checks.errors import CaptureError
from tests.checks.conftest import Editor, Recording
from tests.parallel.making import Held, RankPart, cut, make_capture
from tests.recorded.packing import ROOT

NORM = "model.norm.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def capture(recordings: dict[str, Recording]) -> Capture:
    return open_capture(recordings["merged"].capture)


def row_of(rows: tuple[TensorComparison, ...], kind: str, name: str) -> TensorComparison:
    (found,) = (row for row in rows if (row.kind, row.name) == (kind, name))
    return found


def test_a_capture_equals_itself(capture: Capture, edit: Editor) -> None:
    seen: list[str] = []
    found = compare_captures(capture, edit(capture).save(), on_progress=seen.append)
    assert found.equal
    assert (found.differing, found.first, found.only_a, found.only_b, found.settings) == ((), None, (), (), ())
    assert len(found.rows) == len(seen) == 6 + 25 * 7
    assert seen[0].startswith("step 1, batch ")
    row = row_of(found.rows, "gradient", QUERY)
    assert (row.step, row.field, row.micro_batch, row.representation) == (1, None, None, "full")
    assert (row.relative, row.scale) == (0.0, 1.0)
    assert row.cosine == pytest.approx(1.0)


def test_rows_come_in_the_order_in_which_a_step_produces_them(capture: Capture, edit: Editor) -> None:
    editing = edit(capture)
    for kind in ("parameter_after", "gradient", "parameter_before"):
        editing.change(kind, NORM, lambda tensor: 2.0 * tensor)
    found = compare_captures(editing.save(), capture)
    order = [KINDS.index(row.kind) for row in found.rows]
    assert order == sorted(order)
    assert [row.kind for row in found.differing] == ["parameter_before", "gradient", "parameter_after"]
    assert found.first is not None
    assert (found.first.kind, found.first.name) == ("parameter_before", NORM)
    assert not found.equal


def test_a_difference_is_measured_relative_to_the_second_capture(capture: Capture, edit: Editor) -> None:
    def change(gradient: torch.Tensor) -> torch.Tensor:
        return 3.0 * gradient.double()

    row = row_of(
        compare_captures(edit(capture).change("gradient", QUERY, change).save(), capture).rows, "gradient", QUERY
    )
    assert [row.relative, row.scale, row.cosine] == pytest.approx([2.0, 3.0, 1.0])


def test_sketches_are_compared_where_one_side_has_no_more(capture: Capture, edit: Editor) -> None:
    half = edit(capture).change("gradient", QUERY, lambda gradient: 0.5 * gradient.double()).keep_sketches().save()
    found = compare_captures(half, capture)
    row = row_of(found.rows, "gradient", QUERY)
    assert row.representation == "sketch"
    assert [row.relative, row.scale] == pytest.approx([0.5, 0.5])
    other = row_of(compare_captures(capture, half).rows, "gradient", QUERY)
    assert other.representation == "sketch"
    assert other.scale == pytest.approx(2.0)
    moments = [r for r in found.rows if r.kind == "optimizer_state"]
    assert {r.representation for r in moments} == {"sample"}
    assert [r.name for r in found.differing] == [QUERY]


def test_tensors_that_one_side_lacks_are_listed_and_not_equal(capture: Capture, edit: Editor) -> None:
    less = edit(capture).drop("gradient", NORM).drop("optimizer_state", NORM, field="exp_avg")
    less.drop("batch", "labels", micro_batch=0)
    found = compare_captures(capture, less.save())
    assert found.only_a == (
        "step 1, batch labels of micro-batch 0",
        f"step 1, gradient {NORM}",
        f"step 1, optimizer_state {NORM} (exp_avg)",
    )
    assert (found.only_b, found.differing, found.equal) == ((), (), False)
    other = compare_captures(less_again(capture, edit), capture)
    assert (other.only_a, other.only_b, other.equal) == ((), (f"step 1, gradient {NORM}",), False)


def less_again(capture: Capture, edit: Editor) -> Capture:
    return edit(capture).drop("gradient", NORM).save()


def test_tensors_that_cannot_be_compared_say_why(capture: Capture, edit: Editor) -> None:
    editing = edit(capture).change("gradient", NORM, lambda gradient: gradient[:-1])
    found = compare_captures(editing.save(), capture)
    row = row_of(found.rows, "gradient", NORM)
    assert row.reason == "shapes differ: (63,) and (64,)"
    assert math.isnan(row.relative)
    assert math.isnan(row.scale)
    assert math.isnan(row.cosine)
    assert (found.equal, found.differing) == (False, ())
    bare = edit(capture)
    bare.entry("gradient", NORM)["representations"].clear()
    row = row_of(compare_captures(bare.save(), capture).rows, "gradient", NORM)
    assert (row.reason, row.representation) == ("no representation in common", None)


def test_samples_of_another_length_are_not_compared(capture: Capture, edit: Editor) -> None:
    bare = edit(capture).keep_sketches().save()
    shorter = edit(bare).put_sample("optimizer_state", NORM, torch.zeros(63), field="exp_avg").save()
    rows = compare_captures(bare, shorter).rows
    (row,) = (r for r in rows if (r.kind, r.name, r.field) == ("optimizer_state", NORM, "exp_avg"))
    assert row.reason == "no representation in common"


def test_captures_that_hold_no_tensor_are_not_equal(capture: Capture, edit: Editor) -> None:
    editing = edit(capture)
    editing.manifest["tensors"].clear()
    empty = editing.save()
    found = compare_captures(empty, empty)
    assert (found.rows, found.only_a, found.only_b, found.settings) == ((), (), (), ())
    assert not found.equal


def test_a_value_that_is_not_a_number_is_a_difference(capture: Capture, edit: Editor) -> None:
    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(64) == 3, math.nan, gradient)

    found = compare_captures(edit(capture).change("gradient", NORM, spoil).save(), capture)
    assert not found.equal
    assert [row.name for row in found.differing] == [NORM]


def test_zero_tensors_have_no_scale(capture: Capture, edit: Editor) -> None:
    zero = edit(capture).change("gradient", NORM, torch.zeros_like).save()
    row = row_of(compare_captures(capture, zero).rows, "gradient", NORM)
    assert row.relative == math.inf
    assert math.isnan(row.scale)
    assert math.isnan(row.cosine)
    back = row_of(compare_captures(zero, capture).rows, "gradient", NORM)
    assert (back.relative, back.scale) == (1.0, 0.0)
    assert math.isnan(back.cosine)
    both = row_of(compare_captures(zero, zero).rows, "gradient", NORM)
    assert both.relative == 0.0


def test_settings_that_differ_are_listed(capture: Capture, edit: Editor) -> None:
    editing = edit(capture)
    record = editing.step()
    record["optimizer"]["class"] = "torch.optim.sgd.SGD"
    record["optimizer"]["groups"][1]["settings"]["lr"] = 0.5
    del record["optimizer"]["groups"][0]["settings"]["eps"]
    record["clips"].clear()
    record["scalars"]["model.norm"]["variance_epsilon"] = 1e-5
    record["scalars"][""]["config"]["rms_norm_eps"] = 1e-5
    record["scalars"][""]["config"]["_name_or_path"] = "elsewhere"
    record["scalars"][""]["name_or_path"] = "elsewhere"
    record["scalars"]["model"]["only_here"] = 1
    record["scalars"]["model.another"] = {"eps": 1.0}
    record["optimizer"]["groups"].append({"settings": {"lr": 2.0}, "parameters": []})
    record["micro_batches"].append({"index": 1})
    found = compare_captures(editing.save(), capture)
    assert found.settings == (
        ("step 1: optimizer", "torch.optim.sgd.SGD", "torch.optim.adamw.AdamW"),
        ("step 1: micro-batches", 2, 1),
        ("step 1: clip max_norm", [], [1.0]),
        ("step 1: eps of group 0", None, 1e-8),
        ("step 1: lr of group 1", 0.5, 1e-3),
        ("step 1: .config.rms_norm_eps", 1e-5, 1e-6),
        ("step 1: model.norm.variance_epsilon", 1e-5, 1e-6),
    )


def test_captures_without_a_common_step_are_refused(recordings: dict[str, Recording], edit: Editor) -> None:
    run, merged = open_capture(recordings["run"].capture), open_capture(recordings["merged"].capture)
    late = edit(run).drop_step(1).save()
    with pytest.raises(CaptureError) as caught:
        compare_captures(late, merged)
    assert caught.value.file == str(merged.path)
    assert caught.value.found == f"holds steps [1], {late.path} holds [3]"
    assert caught.value.remedy == "record both with the same --steps"
    found = compare_captures(run, merged)
    assert {row.step for row in found.rows} == {1}
    assert found.only_a[-1] == "step 3, all of it"
    assert compare_captures(merged, run).only_b[-1] == "step 3, all of it"


def test_a_step_that_one_capture_lacks_is_a_difference_and_no_step_at_all_has_its_reason(
    recordings: dict[str, Recording], edit: Editor
) -> None:
    run = open_capture(recordings["run"].capture)
    short = edit(run).drop_step(3).save()
    assert (compare_captures(run, short).only_a, compare_captures(run, short).equal) == (("step 3, all of it",), False)
    editing = edit(run).drop_step(3).drop_step(1)
    editing.manifest["missing"] = [{"rank": 0, "step": None, "what": "step", "why": "4 optimizer steps were taken"}]
    with pytest.raises(CaptureError, match=r"holds no recorded step \(4 optimizer steps were taken\); record it again"):
        compare_captures(run, editing.save())


WEIGHT = torch.arange(32.0).reshape(8, 4)


def make_ranks(directory: Path, second: torch.Tensor = WEIGHT, *, steps: tuple[int, ...] = (1, 3)) -> Capture:
    """Two ranks, each with its half of a weight's gradient and all of a norm's."""
    return make_capture(directory, [make_rank(0), make_rank(1, second, steps=steps)])


def make_rank(rank: int, weight: torch.Tensor = WEIGHT, *, steps: tuple[int, ...] = (1, 3)) -> RankPart:
    half = cut(weight, "proj.weight", [(4 * rank, 4 * rank + 4), (0, 4)])
    return RankPart(rank, (half, Held("norm.weight", torch.ones(4))), steps=steps)


def test_every_rank_is_compared_with_the_same_of_the_other(tmp_path: Path) -> None:
    a = make_ranks(tmp_path / "a")
    found = compare_captures(a, make_ranks(tmp_path / "b"))
    assert (found.equal, found.ranks) == (True, 2)
    assert [(row.step, row.rank) for row in found.rows] == [
        (step, rank) for step in (1, 3) for rank in (0, 1) for _ in range(2)
    ]
    zeroed = compare_captures(a, make_ranks(tmp_path / "c", torch.zeros_like(WEIGHT)))
    assert not zeroed.equal
    assert [(row.step, row.rank, row.name) for row in zeroed.differing] == [
        (1, 1, "proj.weight"),
        (3, 1, "proj.weight"),
    ]


def test_a_zeroed_rank_of_a_recorded_run_of_two_is_a_difference(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with tarfile.open(ROOT / "automodel" / "tp2_default_plan.tar.xz") as archive:
            archive.extractall(tmp_path / name, filter="data")
    a, b = (open_capture(tmp_path / name / "run") for name in ("a", "b"))
    found = compare_captures(a, b)
    assert (found.equal, {row.rank for row in found.rows}) == (True, {0, 1})
    held = {record.file for record in b.tensors(1, "gradient", rank=1)[NORM].representations.values()}
    (file,) = held
    content = file.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    file.write_bytes(content[:header] + bytes(len(content) - header))
    zeroed = compare_captures(a, open_capture(b.path))
    assert not zeroed.equal
    assert {row.rank for row in zeroed.differing} == {1}
    assert {row.kind for row in zeroed.differing} >= {"batch", "token_loss", "gradient"}


def test_ranks_and_their_steps_that_one_side_lacks_are_listed(tmp_path: Path) -> None:
    a = make_ranks(tmp_path / "a")
    alone = make_capture(tmp_path / "alone", [make_rank(0)])
    found = compare_captures(a, alone)
    assert (found.only_a, found.only_b, found.equal) == (("rank 1, all of it",), (), False)
    assert compare_captures(alone, a).only_b == ("rank 1, all of it",)
    short = compare_captures(a, make_ranks(tmp_path / "short", steps=(1,)))
    assert (short.only_a, short.equal) == (("step 3 of rank 1, all of it",), False)
    less = make_capture(tmp_path / "less", [make_rank(0), RankPart(1, make_rank(1).tensors[:1], steps=(1, 3))])
    lacking = compare_captures(a, less)
    assert lacking.only_a == tuple(f"step {step} of rank 1, gradient norm.weight" for step in (1, 3))
    other = make_capture(tmp_path / "other", [make_rank(1)])
    with pytest.raises(CaptureError, match=r"holds steps \[1, 3\] of ranks \[1\], .*alone holds \[1, 3\]; record"):
        compare_captures(alone, other)


def test_another_part_of_a_tensor_is_not_comparable_whatever_its_values(tmp_path: Path) -> None:
    same = torch.ones(8, 4)
    a = make_capture(tmp_path / "a", [RankPart(0, (cut(same, "proj.weight", [(0, 4), (0, 4)]),))])
    b = make_capture(tmp_path / "b", [RankPart(0, (cut(same, "proj.weight", [(4, 8), (0, 4)]),))])
    (row,) = compare_captures(a, b).rows
    assert row.reason == "slices differ: ((0, 4), (0, 4)) and ((4, 8), (0, 4))"
    whole = make_capture(tmp_path / "whole", [RankPart(0, (Held("proj.weight", same),))])
    assert compare_captures(a, whole).equal is False


def test_settings_of_a_rank_that_differ_are_told_with_it(tmp_path: Path) -> None:
    a, manifest = make_ranks(tmp_path / "a"), dict(make_ranks(tmp_path / "b").manifest)
    for step in manifest["ranks"][1]["steps"]:
        step["optimizer"]["class"] = "AdamW"
    found = compare_captures(a, Capture(tmp_path / "b", manifest))
    assert found.settings == (
        ("step 1 of rank 1: optimizer", "SGD", "AdamW"),
        ("step 3 of rank 1: optimizer", "SGD", "AdamW"),
    )
    assert (found.differing, found.equal) == ((), False)


def test_another_ending_and_what_one_side_misses_are_not_equal(tmp_path: Path) -> None:
    note = {"rank": 1, "step": 5, "what": "step", "why": "the command ended before this step was recorded"}
    a = make_ranks(tmp_path / "a")
    ranks = [make_rank(0), make_rank(1)]
    noted, again = (make_capture(tmp_path / name, ranks, missing=[note]) for name in ("noted", "again"))
    found = compare_captures(a, noted)
    assert ([each.why for each in found.missing_b], found.missing_a, found.equal) == ([note["why"]], (), False)
    assert compare_captures(noted, again).equal
    found = compare_captures(a, Capture(a.path, {**a.manifest, "exit_code": 1}))
    assert (found.exit_codes, found.equal) == ((None, 1), False)


def test_tensors_of_every_kind_are_compared(tmp_path: Path) -> None:
    kinds = ("loss_input", "rollout", "router", "probe_after", "checkpoint", "export", "of a later recorder")

    def make(name: str, value: float) -> Capture:
        tensors = tuple(Held("x", torch.full((4,), value), kind=kind) for kind in kinds)
        return make_capture(tmp_path / name, [RankPart(0, tensors)])

    found = compare_captures(make("a", 1.0), make("b", 2.0))
    assert {row.kind for row in found.differing} == set(kinds)
    assert [row.kind for row in found.rows][-2:] == ["checkpoint", "export"]
    assert compare_captures(make("c", 1.0), make("d", 1.0)).equal


@settings(deadline=None, max_examples=15)
@given(st.integers(min_value=50, max_value=5000))
def test_sums_do_not_depend_on_the_chunks(recordings: dict[str, Recording], elements: int) -> None:
    capture = open_capture(recordings["merged"].capture)
    gradients = capture.tensors(1, "gradient")
    a = gradients[QUERY].representations["full"]
    b = gradients["model.layers.1.self_attn.q_proj.weight"].representations["full"]
    x, y = (gradients[n].read("full") for n in (QUERY, "model.layers.1.self_attn.q_proj.weight"))
    assert x is not None
    assert y is not None
    x64, y64 = x.double().flatten(), y.double().flatten()
    found = stream_moments(a, b, elements=elements)
    assert found.error == pytest.approx(float((x64 - y64).square().sum()), rel=1e-12)
    assert found.dot == pytest.approx(float(x64 @ y64), rel=1e-9)
    assert found.a == pytest.approx(float(x64 @ x64), rel=1e-12)
    assert found.b == pytest.approx(float(y64 @ y64), rel=1e-12)


def test_the_memory_of_a_comparison_is_a_few_megabytes_whatever_the_tensors(tmp_path: Path) -> None:
    assert 4 * 8 * CHUNK_ELEMENTS <= 32 << 20
    file = tmp_path / "cut.safetensors"
    file.write_bytes(bytes(64))
    huge = StoredTensor(file, "a", torch.float32, (1 << 43,), 0, 1 << 45)  # a buffer for it could not be made
    with pytest.raises(CaptureError, match="ended inside tensor 'a'"):
        stream_moments(huge, huge)
