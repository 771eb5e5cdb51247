"""step.lora: where adapters sit, how large and how strong they are, how they begin, and that they alone are trained."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plumbline_capture.represent import describe
from plumbline_capture.sketch import sample, sketch
from safetensors.torch import save_file

from checks.architecture import step_lora
from checks.captures.capture import Capture, open_capture
from checks.material import Material, RunOutcome
from checks.references.model import NoReference
from checks.references.reference import refuse_dropout
from checks.spec import RunSpec
from checks.verdict import Pattern, Status, Verdict

R, ALPHA, WIDTH = 4, 8.0, 6
LAYERS = ("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj", "model.layers.1.self_attn.q_proj")
FIRST = LAYERS[0]
BASE = tuple(f"{layer}.weight" for layer in LAYERS)
NORM = "model.norm.weight"
ADAPTERS = tuple(f"{layer}.{factor}.weight" for layer in LAYERS for factor in ("lora_A", "lora_B"))
SPEC = RunSpec("transformers", Path("model"), Path("data"), lora=True, lora_r=R, lora_alpha=ALPHA)


@dataclass
class Run:
    """A LoRA run in the making; `weights`, `after` and `gradients` are those around the first captured step."""

    first: int = 1
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    after: dict[str, torch.Tensor] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    scalars: dict[str, dict[str, Any]] = field(default_factory=dict)
    trainable: list[str] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)

    def save(self, out: Path) -> Capture:
        tensors: dict[str, torch.Tensor] = {}
        entries = [
            *_entries(tensors, self.first, "parameter_before", self.weights),
            *_entries(tensors, self.first, "gradient", self.gradients),
            *_entries(tensors, 3, "parameter_before", {n: w for n, w in self.after.items() if n not in self.held}),
            *_entries(tensors, 3, "parameter_after", {n: w for n, w in self.after.items() if n in self.held}),
        ]
        out.mkdir()
        save_file(tensors, out / "step.safetensors")
        size = (out / "step.safetensors").stat().st_size
        manifest = {
            "format": "plumbline-capture",
            "version": 1,
            "tensors": entries,
            "missing": [],
            "ranks": [{"rank": 0, "steps": [self._step(self.first), self._step(3)]}],
            "files": [{"path": "step.safetensors", "bytes": size}],
        }
        (out / "manifest.json").write_text(json.dumps(manifest))
        return open_capture(out)

    def _step(self, step: int) -> dict[str, Any]:
        group = {"settings": {"lr": 1e-3}, "parameters": self.held}
        return {
            "step": step,
            "scalars": self.scalars,
            "trainable": self.trainable,
            "frozen": self.frozen,
            "model": {"class": "Model", "training": True, "parameter_dtypes": {"torch.float32": 10}},
            "micro_batches": [],
            "clips": [],
            "optimizer": {"class": "AdamW", "groups": [group], "without_gradient": []},
        }


def _entries(
    tensors: dict[str, torch.Tensor], step: int, kind: str, values: Mapping[str, torch.Tensor]
) -> list[dict[str, Any]]:
    found = []
    for name, value in values.items():
        kept = {"full": value, "sketch": sketch(value, name), "sample": sample(value, name)}
        keys = {representation: f"{step}/{kind}/{name}/{representation}" for representation in kept}
        tensors.update({keys[representation]: tensor.contiguous().clone() for representation, tensor in kept.items()})
        entry: dict[str, Any] = {
            "step": step,
            "rank": 0,
            "micro_batch": None,
            "kind": kind,
            "name": name,
            "field": None,
        }
        entry |= {"dtype": str(value.dtype), "global_shape": list(value.shape), "file": "step.safetensors"}
        found.append({**entry, "representations": keys, "stats": describe(value)})
    return found


def make_run() -> Run:
    """A healthy run: both factors drawn, as the adapters of this tree ask of PEFT."""
    generator = torch.Generator().manual_seed(0)
    run = Run(trainable=list(ADAPTERS), frozen=[*BASE, NORM], held=list(ADAPTERS))
    for layer in LAYERS:
        run.weights[f"{layer}.weight"] = torch.randn(WIDTH, WIDTH, generator=generator)
        run.weights[f"{layer}.lora_A.weight"] = torch.randn(R, WIDTH, generator=generator)
        run.weights[f"{layer}.lora_B.weight"] = torch.randn(WIDTH, R, generator=generator)
        run.scalars[layer] = {"class": "Linear", "scaling.default": ALPHA / R, "merged_adapters": []}
        run.scalars[f"{layer}.lora_dropout.default"] = {"class": "Identity"}
    run.weights[NORM] = torch.ones(WIDTH)
    for name in ADAPTERS:
        run.gradients[name] = torch.randn(run.weights[name].shape, generator=generator)
    run.after = {name: weight + 1e-3 if name in ADAPTERS else weight for name, weight in run.weights.items()}
    return run


def judge(run: Run, out: Path, *, spec: RunSpec = SPEC) -> Verdict:
    outcome = RunOutcome("completed", 0, 1.0, None, run.save(out / "capture"), None)
    return step_lora.judge(Material(spec, outcome, expected_adapters=ADAPTERS, total_steps=3))


def name_of(layer: int, factor: str) -> str:
    return f"{LAYERS[layer]}.lora_{factor}.weight"


def test_adapters_as_asked_pass(tmp_path: Path) -> None:
    verdict = judge(make_run(), tmp_path)
    assert (verdict.status, verdict.sentence) == (
        Status.PASS,
        "3 layers have adapters of rank 4 and scale 2 (B drawn before step 1), the optimizer holds them alone, and 4 "
        "other parameters do not move",
    )
    (count,) = verdict.measurements
    assert (count.value, count.threshold, count.limit, count.holds) == (0.0, 0.0, 1.0, True)
    run, rows = make_run(), verdict.evidence["layers"]
    assert [(row["layer"], row["scale in force"], row["A"], row["B"]) for row in rows] == [
        (layer, 2.0, "4 × 6", "6 × 4") for layer in LAYERS
    ]
    assert rows[1]["norm of A"] == pytest.approx(float(run.weights[name_of(1, "A")].norm()))
    assert rows[1]["norm of its gradient (B)"] == pytest.approx(float(run.gradients[name_of(1, "B")].norm()))


def test_factors_b_of_zero_pass_and_are_said(tmp_path: Path) -> None:
    run = make_run()
    for layer in range(3):
        run.weights[name_of(layer, "B")].zero_()
        run.gradients[name_of(layer, "A")].zero_()
    verdict = judge(run, tmp_path)
    assert (verdict.status, verdict.evidence["zero_B"]) == (Status.PASS, 3)
    assert "(all B zero before step 1)" in verdict.sentence


def test_some_factors_b_of_zero_are_counted(tmp_path: Path) -> None:
    run = make_run()
    run.weights[name_of(1, "B")].zero_()
    run.gradients[name_of(1, "A")].zero_()
    assert "(B zero in 1 of them before step 1)" in judge(run, tmp_path).sentence


def test_without_adapters_asked_it_is_skipped_with_the_reason() -> None:
    assert step_lora.CHECK.applies(SPEC) is None
    assert step_lora.CHECK.applies(replace(SPEC, lora=False)) == "no adapters are asked for (lora=false)"


def test_without_a_capture_or_a_target_it_is_inconclusive(tmp_path: Path) -> None:
    lost = RunOutcome("failed", 1, 1.0, None, None, None)
    assert step_lora.judge(Material(SPEC, lost, expected_adapters=ADAPTERS)).status is Status.INCONCLUSIVE
    outcome = RunOutcome("completed", 0, 1.0, None, make_run().save(tmp_path / "capture"), None)
    verdict = step_lora.judge(Material(SPEC, outcome))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.endswith("set lora_targets")


def _take_out(run: Run) -> None:
    for names in (run.trainable, run.held):
        names.remove(name_of(2, "A"))
        names.remove(name_of(2, "B"))
    for factor in "AB":
        for values in (run.weights, run.after, run.gradients):
            del values[name_of(2, factor)]


def _add(run: Run) -> None:
    for factor, shape in (("A", (R, WIDTH)), ("B", (WIDTH, R))):
        name = f"model.layers.0.self_attn.o_proj.lora_{factor}.weight"
        run.weights[name] = run.after[name] = torch.randn(shape)
        run.trainable.append(name)
        run.held.append(name)


def _enlarge(run: Run) -> None:
    run.weights[name_of(1, "A")] = torch.randn(2 * R, WIDTH)
    run.weights[name_of(1, "B")] = torch.randn(WIDTH, 2 * R)


def _scale(scale: float) -> Callable[[Run], None]:
    return lambda run: run.scalars[LAYERS[1]].update({"scaling.default": scale})


def _merge(run: Run) -> None:
    run.scalars[FIRST].update(merged_adapters=["default"])


def _drop_out(run: Run) -> None:
    run.scalars[f"{LAYERS[1]}.lora_dropout.default"].update(p=0.05)


def _narrow(run: Run) -> None:
    run.weights[name_of(1, "A")] = run.weights[name_of(1, "A")].bfloat16()


def _zero(run: Run) -> None:
    run.weights[name_of(1, "A")].zero_()
    run.gradients[name_of(1, "B")].zero_()


def _copy(run: Run) -> None:
    run.weights[name_of(2, "A")] = run.weights[name_of(0, "A")].clone()


def _freeze(run: Run) -> None:
    run.trainable.remove(name_of(1, "B"))
    run.held.remove(name_of(1, "B"))
    run.frozen.append(name_of(1, "B"))


def _leave_out(run: Run) -> None:
    run.held.remove(name_of(1, "B"))


def _train_norm(run: Run) -> None:
    run.frozen.remove(NORM)
    run.trainable.append(NORM)
    run.held.append(NORM)


def _move_base(run: Run) -> None:
    run.after[BASE[1]] = run.after[BASE[1]] * 1.001


def _lose(factor: str) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        run.gradients[name_of(1, factor)].zero_()

    return change


def _reach(run: Run) -> None:
    run.weights[name_of(1, "B")].zero_()


@pytest.mark.parametrize(
    ("change", "where", "said", "pattern"),
    [
        (_take_out, name_of(2, "A"), "is missing: the layer has no adapter (2 in all)", Pattern.MODEL_DEFINITION),
        (
            *(_add, "model.layers.0.self_attn.o_proj.lora_A.weight"),
            *("was not asked for (targets: q_proj, v_proj) (2 in all)", Pattern.MODEL_DEFINITION),
        ),
        (_enlarge, name_of(1, "A"), "has rank 8, asked 4 (2 in all)", Pattern.MODEL_DEFINITION),
        (
            *(_scale(1.0), f"{LAYERS[1]}.scaling"),
            *("are scaled by 1.0, asked alpha/r = 8/4 = 2", Pattern.MODEL_DEFINITION),
        ),
        (
            *(_scale(4.0), f"{LAYERS[1]}.scaling"),
            *("that is alpha/√r, of rank-stabilised adapters (arXiv:2312.03732)", Pattern.MODEL_DEFINITION),
        ),
        (_merge, FIRST, "is merged into its weight while it trains", Pattern.MODEL_DEFINITION),
        (_drop_out, f"{LAYERS[1]}.lora_dropout", "is dropped with p=0.05, asked 0", Pattern.MODEL_DEFINITION),
        (_narrow, name_of(1, "A"), "is held in bfloat16, asked float32", Pattern.PRECISION),
        (_zero, name_of(1, "A"), "is zero before the first step", Pattern.MODEL_DEFINITION),
        (_copy, name_of(2, "A"), f"begins as {name_of(0, 'A')} does", Pattern.MODEL_DEFINITION),
        (_freeze, name_of(1, "B"), "is frozen", Pattern.MODEL_DEFINITION),
        (_leave_out, name_of(1, "B"), "is in no group of the optimizer", Pattern.MODEL_DEFINITION),
        (_train_norm, NORM, "is trained beside the adapters", Pattern.MODEL_DEFINITION),
        (_move_base, BASE[1], "of the base moves by 0.001 of its norm", Pattern.MODEL_DEFINITION),
        (_lose("A"), name_of(1, "A"), "has no gradient although lora_B is not zero", Pattern.OBJECTIVE_SCALE),
        (_lose("B"), name_of(1, "B"), "has no gradient although lora_A is not zero", Pattern.OBJECTIVE_SCALE),
        (_reach, name_of(1, "A"), "has a gradient although lora_B is zero", Pattern.OBJECTIVE_SCALE),
    ],
)
def test_what_is_not_as_asked_is_named(
    tmp_path: Path, change: Callable[[Run], None], where: str, said: str, pattern: Pattern
) -> None:
    run = make_run()
    change(run)
    verdict = judge(run, tmp_path)
    assert (verdict.status, verdict.first_wrong, verdict.pattern) == (Status.FAIL, where, pattern)
    assert said in verdict.sentence
    assert verdict.measurements[0].value == 1.0
    assert not verdict.measurements[0].holds


def test_a_scale_holds_up_to_the_rounding_of_a_division(tmp_path: Path) -> None:
    for number, (scale, status) in enumerate(((2.0 + 1e-9, Status.PASS), (2.0 + 4e-9, Status.FAIL))):
        run = make_run()
        _scale(scale)(run)
        (tmp_path / str(number)).mkdir()
        assert judge(run, tmp_path / str(number)).status is status


def test_an_adapter_that_no_token_reached_is_left_to_the_gradients(tmp_path: Path) -> None:
    run = make_run()
    _lose("A")(run)
    _lose("B")(run)
    assert judge(run, tmp_path).status is Status.PASS


def test_how_adapters_began_is_not_known_of_a_later_step(tmp_path: Path) -> None:
    run = make_run()
    run.first = 2
    _copy(run)
    assert judge(run, tmp_path).status is Status.PASS


def test_bfloat16_parameters_ask_for_bfloat16_adapters(tmp_path: Path) -> None:
    run = make_run()
    verdict = judge(run, tmp_path, spec=replace(SPEC, precision="bf16_params"))
    assert (verdict.pattern, verdict.first_wrong) == (Pattern.PRECISION, name_of(0, "A"))
    assert verdict.sentence.startswith(f"{name_of(0, 'A')} is held in float32, asked bfloat16 (6 in all)")


def test_more_than_three_ways_are_counted(tmp_path: Path) -> None:
    run = make_run()
    for change in (_add, _scale(1.0), _drop_out, _merge):
        change(run)
    verdict = judge(run, tmp_path)
    assert verdict.sentence.endswith(" (and 1 more)")
    assert len(verdict.evidence["problems"]) == 4
    assert verdict.measurements[0].value == 4.0


def test_a_dropout_before_an_adapter_leaves_the_step_without_a_reference(tmp_path: Path) -> None:
    run = make_run()
    _drop_out(run)
    with pytest.raises(NoReference, match=r"lora_dropout\.default\.p = 0\.05"):
        refuse_dropout(run.save(tmp_path / "capture"), 1)
