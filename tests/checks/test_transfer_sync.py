"""Weights of a rollout engine against the trainer's: same, stale, damaged, incomplete, fused, tied and adapted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plumbline_capture.sketch import sample_positions
from safetensors.torch import save_file

from checks.errors import BadRequest
from checks.lifecycle import transfer_sync
from checks.material import Material, RunOutcome
from checks.spec import RunSpec
from checks.transfer.dump import read_dump, resolve_dump
from checks.transfer.merging import adapted
from checks.transfer.names import match_dump
from checks.transfer.states import read_states
from checks.verdict import Pattern, Status, Verdict
from tests.parallel.making import Held, RankPart, make_capture
from workers.planner import make_plan
from workers.settings import parse_settings

Weights = dict[str, torch.Tensor]
Q, K, V = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv")
GATE, UP = (f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up"))
EXPERTS, DOWN = (f"model.layers.1.mlp.experts.{part}" for part in ("gate_up_proj", "down_proj"))
EMBED, NORM = "model.embed_tokens.weight", "model.norm.weight"
SHAPES = {
    EMBED: (40, 8), Q: (8, 8), K: (4, 8), V: (4, 8), GATE: (80, 64), UP: (80, 64),
    EXPERTS: (2, 6, 8), DOWN: (2, 8, 3), NORM: (8,),
}  # fmt: skip
SMALL = ("full", "sketch", "sample", "row_norms")


def draw(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


BEFORE: Weights = {name: draw(place, shape) for place, (name, shape) in enumerate(SHAPES.items())}
AFTER: Weights = {name: weight * 1.02 for name, weight in BEFORE.items()}
"""the trainer's after steps 1 and 2"""


def material(tmp_path: Path, before: Weights = BEFORE, after: Weights = AFTER, **details: Any) -> Material:
    """A run of two steps of which the second was recorded; large tensors by their sample."""
    held = [
        Held(name, weight, kind=kind, kept=SMALL if weight.numel() <= 4096 else SMALL[1:])
        for kind, weights in (("parameter_before", before), ("parameter_after", after))
        for name, weight in weights.items()
    ]
    capture = make_capture(tmp_path / "capture", [RankPart(0, tuple(held), steps=(2,))])
    spec = RunSpec("transformers", Path("m"), Path("d"), steps=2, **details.pop("spec", {}))
    return Material(spec, RunOutcome("completed", 0, 1.0, None, capture, None), **details)


def judge(tmp_path: Path, dumped: Weights, *, stated: dict[str, Any] | None = None, **details: Any) -> Verdict:
    directory = tmp_path / "dump"
    write_dump(directory, dumped, {"step": 2, "engine": "vllm", "version": "0.11"} if stated is None else stated)
    made = material(tmp_path, **details)
    return transfer_sync.judge(replace(made, spec=replace(made.spec, synced=directory)))


def write_dump(directory: Path, weights: Weights, stated: dict[str, Any]) -> None:
    directory.mkdir()
    save_file({name: weight.contiguous().clone() for name, weight in weights.items()}, str(directory / "m.safetensors"))
    if stated:
        (directory / "sync.json").write_text(json.dumps(stated))


def cast(weights: Weights, dtype: torch.dtype = torch.bfloat16) -> Weights:
    return {name: weight.to(dtype, copy=True) for name, weight in weights.items()}


def fuse(weights: Weights) -> Weights:
    """As vLLM and SGLang hold them, with rows added to the vocabulary."""
    w = dict(weights)
    return {
        "model.layers.0.self_attn.qkv_proj.weight": torch.cat([w.pop(Q), w.pop(K), w.pop(V)]),
        "model.layers.0.mlp.gate_up_proj.weight": torch.cat([w.pop(GATE), w.pop(UP)]),
        "model.layers.1.mlp.experts.w13_weight": w.pop(EXPERTS),
        "model.layers.1.mlp.experts.w2_weight": w.pop(DOWN),
        EMBED: torch.nn.functional.pad(w.pop(EMBED), (0, 0, 0, 24)),
        "model.layers.0.self_attn.rotary_emb.cos_sin_cache": torch.zeros(4, 4),
        **w,
    }


def test_weights_of_the_step_that_is_stated_pass_in_any_dtype_and_under_fused_names(tmp_path: Path) -> None:
    for place, dumped in enumerate((AFTER, cast(AFTER), fuse(cast(AFTER)))):
        (tmp_path / str(place)).mkdir()
        verdict = judge(tmp_path / str(place), dumped)
        assert verdict.status is Status.PASS, verdict.sentence
        dtype = "float32" if place == 0 else "bfloat16"
        assert verdict.sentence == (
            "vllm 0.11 holds the trainer's weights after step 2: 9 tensors, 9 of which had moved since step 1, bit by "
            f"bit in {dtype}"
        )
        assert verdict.evidence["padded"] == ([EMBED] if place == 2 else [])


def test_experts_that_are_saved_one_by_one_are_stacked(tmp_path: Path) -> None:
    dumped = {name: weight for name, weight in AFTER.items() if name not in (EXPERTS, DOWN)}
    for expert in range(2):
        path = f"model.layers.1.mlp.experts.{expert}"
        dumped[f"{path}.gate_proj.weight"], dumped[f"{path}.up_proj.weight"] = AFTER[EXPERTS][expert].chunk(2)
        dumped[f"{path}.down_proj.weight"] = AFTER[DOWN][expert]
    assert judge(tmp_path, dumped).status is Status.PASS


def test_weights_of_an_earlier_step_are_stale_by_as_many(tmp_path: Path) -> None:
    verdict = judge(tmp_path, fuse(cast(BEFORE)))
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.STATE_TRANSFER)
    assert verdict.sentence == (
        "vllm 0.11 holds weights of after step 1, not 2: stale by 1 step, in 9 of 9 tensors, first " + EMBED
    )
    assert verdict.evidence["wrong"][0]["matches_steps"] == [1]
    alike, compared = verdict.evidence["plots"][0]["curves"]
    assert (alike["x"], alike["y"], compared["y"]) == ([1.0, 2.0], [9.0, 0.0], [9.0, 9.0])


def test_weights_of_a_later_step_than_stated_are_told(tmp_path: Path) -> None:
    verdict = judge(tmp_path, AFTER, stated={"step": 1})
    assert "the engine holds weights of after step 2, not 1: ahead by 1 step, in 9 of 9 tensors" in verdict.sentence


def test_one_tensor_that_was_left_behind_is_named_with_its_step(tmp_path: Path) -> None:
    verdict = judge(tmp_path, {**AFTER, NORM: BEFORE[NORM], K: AFTER[K] * 1.5})
    assert verdict.first_wrong == K
    assert verdict.sentence == (
        f"2 of 9 tensors that vllm 0.11 holds are not the trainer's after step 2: {K} differs by 0.5 of its norm, in "
        f"32 of 32 numbers; {NORM} is as after step 1"
    )


def test_one_part_of_a_fused_matrix_is_named(tmp_path: Path) -> None:
    verdict = judge(tmp_path, fuse(cast({**AFTER, V: BEFORE[V]})))
    assert verdict.first_wrong == V
    assert "stale by 1 step, in 1 of 9 tensors" in verdict.sentence
    assert verdict.evidence["plots"][0]["curves"][0]["y"] == [1.0, 8.0]  # a mixture of two steps


def test_the_smallest_change_of_a_cast_weight_is_seen(tmp_path: Path) -> None:
    dumped = cast(AFTER)
    dumped[Q].view(-1).view(torch.int16)[5] += 1
    verdict = judge(tmp_path, dumped)
    assert verdict.first_wrong == Q
    assert "in 1 of 64 numbers" in verdict.sentence


def test_weights_that_were_rounded_twice_are_not_the_cast(tmp_path: Path) -> None:
    assert judge(tmp_path, {**AFTER, UP: AFTER[UP].bfloat16().float()}).first_wrong == UP


def test_a_large_change_outside_the_sample_shows_in_its_row(tmp_path: Path) -> None:
    drawn = set(sample_positions(UP, 80 * 64).tolist())
    place = next(position for position in range(80 * 64) if position not in drawn)
    for dtype, change, seen in (
        (torch.float32, 1e-3, True),
        (torch.bfloat16, 1.0, True),
        (torch.bfloat16, 1e-4, False),
    ):
        dumped = cast(AFTER, dtype)
        dumped[UP].view(-1)[place] += change
        directory = tmp_path / f"{dtype}-{change}"
        directory.mkdir()
        assert (judge(directory, dumped).first_wrong == UP) is seen


def test_tensors_that_are_missing_and_extra_ones_are_told(tmp_path: Path) -> None:
    less = {name: weight for name, weight in AFTER.items() if name != NORM}
    for name in ("less", "more", "both"):
        (tmp_path / name).mkdir()
    lost = judge(tmp_path / "less", less)
    assert (lost.status, lost.sentence, lost.first_wrong) == (Status.FAIL, f"vllm 0.11 does not hold {NORM}", NORM)
    more = judge(tmp_path / "more", {**AFTER, "model.other": AFTER[NORM]})
    assert more.sentence == "vllm 0.11 holds model.other, which the trainer has not"
    both = judge(tmp_path / "both", {**less, "model.ln.weight": AFTER[NORM]})
    assert both.status is Status.INCONCLUSIVE
    assert both.sentence == (
        f"{NORM} has no counterpart in the dump, and model.ln.weight has none in the trainer; write the dump under the "
        "names of the Hugging Face checkpoint"
    )


def test_a_tied_head_must_be_the_embedding(tmp_path: Path) -> None:
    tied: dict[str, Any] = {"asked_config": {"tie_word_embeddings": True}}
    for name in ("same", "stale", "alone"):
        (tmp_path / name).mkdir()
    assert judge(tmp_path / "same", {**AFTER, "lm_head.weight": AFTER[EMBED]}, **tied).status is Status.PASS
    stale = judge(tmp_path / "stale", {**AFTER, "lm_head.weight": BEFORE[EMBED]}, **tied)
    assert (stale.status, stale.first_wrong) == (Status.FAIL, "lm_head.weight")
    renamed = {("lm_head.weight" if name == EMBED else name): weight for name, weight in AFTER.items()}
    assert judge(tmp_path / "alone", renamed, **tied).status is Status.PASS


ADAPTERS = {Q.replace("weight", "lora_A.weight"): (2, 8), Q.replace("weight", "lora_B.weight"): (8, 2)}


def with_adapters(weights: Weights, factor: float) -> Weights:
    return {**weights, **{name: draw(50 + i, shape) * factor for i, (name, shape) in enumerate(ADAPTERS.items())}}


def merge(weights: Weights, scale: float) -> Weights:
    a, b = (weights[name] for name in ADAPTERS)
    merged = {name: weight for name, weight in weights.items() if name not in ADAPTERS}
    return {**merged, Q: merged[Q] + scale * (b @ a)}


@pytest.mark.parametrize(
    ("dumped", "status", "said"),
    [
        (lambda after, before: cast(merge(after, 2.0)), Status.PASS, "1 of them hold their adapters merged"),
        (lambda after, before: after, Status.PASS, "11 tensors, 2 of which had moved since step 1"),
        (lambda after, before: merge(before, 2.0), Status.FAIL, "stale by 1 step, in 1 of 9 tensors"),
        (lambda after, before: merge(after, 4.0), Status.FAIL, f"{Q} is not the base with its adapters merged"),
        (lambda after, before: BEFORE, Status.FAIL, "holds the base weights alone: the adapters of 1 of 9 tensors"),
    ],
    ids=["merged", "beside", "stale", "scale", "base"],
)
def test_adapters_are_merged_or_beside_their_base(tmp_path: Path, dumped: Any, status: Status, said: str) -> None:
    before, after = with_adapters(BEFORE, 1.0), with_adapters(BEFORE, 1.1)
    spec = {"lora": True, "lora_r": 4, "lora_alpha": 8.0}
    verdict = judge(tmp_path, dumped(after, before), before=before, after=after, spec=spec)
    assert verdict.status is status
    assert said in verdict.sentence
    assert adapted(read_states(material(tmp_path / "again", before, after).run.capture).records[2]) == (Q,)  # type: ignore[arg-type]


def test_an_update_below_the_cast_leaves_staleness_open(tmp_path: Path) -> None:
    fine = {name: weight.bfloat16().float() for name, weight in BEFORE.items()}
    after = {name: weight * (1 + 2.0**-20) for name, weight in fine.items()}
    verdict = judge(tmp_path, cast(after), before=fine, after=after)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == (
        "after the cast to bfloat16 its weights after step 1 look the same as after 2, so that a stale sync would not "
        "show; raise lr or dump in the trainer's dtype"
    )


def test_what_cannot_be_compared_is_left_open_with_the_reason(tmp_path: Path) -> None:
    for name in ("step", "fp8", "shape", "text"):
        (tmp_path / name).mkdir()
    other = judge(tmp_path / "step", AFTER, stated={"step": 7})
    assert other.status is Status.INCONCLUSIVE
    assert other.sentence.startswith("sync.json says step 7, and the trainer's weights were recorded after steps 1, 2;")
    small = judge(tmp_path / "fp8", {**AFTER, Q: AFTER[Q].to(torch.float8_e4m3fn)})
    assert small.status is Status.PASS
    assert small.sentence.endswith(
        "8 tensors, 8 of which had moved since step 1, bit by bit in float32; 1 that it holds "
        "quantised are judged by serving.quantised"
    )
    assert small.evidence["unread"] == [f"{Q} is held in float8_e4m3fn, a quantised form"]
    turned = judge(tmp_path / "shape", {**AFTER, GATE: AFTER[GATE].T})
    assert turned.status is Status.INCONCLUSIVE
    assert turned.sentence.endswith(f"{GATE} has shape [64, 80], [80, 64] in the trainer")
    directory = tmp_path / "text" / "dump"
    write_dump(directory, AFTER, {})
    (directory / "sync.json").write_text("step 3")
    made = material(tmp_path / "text")
    verdict = transfer_sync.judge(replace(made, spec=replace(made.spec, synced=directory)))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith(f"synced: {directory / 'sync.json'} is no JSON")


def test_without_a_statement_the_last_step_is_taken(tmp_path: Path) -> None:
    verdict = judge(tmp_path, AFTER, stated={})
    assert verdict.sentence.startswith(
        "the engine holds the trainer's weights after step 2 (sync.json states no step; the last one is taken)"
    )


def test_without_a_dump_the_check_is_skipped_and_with_one_it_takes_no_run_of_its_own() -> None:
    spec = RunSpec("transformers", Path("m"), Path("d"))
    skipped = make_plan(spec, [transfer_sync.CHECK]).skipped
    assert [why for _, why in skipped] == [
        "no weights of a rollout engine were given; set synced to the directory of a dump"
    ]
    plan = make_plan(replace(spec, synced=Path("d")), [transfer_sync.CHECK])
    assert [run.role.value for run in plan.runs] == ["run"]


def test_the_setting_is_a_directory_with_safetensors(tmp_path: Path) -> None:
    assert parse_settings(["synced=/a/b"], defaults={}) == {"synced": Path("/a/b")}
    with pytest.raises(BadRequest, match="synced: is empty"):
        parse_settings(["synced="], defaults={})
    with pytest.raises(BadRequest, match="is no directory"):
        resolve_dump(str(tmp_path / "none"))
    with pytest.raises(BadRequest, match=r"holds no \*\.safetensors"):
        resolve_dump(str(tmp_path))
    (tmp_path / "a.safetensors").write_bytes(b"nothing")
    with pytest.raises(BadRequest, match=r"a\.safetensors cannot be read"):
        read_dump(tmp_path)
    for name in "ab":
        save_file({"x": torch.zeros(1)}, str(tmp_path / f"{name}.safetensors"))
    with pytest.raises(BadRequest, match=r"x is in a\.safetensors and in b\.safetensors"):
        read_dump(tmp_path)


def test_names_that_only_look_fused_are_left_alone(tmp_path: Path) -> None:
    """A trainer that has `gate_up_proj` itself, or halves of other heights."""
    known = {"mlp.gate_up_proj.weight": (6, 2), "a.gate_proj.weight": (3, 2), "a.up_proj.weight": (2, 2)}
    dumped = {"mlp.gate_up_proj.weight": torch.zeros(6, 2), "a.gate_up_proj.weight": torch.zeros(6, 2)}
    write_dump(tmp_path / "dump", dumped, {})
    dump = read_dump(tmp_path / "dump")
    matching = match_dump(dump, known, tied=False, names=dump.shapes)
    assert list(matching.targets) == ["mlp.gate_up_proj.weight"]
    assert matching.extra == ("a.gate_up_proj.weight",)
    assert matching.missing == ("a.gate_proj.weight", "a.up_proj.weight")
