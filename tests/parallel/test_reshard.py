"""State that is saved at one parallel layout and loaded at another: what differs is named with its slice and rank."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.captures.capture import Capture, open_capture
from checks.errors import BadRequest
from checks.faults import fault, was_in_force
from checks.lifecycle import checkpoint_reshard
from checks.material import Material, RunOutcome
from checks.models import resolve_model
from checks.roles import Role, other_layout, spec_of
from checks.samples import resolve_data
from checks.spec import RunSpec
from checks.verdict import Pattern, Status, Verdict
from tests.parallel.making import Held, RankPart, cut, make_capture
from workers.frameworks import adapter
from workers.frameworks.trainer import RESUME
from workers.planner import make_plan
from workers.runner import run_framework

W = "model.layers.0.mlp.up_proj.weight"
LARGE = "model.layers.0.mlp.down_proj.weight"
NORM = "model.norm.weight"
WEIGHT, STATE = "parameter_before", "optimizer_state_before"
FSDP2: dict[str, Any] = {"dp_size": 2, "sharding": "fsdp2"}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


WHOLES = {W: draw(8, 6, seed=1), LARGE: draw(128, 64, seed=2), NORM: draw(6, seed=3)}
HALVES = {W: [(0, 4), (0, 6)], LARGE: [(0, 64), (0, 64)], NORM: [(0, 3)]}


def hold(wholes: dict[str, torch.Tensor], rank: int | None, *, kept: dict[str, tuple[str, ...]]) -> tuple[Held, ...]:
    """What a rank of two holds of every weight and of a state of it; the whole for None."""
    found = []
    for kind, factor in ((WEIGHT, 1.0), (STATE, 0.5)):
        for name, whole in wholes.items():
            first, *rest = HALVES[name]
            length = first[1]
            start = 0 if rank is None else rank * length
            where = [(start, whole.shape[0] if rank is None else start + length), *rest]
            found.append(cut(whole * factor, name, where, kind=kind, kept=kept[kind]))
    return tuple(found)


SAMPLED: dict[str, tuple[str, ...]] = {WEIGHT: ("sketch", "sample", "row_norms"), STATE: ("sample",)}
FULL: dict[str, tuple[str, ...]] = {WEIGHT: ("full",), STATE: ("full",)}


def judge(
    tmp_path: Path,
    loaded: dict[str, torch.Tensor],
    *,
    kept: dict[str, tuple[str, ...]] = SAMPLED,
    saved: dict[str, torch.Tensor] | None = None,
    edit: Any = None,
    **settings: Any,
) -> Verdict:
    """Two FSDP2 ranks save `saved` after step 1 of 2 and one process loads `loaded`."""
    ranks = [RankPart(rank, hold(saved or WHOLES, rank, kept=kept), steps=(2,)) for rank in range(2)]
    asked = make_capture(tmp_path / "asked", ranks)
    other = make_capture(tmp_path / "other", [RankPart(0, hold(loaded, None, kept=kept))])
    if edit is not None:
        other = edit_manifest(other, edit)
    return checkpoint_reshard.judge(material(asked, other, **{**FSDP2, **settings}))


def edit_manifest(capture: Capture, edit: Any) -> Capture:
    file = capture.path / "manifest.json"
    manifest = json.loads(file.read_text())
    edit(manifest)
    file.write_text(json.dumps(manifest))
    return open_capture(capture.path)


def material(asked: Capture, other: Capture | None, **settings: Any) -> Material:
    spec = RunSpec("plain", Path("m"), Path("d"), **{"steps": 2, **settings})
    others = {} if other is None else {Role.RESHARDED: RunOutcome("completed", 0, 1.0, None, other, None)}
    return Material(spec, RunOutcome("completed", 0, 1.0, None, asked, None), others)


def test_what_is_loaded_as_it_was_saved_passes_with_what_was_compared(tmp_path: Path) -> None:
    verdict = judge(tmp_path, WHOLES)
    assert verdict.status is Status.PASS
    assert verdict.sentence == (
        "saved by 2 data-parallel ranks (fsdp2) and loaded by one process: 3 parameters and 3 optimizer states, "
        f"{verdict.evidence['compared']['numbers'] // 2} of their 8246 numbers are bitwise the same, 0 buffers and "
        "settings too"
    )
    assert 3000 < verdict.evidence["compared"]["numbers"] // 2 < 4096 + 54


def test_halves_that_change_places_are_told_by_full_values_and_by_norms_of_rows(tmp_path: Path) -> None:
    for kept, directory in ((FULL, "full"), (SAMPLED, "sampled")):
        (tmp_path / directory).mkdir()
        verdict = judge(tmp_path / directory, {**WHOLES, LARGE: WHOLES[LARGE].roll(64, 0)}, kept=kept)
        assert verdict.status is Status.FAIL
        assert verdict.pattern is Pattern.STATE_TRANSFER
        assert "; the slice of rank 0, [0:64, 0:64] holds what rank 1, [64:128, 0:64] has saved" in verdict.sentence
        assert verdict.first_wrong == f"rank 0, 1: {LARGE}"
        assert [each["kind"] for each in verdict.evidence["differing"]] == [WEIGHT, STATE]


def test_the_slice_that_differs_is_named_with_the_rank_that_saved_it(tmp_path: Path) -> None:
    moved = WHOLES[W].clone()
    moved[5:7, 2:4] += 1e-6
    verdict = judge(tmp_path, {**WHOLES, W: moved})
    assert verdict.first_wrong == f"rank 1: {W}"
    assert f"{W} is not what was saved: 4 of 48 numbers differ in [5:7, 2:4] (saved by rank 1)" in verdict.sentence


def test_one_bit_is_a_difference(tmp_path: Path) -> None:
    moved = WHOLES[NORM].clone()
    moved[0] = torch.nextafter(moved[0], torch.tensor(torch.inf))
    assert judge(tmp_path, {**WHOLES, NORM: moved}).first_wrong == f"rank 0: {NORM}"


def test_a_change_outside_the_sample_shows_in_the_sketch_and_is_placed_by_its_row(tmp_path: Path) -> None:
    from plumbline_capture.sketch import sample_positions

    moved = WHOLES[LARGE].clone()
    drawn = set(sample_positions(LARGE, moved.numel()).tolist())
    place = next(position for position in range(70 * 64, 8192) if position not in drawn)
    moved.view(-1)[place] += 0.25
    verdict = judge(tmp_path, {**WHOLES, LARGE: moved})
    row = place // 64
    assert f"outside the sample, in 1 of 128 slices along its first axis, first {row}" in verdict.sentence
    assert verdict.first_wrong == f"rank 1: {LARGE}"


def test_an_optimizer_state_of_zeros_is_one_sentence(tmp_path: Path) -> None:
    def empty(manifest: dict[str, Any]) -> None:
        manifest["tensors"] = [entry for entry in manifest["tensors"] if entry["kind"] != STATE]

    verdict = judge(tmp_path, WHOLES, edit=empty)
    assert verdict.first_wrong == "optimizer state"
    assert verdict.sentence.endswith(
        "the optimizer state was not loaded: 3 of 3 states are zero or missing that were not when it was saved"
    )


def test_another_dtype_a_lost_parameter_and_one_too_many_are_told(tmp_path: Path) -> None:
    verdict = judge(tmp_path, {**WHOLES, NORM: WHOLES[NORM].bfloat16()})
    assert f"{NORM} is held in bfloat16 after the load, saved in float32" in verdict.sentence
    (tmp_path / "lost").mkdir()
    (tmp_path / "more").mkdir()
    less = {name: whole for name, whole in WHOLES.items() if name != NORM}
    lost = judge(tmp_path / "lost", less)
    assert f"{NORM} was saved and is not there after the load" in lost.sentence
    more = judge(tmp_path / "more", WHOLES, saved=less)
    assert f"{NORM} is there after the load and was not saved" in more.sentence


def test_a_rate_and_a_buffer_that_differ_are_told(tmp_path: Path) -> None:
    def state(rate: float, bias: float) -> Any:
        def edit(manifest: dict[str, Any]) -> None:
            step = manifest["ranks"][0]["steps"][0]
            step["optimizer"]["groups"] = [{"settings": {"lr": rate, "foreach": rate > 1}, "parameters": []}]
            step["scalars"] = {"model.gate": {"bias": [0.0, bias], "eps": 1.0}}

        return edit

    asked = make_capture(tmp_path / "asked", [RankPart(r, hold(WHOLES, r, kept=FULL), steps=(2,)) for r in range(2)])
    asked = edit_manifest(asked, state(2.0, 0.5))
    for directory, bias, rate, wrong in (("same", 0.5, 2.0, None), ("bias", 0.0, 2.0, "model.gate.bias")):
        other = make_capture(tmp_path / directory, [RankPart(0, hold(WHOLES, None, kept=FULL))])
        verdict = checkpoint_reshard.judge(material(asked, edit_manifest(other, state(rate, bias)), **FSDP2))
        assert verdict.first_wrong == wrong
    other = make_capture(tmp_path / "rate", [RankPart(0, hold(WHOLES, None, kept=FULL))])
    verdict = checkpoint_reshard.judge(material(asked, edit_manifest(other, state(1.0, 0.5)), **FSDP2))
    assert verdict.sentence.endswith("the learning rate is 1.0 on rank 0 after the load, 2.0 when it was saved")


def test_without_the_other_run_or_on_another_machine_it_is_open(tmp_path: Path) -> None:
    asked = make_capture(tmp_path / "asked", [RankPart(r, hold(WHOLES, r, kept=FULL), steps=(2,)) for r in range(2)])
    verdict = checkpoint_reshard.judge(material(asked, None, **FSDP2))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "the run that is saved and resumed at another layout left no step to compare"

    def elsewhere(manifest: dict[str, Any]) -> None:
        manifest["environment"] = {"hardware": {"cpu": "another"}}

    other = make_capture(tmp_path / "other", [RankPart(0, hold(WHOLES, None, kept=FULL))])
    verdict = checkpoint_reshard.judge(material(asked, edit_manifest(other, elsewhere), **FSDP2))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith("the runs were on different CPUs")
    lost = make_capture(tmp_path / "lost", [RankPart(0, hold(WHOLES, 0, kept=FULL), steps=(2,))])
    assert checkpoint_reshard.judge(material(lost, other, **FSDP2)).status is Status.INCONCLUSIVE


def test_one_process_is_loaded_by_two_and_several_by_one() -> None:
    spec = RunSpec("plain", Path("m"), Path("d"), steps=4)
    resharded = spec_of(Role.RESHARDED, spec)
    assert (resharded.resume_after, resharded.resharded, resharded.processes) == (3, True, 1)
    assert (other_layout(spec).dp_size, other_layout(spec).sharding) == (2, "fsdp2")
    divided = replace(spec, tp_size=2)
    assert spec_of(Role.RESHARDED, divided).tp_size == 2
    assert other_layout(divided).processes == 1


def test_frameworks_that_are_not_loaded_at_another_layout_are_told_why_they_are_left_out() -> None:
    check = checkpoint_reshard.CHECK
    plan = make_plan(RunSpec("transformers", Path("m"), Path("d")), [check])
    assert [reason for _, reason in plan.skipped] == [
        "transformers is taken up again only by the processes that saved it here, which checkpoint.roundtrip judges; "
        "framework plain is loaded at another layout"
    ]
    assert make_plan(RunSpec("plain", Path("m"), Path("d"), steps=1), [check]).runs == ()
    plan = make_plan(RunSpec("plain", Path("m"), Path("d"), **FSDP2), [check])
    assert [(run.role, run.captured_steps) for run in plan.runs] == [(Role.RUN, (1, 3)), (Role.RESHARDED, (1,))]


def test_the_plain_loop_starts_both_layouts_and_resumes_nothing_else(tmp_path: Path) -> None:
    spec = RunSpec("plain", resolve_model("tiny:qwen3").path, resolve_data("gsm8k_sample"), steps=3, **FSDP2)
    launch = adapter("plain").prepare(spec_of(Role.RESHARDED, spec), tmp_path)
    script, _, first, second = launch.command[-4:]
    assert script == str(RESUME)
    saving, loading = (json.loads(Path(file).read_text()) for file in (first, second))
    assert "--nproc-per-node=2" in saving["launch"]
    assert loading["launch"] == []
    assert (saving["save_after"], saving["dp_size"], loading["done"], loading["dp_size"]) == (2, 2, 2, 1)
    assert saving["save_to"] == loading["resume_from"]
    assert (launch.checkpoints, launch.environment["GLOO_SOCKET_IFNAME"]) == ((), "lo")
    with pytest.raises(BadRequest, match="the plain loop saves only what another layout is to load"):
        adapter("plain").check(replace(spec, dp_size=1, sharding="none", resume_after=1))


def test_an_expert_that_a_real_run_does_not_load_is_the_only_thing_that_differs(tmp_path: Path) -> None:
    slug = "expert-not-loaded"
    model = resolve_model("tiny:qwen3_moe").path
    spec = RunSpec("plain", model, resolve_data("gsm8k_sample"), steps=2, ep_size=2, fault=slug)
    outcomes = {}
    for role in (Role.RUN, Role.RESHARDED):
        asked = spec_of(role, spec)
        directory = tmp_path / role.value
        done = run_framework(
            adapter("plain").prepare(asked, directory / "scratch"),
            out=directory / "capture",
            scratch=directory / "scratch",
            log=directory / "log",
            steps=(1,) if asked.resharded else (1, 2),
            preload=(fault(slug).file,),
            time_limit_s=300.0,
            memory_limit_bytes=None,
            on_line=lambda line: None,
            cancelled=lambda: False,
        )
        assert done.ending == "completed", done.last_error
        capture = open_capture(directory / "capture")
        assert capture.missing == ()
        outcomes[role] = RunOutcome("completed", 0, 1.0, None, capture, None)
    assert was_in_force(fault(slug), log=tmp_path / "resharded" / "log")
    verdict = checkpoint_reshard.judge(Material(spec, outcomes[Role.RUN], {Role.RESHARDED: outcomes[Role.RESHARDED]}))
    assert verdict.status is Status.FAIL
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert verdict.first_wrong == f"rank 0: {name}"
    assert "differ in [1:2, 0:64, 0:64] (saved by rank 0); there it is as before the first step" in verdict.sentence
    assert [each["name"] for each in verdict.evidence["differing"]] == [name]
    counts = verdict.evidence["compared"]
    assert (counts["parameters"], counts["optimizer_states"], counts["buffers_and_settings"]) == (25, 75, 18)
