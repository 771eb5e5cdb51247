"""serving.quantised: int8 and float8 exports with every layout of scales, as they should be and with faults."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.captures.capture import open_capture
from checks.lifecycle import serving_quantised, transfer_sync
from checks.material import Material, RunOutcome
from checks.transfer.change import measure_change
from checks.transfer.dump import read_dump
from checks.transfer.quantised import HALF_SPACING, UnknownLayout, dequantise, find_quantised
from checks.transfer.states import read_states
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Recording
from tests.checks.test_transfer_sync import (
    AFTER,
    BEFORE,
    EMBED,
    GATE,
    UP,
    K,
    Q,
    V,
    Weights,
    material,
    merge,
    with_adapters,
    write_dump,
)

LINEAR = (Q, K, V, GATE, UP)
BLOCKS: dict[str, Any] = {
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 16], "ignore": ["lm_head"]}
}
STATED: dict[str, dict[str, Any]] = {
    "block": BLOCKS,
    "row": {"quantization_config": {"config_groups": {"group_0": {"weights": {"strategy": "channel"}}}}},
    "tensor": {"quantization_config": {"config_groups": {"group_0": {"weights": {"strategy": "tensor"}}}}},
}
FP8, INT8 = torch.float8_e4m3fn, torch.int8
LARGEST = {FP8: 448.0, INT8: 127.0, torch.float8_e5m2: 57344.0}


def quantise(weights: Weights, names: tuple[str, ...], dtype: torch.dtype, layout: str) -> Weights:
    """By the formats' definition: absolute maximum of the group over the largest number."""
    out = dict(weights)
    for name in names:
        weight = weights[name].float()
        if layout == "block":
            rows, columns = (-(-size // step) for size, step in zip(weight.shape, (32, 16), strict=True))
            scale = torch.zeros(rows, columns)
            for i in range(rows):
                for j in range(columns):
                    part = weight[i * 32 : (i + 1) * 32, j * 16 : (j + 1) * 16]
                    scale[i, j] = part.abs().max() / LARGEST[dtype]
            each = scale.repeat_interleave(32, 0)[: weight.shape[0]].repeat_interleave(16, 1)[:, : weight.shape[1]]
        else:
            peak = weight.abs().amax(1, keepdim=True) if layout == "row" else weight.abs().max()
            scale = each = peak / LARGEST[dtype]
        numbers = weight / each
        out[name] = numbers.round().to(dtype) if dtype is INT8 else numbers.to(dtype)
        out[f"{name}_scale_inv" if layout == "block" else f"{name}_scale"] = scale
    return out


def judge(
    tmp_path: Path, dumped: Weights, *, config: dict[str, Any] | None = None, step: int = 2, **details: Any
) -> Verdict:
    directory = tmp_path / "dump"
    write_dump(directory, dumped, {"step": step})
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    made = material(tmp_path, **details)
    return serving_quantised.judge(replace(made, spec=replace(made.spec, synced=directory)))


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [(INT8, "row"), (INT8, "tensor"), (FP8, "tensor"), (FP8, "row"), (FP8, "block"), (torch.float8_e5m2, "tensor")],
)
def test_each_format_and_layout_is_within_its_error(tmp_path: Path, dtype: torch.dtype, layout: str) -> None:
    for place, cast in enumerate((torch.float32, torch.bfloat16)):
        (tmp_path / str(place)).mkdir()
        weights = {name: weight.to(cast) for name, weight in AFTER.items()}
        verdict = judge(tmp_path / str(place), quantise(weights, LINEAR, dtype, layout), config=STATED[layout])
        assert verdict.status is Status.PASS, verdict.sentence
        named = f"{layout} 32 × 16" if layout == "block" else layout
        assert verdict.sentence.startswith(f"5 weights in {str(dtype).removeprefix('torch.')} by {named}")
        assert " are the trainer's after step 2 within " in verdict.sentence
        measurement = verdict.measurements[0]
        assert 0.3 < measurement.value <= 1.0  # the bound is that of the format, not a loose one


def test_a_bound_is_half_of_the_spacing() -> None:
    """Every float8 of e4m3: the middle between it and its neighbour is at the bound or within."""
    every = torch.arange(256, dtype=torch.uint8).view(FP8).double()
    numbers = torch.unique(every[every.isfinite() & (every >= 0)])
    middle = (numbers[1:] + numbers[:-1]) / 2.0
    error = middle - numbers[:-1]
    allowed = (HALF_SPACING[FP8] * numbers[1:]).clamp(min=2.0**-10)
    assert bool((error <= allowed).all())
    assert float((error / allowed).max()) == 1.0


def test_an_older_step_shows_where_it_moved_by_more_than_the_error(tmp_path: Path) -> None:
    before = {name: weight * 0.5 for name, weight in BEFORE.items()}
    verdict = judge(tmp_path, quantise(before, LINEAR, INT8, "row"), before=before)
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.STATE_TRANSFER)
    assert verdict.sentence.startswith("5 of 5 quantised weights are those of after step 1, not 2, first ")
    errors, allowed = (curve["y"] for curve in verdict.evidence["plots"][0]["curves"])
    assert len(errors) == len(allowed) == 5
    assert max(errors) == verdict.measurements[0].value > min(errors) > 1.0 == allowed[0]


def test_scales_of_another_tensor_are_named(tmp_path: Path) -> None:
    dumped = quantise(AFTER, LINEAR, INT8, "row")
    dumped[f"{UP}_scale"] = dumped[f"{GATE}_scale"]
    verdict = judge(tmp_path, dumped)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, UP)
    assert (
        f"1 of 5 quantised weights are not the trainer's after step 2: {UP} (int8 by row) is up to" in verdict.sentence
    )


def test_scales_along_the_other_axis_of_a_square_weight_are_seen(tmp_path: Path) -> None:
    dumped = quantise({**AFTER, Q: AFTER[Q] * torch.arange(1.0, 9.0)[None]}, (Q,), FP8, "row")
    wrong = AFTER[Q] * torch.arange(1.0, 9.0)[None]
    scale = wrong.abs().amax(0, keepdim=True) / 448.0
    dumped[Q], dumped[f"{Q}_scale"] = (wrong / scale).to(FP8), scale.reshape(-1, 1)
    verdict = judge(tmp_path, dumped, after={**AFTER, Q: wrong})
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, Q)


@pytest.mark.parametrize(
    ("layout", "stated", "said"),
    [
        ("tensor", "row", "its scales are one a tensor, quantization_config states one a row"),
        ("row", "tensor", "its scales are one a row, quantization_config states one a tensor"),
        ("tensor", "block", "its scales are one a tensor, quantization_config states one a block"),
    ],
)
def test_scales_of_another_axis_than_is_stated_are_named(tmp_path: Path, layout: str, stated: str, said: str) -> None:
    verdict = judge(tmp_path, quantise(AFTER, (UP,), FP8, layout), config=STATED[stated])
    assert (verdict.status, verdict.pattern, verdict.first_wrong) == (Status.FAIL, Pattern.PRECISION, UP)
    assert verdict.sentence == f"{UP} is quantised, and {said}"


def test_a_block_that_is_no_number_is_seen(tmp_path: Path) -> None:
    after = {**AFTER, GATE: torch.cat([AFTER[GATE][:32] * 0.0, AFTER[GATE][32:]])}
    dumped = quantise(after, (GATE,), FP8, "block")
    assert dumped[GATE].double().isnan().any()  # zero over zero
    verdict = judge(tmp_path, dumped, after=after, config=BLOCKS)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, GATE)
    assert "inf times as far off" in verdict.sentence


def test_a_scale_that_leaves_most_numbers_idle_is_named(tmp_path: Path) -> None:
    dumped = quantise(AFTER, (Q,), INT8, "tensor")
    for factor, wrong in ((2.0, None), (4.0, Q)):
        directory = tmp_path / str(factor)
        directory.mkdir()
        coarse = {**dumped, Q: (AFTER[Q] / (dumped[f"{Q}_scale"] * factor)).round().to(INT8)}
        verdict = judge(directory, {**coarse, f"{Q}_scale": dumped[f"{Q}_scale"] * factor})
        assert verdict.first_wrong == wrong
    assert verdict.sentence == f"the scale of {Q} reaches 4 times its largest weight: most of its numbers are idle"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (EMBED, "an output layer or embedding keeps its precision"),
        ("model.layers.1.mlp.gate.weight", "a router keeps its precision, or tokens go to other experts"),
        (Q, "quantization_config says that it is not"),
    ],
)
def test_layers_that_keep_their_precision_are_named(tmp_path: Path, name: str, said: str) -> None:
    after = {**AFTER, "model.layers.1.mlp.gate.weight": AFTER[K]}
    config = {"quantization_config": {"ignore": ["model.layers.0.self_attn.q_proj"]}}
    verdict = judge(tmp_path, quantise(after, (name, V), INT8, "row"), config=config, before=after, after=after)
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.PRECISION)
    assert verdict.sentence == f"{name} is quantised, and {said}"


def test_adapters_are_merged_before_they_are_quantised(tmp_path: Path) -> None:
    after = with_adapters(BEFORE, 1.1)
    spec = {"lora": True, "lora_r": 4, "lora_alpha": 8.0}
    for factor, status in ((2.0, Status.PASS), (4.0, Status.FAIL)):
        directory = tmp_path / str(factor)
        directory.mkdir()
        dumped = quantise(merge(after, factor), (Q,), INT8, "row")
        assert judge(directory, dumped, before=with_adapters(BEFORE, 1.0), after=after, spec=spec).status is status


def test_fused_matrices_are_cut_after_their_scales_were_applied(tmp_path: Path) -> None:
    fused = "model.layers.0.self_attn.qkv_proj.weight"
    joined = {fused: torch.cat([AFTER[Q], AFTER[K], AFTER[V]])}
    others = {name: weight for name, weight in AFTER.items() if name not in (Q, K, V)}
    verdict = judge(tmp_path, {**others, **quantise(joined, (fused,), FP8, "tensor")})
    assert verdict.status is Status.PASS
    assert {each[0] for each in verdict.evidence["worst"]} == {Q, K, V}


def test_scales_are_no_tensors_that_an_engine_holds_too_many(tmp_path: Path) -> None:
    dumped = quantise(AFTER, LINEAR, FP8, "tensor")
    dumped[Q.replace("weight", "input_scale")] = torch.ones(())
    write_dump(tmp_path / "dump", dumped, {"step": 2})
    made = material(tmp_path)
    verdict = transfer_sync.judge(replace(made, spec=replace(made.spec, synced=tmp_path / "dump")))
    assert verdict.status is Status.PASS
    assert verdict.evidence["extra"] == []
    assert verdict.evidence["quantised"] == 5


def test_what_is_not_quantised_is_skipped_and_what_cannot_be_read_is_left_open(tmp_path: Path) -> None:
    for name in ("none", "said", "shape", "dtype", "step"):
        (tmp_path / name).mkdir()
    assert judge(tmp_path / "none", AFTER).status is Status.SKIPPED
    said = judge(tmp_path / "said", AFTER, config=BLOCKS)
    assert said.sentence == "config.json states quantization_config (fp8), and no weight has a scale beside it"
    odd = {**quantise(AFTER, (UP,), INT8, "row"), f"{UP}_scale": torch.ones(3, 2)}
    shape = judge(tmp_path / "shape", odd)
    assert shape.status is Status.INCONCLUSIVE
    assert shape.sentence.startswith(f"{UP} of shape [80, 64] has scales of shape [3, 2]: neither one, nor one a row")
    dtype = judge(tmp_path / "dtype", {**AFTER, f"{UP}_scale": torch.ones(())})
    assert dtype.sentence == f"{UP} is stored in float32, whose numbers cannot be read here"
    step = judge(tmp_path / "step", quantise(AFTER, (UP,), INT8, "row"), step=9)
    assert step.sentence == "sync.json says step 9, and weights were recorded after steps 1, 2"


def test_a_zero_point_is_taken_away_before_the_scale(tmp_path: Path) -> None:
    numbers = torch.tensor([[3, 250], [7, 0]], dtype=torch.uint8)
    write_dump(
        tmp_path / "dump",
        {
            "a.weight": numbers,
            "a.weight_scale": torch.tensor([[0.5], [2.0]]),
            "a.weight_zero_point": torch.tensor([[3], [7]]),
        },
        {},
    )
    dump = read_dump(tmp_path / "dump")
    (each,) = find_quantised(dump)
    made = dequantise(dump, each)
    assert made.weight.tolist() == [[0.0, 123.5], [0.0, -14.0]]
    assert made.allowed.tolist() == [[0.25, 0.25], [1.0, 1.0]]
    assert made.reach is None
    with pytest.raises(UnknownLayout):
        list(find_quantised(replace(dump, shapes={**dump.shapes, "a.weight_scale": (2, 2)})))


def test_a_real_run_s_weights_in_float8_with_the_change_of_log_probabilities(
    recordings: dict[str, Recording], tmp_path: Path
) -> None:
    run = recordings["run"]
    capture = open_capture(run.capture)
    states = read_states(capture)
    assert states.steps == (0, 1, 2, 3)
    weights = {name: record.read("full") for name, record in states.records[3].items()}
    whole = {name: weight.bfloat16() for name, weight in weights.items() if weight is not None}
    linear = tuple(name for name in whole if name.endswith("_proj.weight"))
    write_dump(tmp_path / "dump", quantise(whole, linear, FP8, "row"), {"step": 3})
    spec = replace(run.spec, synced=tmp_path / "dump")
    verdict = serving_quantised.judge(Material(spec, RunOutcome("completed", 0, 1.0, None, capture, None)))
    assert verdict.status is Status.PASS, verdict.sentence
    change = verdict.evidence["log_prob_change"]
    assert 0.001 < change["mean"] < change["largest"] < 0.5
    assert "; log-probabilities move by " in verdict.sentence
    nothing = measure_change(spec, states.records[3], {linear[0]: weights[linear[0]]})  # type: ignore[dict-item]
    assert nothing == {"mean": 0.0, "largest": 0.0, "tokens": change["tokens"]}
    sampled = {**states.records[3], linear[0]: replace(states.records[3][linear[0]], representations={})}
    assert measure_change(spec, sampled, {}) is None
