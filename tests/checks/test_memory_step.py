"""memory.step: what a step holds beyond what its shapes imply, cause by cause, on numbers that are known."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from checks.architecture import memory_step
from checks.captures.capture import open_capture
from checks.material import Material, RunOutcome
from checks.memory.findings import OTHER_CLASS, SAME_CLASS
from checks.memory.implied import Implied, ImpliedMicroBatch, NoBatch, Resident, imply, imply_resident
from checks.memory.measured import Group
from checks.models import resolve_model
from checks.registry import DEFAULT_CHECKS
from checks.roles import MEASURED_STEPS, Role, spec_of
from checks.samples import resolve_data
from checks.spec import RunSpec
from checks.verdict import Pattern, Status
from workers.planner import make_plan

Raw = dict[str, Any]
STEPS, VOCABULARY, POSITIONS = 5, 40, 16
PARAMETERS, STATES, HELD = 1_000, 2_040, 10_000
FORWARD_PEAK, BACKWARD_PEAK = 12_000, 14_000
LOGITS = 2 * POSITIONS * VOCABULARY * 4
IMPLIED = Implied(
    resident=Resident(parameters=PARAMETERS, gradients=PARAMETERS, states=STATES, trainable=PARAMETERS, largest=400),
    step=STEPS,
    micro_batches=(
        ImpliedMicroBatch(
            micro_batch=0,
            held=HELD,
            forward_peak=FORWARD_PEAK,
            backward_peak=BACKWARD_PEAK,
            forward_logits=2 * LOGITS,
            backward_logits=3 * LOGITS,
            logits=LOGITS,
            positions=POSITIONS,
            vocabulary=VOCABULARY,
            groups=(Group(HELD, 1, (50, 50), "torch.float32", None, "mm", "layers.0", None, "forward", 1, 0),),
        ),
    ),
    without_checkpointing=None,
    shared=("transformers.models.any 5",),
    device="cpu",
    model="AnyForCausalLM",
)


def group(bytes_: int, shape: tuple[int, ...], *, module: str | None = "layers.0", **other: Any) -> Raw:
    usual = {"count": 1, "dtype": "torch.float32", "role": None, "operation": "aten.mm.default", "caller": "a.py:f:1"}
    at = {"phase": "forward", "step": STEPS, "micro_batch": 0}
    return {"bytes": bytes_, "shape": list(shape), "module": module, **usual, **at, **other}


def phase(step: int, index: int | None, name: str, begin: int, end: int, peak: int, left: int = 0) -> Raw:
    found = {"step": step, "micro_batch": index, "phase": name, "begin_bytes": begin, "end_bytes": end}
    return {**found, "peak_bytes": peak, "left_bytes": left, "at_peak": {"bytes": peak, "groups": []}, "left": []}


def moment(step: int, name: str) -> Raw:
    nothing = {"matched": 0, "of": 9, "bytes": 0, "largest": None}
    return {
        "step": step,
        "moment": name,
        "live_bytes": 5_000,
        "parameter_bytes": PARAMETERS,
        "buffer_bytes": 16,
        "gradient_bytes": PARAMETERS,
        "state_bytes": STATES,
        "other_bytes": 100,
        "others": [group(100, (2, 16), phase="between", module=None, dtype="torch.int64")],
        "copies": {"parameters": dict(nothing), "trainable": dict(nothing)},
        "survivors": [],
    }


def healthy() -> Raw:
    """A run of five steps that holds exactly what is implied."""
    phases, settled = [], []
    for step in range(1, STEPS + 1):
        begin = 4_000
        phases += [
            phase(step, 0, "forward", begin, begin + HELD, begin + FORWARD_PEAK, HELD),
            phase(step, 0, "backward", begin + HELD, begin + PARAMETERS, begin + BACKWARD_PEAK),
            phase(step, None, "update", 5_000, 5_000, 5_900),
        ]
        settled += [moment(step, "before the update"), moment(step, "after the update")]
    zeroed = [{"step": step, "set_to_none": True, "alive_bytes": 0, "groups": []} for step in range(2, STEPS + 1)]
    return {
        "rank": 0,
        "device": "cpu",
        "operations": 99,
        "alive_before": {"bytes": 1, "groups": []},
        "phases": phases,
        "settled": settled,
        "zeroed": zeroed,
    }


@pytest.fixture
def judge(tmp_path: Path) -> Callable[..., Any]:
    """Judge a measured run; `spec`, `implied` and `model` may differ from the usual ones."""

    def run(
        *processes: Raw,
        implied: Implied | None = IMPLIED,
        model: str = "AnyForCausalLM",
        missing: str = "",
        **spec: Any,
    ) -> Any:
        out = tmp_path / f"capture-{len(list(tmp_path.iterdir()))}"
        capture = write_capture(out, processes, model=model, missing=missing)
        outcome = RunOutcome("completed", 0, 1.0, None, open_capture(capture), None)
        material = Material(
            spec=RunSpec("transformers", Path("model"), Path("data"), **spec),
            run=outcome,
            others={Role.MEASURED: outcome},
            implied=implied,
            no_implied="" if implied else "the reference's activations need about 9.0 GB",
        )
        return memory_step.judge(material)

    return run


def write_capture(out: Path, processes: tuple[Raw, ...], *, model: str = "AnyForCausalLM", missing: str = "") -> Path:
    out.mkdir()
    record = {
        "step": STEPS,
        "model": {
            "class": model,
            "training": True,
            "attention": "sdpa",
            "parameter_dtypes": {},
            "autocast": None,
            "compute_dtype": None,
            "gradient_checkpointing": False,
        },
        "scalars": {},
        "trainable": [],
        "frozen": [],
        "micro_batches": [],
        "clips": [],
        "optimizer": {"class": "torch.optim.adamw.AdamW", "groups": [], "without_gradient": []},
        "rng": {},
    }
    notes = [{"rank": 0, "step": 1, "what": "memory", "why": missing}] if missing else []
    manifest = {
        "format": "plumbline-capture",
        "version": 1,
        "missing": notes,
        "ranks": [{"rank": 0, "steps": [record]}],
        "files": [],
        "tensors": [],
        "memory": list(processes),
    }
    (out / "manifest.json").write_text(json.dumps(manifest))
    return out


def at(raw: Raw, name: str, *, step: int = STEPS) -> Raw:
    return next(each for each in raw["phases"] if (each["step"], each["phase"]) == (step, name))


def last(raw: Raw, name: str = "after the update") -> Raw:
    return [each for each in raw["settled"] if each["moment"] == name][-1]  # type: ignore[no-any-return]


def test_a_run_that_holds_what_is_implied_passes_and_says_the_figures(judge: Callable[..., Any]) -> None:
    verdict = judge(healthy())
    assert verdict.status is Status.PASS
    assert verdict.sentence == (
        "parameters, gradients and states take no more than the 4,040 bytes that their shapes imply, a forward holds "
        "10,000 bytes (10,000 implied), nothing grows over 5 steps; the peak is 18,000 bytes, in the backward of "
        "micro-batch 0 of step 1"
    )
    assert verdict.shared_code == ("transformers.models.any 5",)
    thresholds = {m.name: (m.value, m.threshold) for m in verdict.measurements}
    assert thresholds == {
        "bytes of parameters": (1_000, 1_000),
        "bytes of gradients": (1_000, 1_000),
        "bytes of optimizer state": (2_040, 2_040),
        "growth of live bytes a step": (0, 0),
        "bytes of another copy of the parameters": (0, 0),
        "bytes of another copy of what is trained": (0, 0),
        "bytes of another copy of the gradients": (0, 0),
        "gradients alive after zero_grad(set_to_none=True)": (0, 0),
        "activations alive after the update": (0, 100),
        "held by the forward of micro-batch 0": (10_000, 10_500 + LOGITS),
        "peak of the forward of micro-batch 0": (12_000, pytest.approx(12_600 + LOGITS)),
        "peak of the backward of micro-batch 0": (14_000, pytest.approx(14_700 + LOGITS)),
        "peak of the update above its begin": (900, 1_000 + 3 * 400),
    }


def test_the_page_has_a_curve_over_the_phases_and_a_table_of_what_is_alive(judge: Callable[..., Any]) -> None:
    raw = healthy()
    at(raw, "backward", step=1)["at_peak"]["groups"] = [group(9_000, (2, 16, 8))]
    evidence = judge(raw).evidence
    (plot,) = evidence["plots"]
    alive, peaks = plot["curves"]
    assert (alive["y"][:3], len(alive["x"])) == ([4_000, 16_000, 14_000], 2 * 3 * STEPS + 1)
    assert peaks["y"][:4] == [None, 16_000, None, 18_000]
    assert evidence["peak"] == "backward of micro-batch 0 of step 1: 18,000 bytes"
    row = {
        "bytes": 9_000,
        "count": 1,
        "shape": "2 × 16 × 8".replace(" ", "\N{NO-BREAK SPACE}"),
        "dtype": "float32",
        "what": "",
    }
    assert evidence["alive at the peak"] == [{**row, "made in": "layers.0", "line": "a.py:f:1"}]
    assert evidence["after the last update"]["other"] == 100
    json.dumps(evidence)


@pytest.mark.parametrize(
    ("name", "where", "key"),
    [
        ("after the update", "parameters", "parameter_bytes"),
        ("before the update", "gradients", "gradient_bytes"),
        ("after the update", "optimizer state", "state_bytes"),
    ],
)
def test_one_byte_more_of_what_stays_fails_and_one_less_does_not(
    judge: Callable[..., Any], name: str, where: str, key: str
) -> None:
    raw = healthy()
    last(raw, name)[key] += 1
    verdict = judge(raw)
    assert (verdict.status, verdict.first_wrong, verdict.pattern) == (Status.FAIL, where, Pattern.PRECISION)
    last(raw, name)[key] -= 2
    assert judge(raw).status is Status.PASS


def leave(raw: Raw, *made_in: int, size: int = 64) -> None:
    left = group(size, (4, 4), module="layers.1.mlp")
    last(raw)["survivors"] = [{"made_in": step, "bytes": size, "groups": [left]} for step in made_in]


def test_what_each_step_leaves_behind_is_growth_and_is_named(judge: Callable[..., Any]) -> None:
    raw = healthy()
    leave(raw, 1, 2, 3, 4)
    verdict = judge(raw)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "layers.1.mlp")
    assert verdict.sentence == (
        "every step leaves 64 bytes or more alive for good: of step 3 1 of 4 × 4 float32, made in layers.1.mlp "
        "(a.py:f:1)"
    )


@pytest.mark.parametrize("made_in", [(4,), (1, 2), (2, 3, 4), (0, 1, 3)])
def test_what_a_step_or_two_leave_behind_is_a_cache_or_a_batch_loaded_ahead(
    judge: Callable[..., Any], made_in: tuple[int, ...]
) -> None:
    raw = healthy()
    leave(raw, *made_in)
    assert judge(raw).status is Status.PASS


def test_a_second_copy_of_the_model_and_one_of_the_gradients_are_told_apart(judge: Callable[..., Any]) -> None:
    raw = healthy()
    before = group(500, (10, 10), phase="before", module=None, caller=None)
    last(raw)["copies"]["parameters"] = {"matched": 9, "of": 9, "bytes": 900, "largest": before}
    verdict = judge(raw)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "parameters")
    assert verdict.sentence.startswith("a second copy of the model is alive, 900 bytes: 1 of 10 × 10 float32")
    raw = healthy()
    summed = group(500, (10, 10), phase="between", module=None)
    last(raw, "before the update")["copies"]["trainable"] = {"matched": 9, "of": 9, "bytes": 900, "largest": summed}
    verdict = judge(raw)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "gradients")
    last(raw, "before the update")["copies"]["trainable"]["matched"] = 8  # 8 of 9 shapes may be chance
    assert judge(raw).status is Status.PASS


def test_gradients_that_zero_grad_leaves_alive_fail_unless_zeros_were_asked(judge: Callable[..., Any]) -> None:
    raw = healthy()
    raw["zeroed"][1] |= {"alive_bytes": 400, "groups": [group(400, (10, 10), role="gradient", phase="backward")]}
    verdict = judge(raw)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "gradients")
    assert "left 400 bytes of gradients alive before step 3" in verdict.sentence
    raw["zeroed"][1]["set_to_none"] = False
    assert judge(raw).status is Status.PASS


def test_activations_that_outlive_their_backward_fail_and_kept_logits_do_not(judge: Callable[..., Any]) -> None:
    raw = healthy()
    last(raw)["others"] = [group(100, (2, 16, 8)), group(5_000, (2, POSITIONS, VOCABULARY))]
    assert judge(raw).status is Status.PASS  # 1 % of what the forward holds
    last(raw)["others"][0]["bytes"] = 101
    verdict = judge(raw)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "layers.0")
    assert verdict.sentence.startswith("101 bytes of activations are alive after the update: 1 of 2 × 16 × 8")


def test_checkpointing_that_is_asked_and_not_in_force_is_named(judge: Callable[..., Any]) -> None:
    raw, implied = healthy(), replace(IMPLIED, without_checkpointing=40_000)
    at(raw, "forward")["left_bytes"] = 40_000
    at(raw, "forward")["left"] = [group(30_000, (2, 16, 8))]
    verdict = judge(raw, implied=implied, gradient_checkpointing=True)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "gradient checkpointing")
    assert "holds 40,000 bytes for its backward, as one without gradient checkpointing" in verdict.sentence
    assert verdict.pattern is Pattern.MODEL_DEFINITION


def test_dense_masks_are_named_where_sdpa_was_asked(judge: Callable[..., Any]) -> None:
    raw = healthy()
    at(raw, "forward")["left_bytes"] = 20_000
    dense = group(8_192, (2, 4, POSITIONS, POSITIONS), module="layers.0.self_attn")
    at(raw, "forward")["left"] = [group(HELD, (50, 50)), dense]
    verdict = judge(raw)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "layers.0.self_attn")
    assert verdict.sentence.endswith(
        "2 × 4 × 16 × 16 float32, made in layers.0.self_attn (a.py:f:1) is dense, which sdpa does not need"
    )
    assert "is dense" not in judge(raw, attention="eager").sentence


def test_more_held_than_by_the_reference_fails_at_its_threshold_of_the_same_class_and_of_another(
    judge: Callable[..., Any],
) -> None:
    for model, factor in (("AnyForCausalLM", SAME_CLASS), ("Other", OTHER_CLASS)):
        raw = healthy()
        at(raw, "forward")["left"] = [group(HELD, (50, 50)), group(3_000, (3, 250), module="layers.1.norm")]
        at(raw, "forward")["left_bytes"] = int(factor * HELD) + LOGITS
        assert judge(raw, model=model).status is Status.PASS
        at(raw, "forward")["left_bytes"] += 1
        verdict = judge(raw, model=model)
        assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "layers.1.norm")


@pytest.mark.parametrize(("name", "implied"), [("forward", FORWARD_PEAK), ("backward", BACKWARD_PEAK)])
def test_a_peak_beyond_the_reference_names_copies_of_the_logits_or_the_largest(
    judge: Callable[..., Any], name: str, implied: int
) -> None:
    raw = healthy()
    at(raw, name)["peak_bytes"] = 4_000 + int(SAME_CLASS * implied) + LOGITS
    assert judge(raw).status is Status.PASS
    at(raw, name)["peak_bytes"] += 2
    at(raw, name)["at_peak"]["groups"] = [group(7_000, (2, 16, 8), module="layers.1"), group(10, (3,), role="state")]
    verdict = judge(raw)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "layers.1")
    at(raw, name)["at_peak"]["groups"] = [group(5 * LOGITS, (2, POSITIONS, VOCABULARY), module="lm_head")]
    verdict = judge(raw)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "logits")
    assert "2.0 float32 copies of the logits are alive beyond the definition" in verdict.sentence


def test_the_scratch_of_a_loss_in_tiles_is_not_counted_against_a_small_vocabulary(judge: Callable[..., Any]) -> None:
    raw = healthy()
    tile = group(30 * 32_768 * 4, (30, 32_768), module="AnyForCausalLM")
    at(raw, "backward")["at_peak"]["groups"] = [tile]
    at(raw, "backward")["peak_bytes"] = 4_000 + int(SAME_CLASS * BACKWARD_PEAK) + 7 * LOGITS + tile["bytes"]
    assert judge(raw).status is Status.PASS
    at(raw, "backward")["peak_bytes"] += 1
    assert judge(raw).status is Status.FAIL


def test_an_update_may_take_a_copy_of_what_is_trained_and_three_of_the_largest(judge: Callable[..., Any]) -> None:
    raw = healthy()
    at(raw, "update")["peak_bytes"] = 5_000 + PARAMETERS + 3 * 400
    assert judge(raw).status is Status.PASS
    at(raw, "update")["peak_bytes"] += 1
    verdict = judge(raw)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "optimizer update")


def test_what_says_too_little_is_inconclusive_with_the_reason(judge: Callable[..., Any]) -> None:
    short = healthy()
    short["settled"] = short["settled"][:8]
    cases = {
        "4 steps, and growth takes 5 to be told": judge(short),
        "the meter saw no operation of a whole step": judge({**healthy(), "operations": 0}),
        "the model is compiled": judge(missing="the model is compiled"),
        "0 processes were metered": judge(),
        "2 processes were metered, and one is judged": judge(healthy(), healthy()),
        "the reference's activations need about 9.0 GB": judge(healthy(), implied=None),
        "lacks or misstates the field": judge({**healthy(), "settled": [{}]}),
    }
    for sentence, verdict in cases.items():
        assert verdict.status is Status.INCONCLUSIVE
        assert sentence in verdict.sentence


def test_without_a_measured_run_there_is_nothing_to_judge() -> None:
    nothing = RunOutcome("failed", 1, 1.0, None, None, "the recorder wrote no capture")
    verdict = memory_step.judge(Material(RunSpec("transformers", Path("m"), Path("d")), nothing))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "the run that counts its memory left no capture; see run.completes"


def test_it_runs_only_when_it_is_asked_for_and_takes_five_steps_or_more() -> None:
    spec = RunSpec("transformers", resolve_model("tiny:qwen3").path, resolve_data("gsm8k_sample"))
    assert "memory.step" not in DEFAULT_CHECKS
    plan = make_plan(spec, [memory_step.CHECK])
    assert [(run.role, run.memory, run.captured_steps) for run in plan.runs] == [
        (Role.RUN, False, (1, 3)),
        (Role.MEASURED, True, (1, MEASURED_STEPS)),
    ]
    assert spec_of(Role.MEASURED, replace(spec, steps=9)).steps == 9
    assert memory_step.applies(spec) is None
    assert "dpo was asked" in str(memory_step.applies(replace(spec, objective="dpo")))
    assert [each.name for each, _ in make_plan(replace(spec, dp_size=2), [memory_step.CHECK]).skipped] == [
        "memory.step"
    ]


def test_parameters_gradients_and_states_follow_from_config_and_run_spec() -> None:
    model = resolve_model("tiny:qwen3").path
    spec = RunSpec("transformers", model, resolve_data("gsm8k_sample"))
    count, tensors = 139_648, 25  # of the tiny family's config
    full = imply_resident(spec, adapters=(), float32_names=frozenset())
    assert full == Resident(4 * count, 4 * count, 8 * count + 4 * tensors, 4 * count, 4 * 512 * 64)
    half = imply_resident(replace(spec, precision="bf16_params"), adapters=(), float32_names=frozenset())
    assert (half.parameters, half.gradients, half.states) == (2 * count, 2 * count, 4 * count + 4 * tensors)
    kept = replace(spec, precision="bf16_params")
    assert imply_resident(kept, adapters=(), float32_names=frozenset({"model.norm.weight"})).parameters == 2 * (
        count + 64
    )
    momentum = replace(spec, optimizer="sgd", momentum=0.9)
    assert imply_resident(momentum, adapters=(), float32_names=frozenset()).states == 4 * count
    assert imply_resident(replace(spec, optimizer="sgd"), adapters=(), float32_names=frozenset()).states == 0
    names = ("model.layers.0.self_attn.q_proj.lora_A.weight", "model.layers.0.self_attn.v_proj.lora_B.weight")
    lora = imply_resident(spec, adapters=names, float32_names=frozenset())
    adapters = spec.lora_r * (64 + 32)
    assert lora.parameters == 4 * (count + adapters)
    assert (lora.gradients, lora.states, lora.largest) == (4 * adapters, 8 * adapters + 8, 4 * spec.lora_r * 64)


def test_the_reference_counts_what_a_forward_holds_with_and_without_checkpointing(tmp_path: Path) -> None:
    spec = RunSpec("transformers", resolve_model("tiny:llama").path, resolve_data("gsm8k_sample"))
    spec = replace(spec, gradient_checkpointing=True)
    out = write_capture(tmp_path / "capture", ())
    manifest = json.loads((out / "manifest.json").read_text())
    rows, width = 2, 24
    save_file({"ids": torch.ones(rows, width, dtype=torch.int64)}, out / "step.safetensors")
    micro = {"index": 0, "model_loss": None, "backward": 1.0, "backward_dtype": None, "num_items_in_batch": None}
    manifest["ranks"][0]["steps"][0]["micro_batches"] = [{**micro, "loss_source": None, "cross_entropy": []}]
    entry = {"step": STEPS, "rank": 0, "micro_batch": 0, "kind": "batch", "name": "input_ids", "field": None}
    entry |= {"dtype": "torch.int64", "global_shape": [rows, width], "file": "step.safetensors"}
    manifest["tensors"] = [{**entry, "representations": {"full": "ids"}, "stats": {"norm": 0.0, "nonfinite": 0}}]
    (out / "manifest.json").write_text(json.dumps(manifest))
    implied = imply(spec, open_capture(out), adapters=(), float32_names=frozenset(), device="cpu")
    (micro_batch,) = implied.micro_batches
    assert (micro_batch.positions, micro_batch.vocabulary) == (width, 512)
    assert micro_batch.logits == rows * width * 512 * 4
    assert implied.without_checkpointing is not None
    assert micro_batch.held < 0.5 * implied.without_checkpointing
    (wide,) = [each for each in micro_batch.groups if each.shape[-1:] == (512,)]
    assert wide.bytes == micro_batch.logits  # the log-softmax, and nothing else of its width
    hidden = sum(each.count for each in micro_batch.groups if each.shape == (rows, width, 64))
    assert 4 <= hidden <= 6  # both layers' inputs, and what the last norm and the head save
    assert micro_batch.held < micro_batch.forward_peak < micro_batch.backward_peak
    assert implied.model == "LlamaForCausalLM"
    assert any("modeling_llama" in module for module in implied.shared)
    manifest["tensors"] = []
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(NoBatch, match="micro-batch 0 of step 5 holds no input_ids"):
        imply(spec, open_capture(out), adapters=(), float32_names=frozenset(), device="cpu")
