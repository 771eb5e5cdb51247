"""Each fault, in both frameworks, does what it says: shown by numbers, without the recorder."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from checks.faults import fault, was_in_force
from tests.faults.measure import BY_FAULT
from workers.frameworks.interpreter import framework_python

AT_THE_TRAINER = (
    "wrong-loss-count",
    "labels-shifted-twice",
    "decay-on-norms",
    "clip-before-accumulation",
    "label-masked",
    "micro-batch-mean",
    "accumulation-not-divided",
    "adapter-frozen",
)
CASES = {
    # Those of a saved and resumed run are shown in tests/checks/test_checkpoint_faults.py, those of the data beside
    # the checks that see them, tests/checks/test_data_*.py, and all of them by benchmarks.detection.
    "transformers": (
        *AT_THE_TRAINER,
        *("rmsnorm-eps", "attention-scale", "weight-scaled", "head-scaled", "one-expert-scaled"),
        *("rope-bf16", "beta2-wrong", "warmup-off-by-one", "gradient-zeroed"),
    ),
    "trl": (*AT_THE_TRAINER, "packed-positions", "rmsnorm-eps"),
}
"""faults of the loaded model are the same code in both; TRL shows one of them"""


@dataclass(frozen=True)
class Case:
    """One run: what was seen, and the tensors."""

    log: Path
    seen: dict[str, Any]
    tensors: dict[str, torch.Tensor]

    def pick(self, kind: str) -> dict[str, torch.Tensor]:
        return {name.split("/", 1)[1]: t.double() for name, t in self.tensors.items() if name.startswith(kind + "/")}


class Runs:
    """The cases of one framework, read as they are asked for."""

    def __init__(self, directory: Path, framework: str) -> None:
        self.directory = directory
        self.framework = framework

    def read(self, name: str) -> Case:
        case = self.directory / name
        return Case(
            log=case / "log.txt",
            seen=json.loads((case / "seen.json").read_text()),
            tensors=load_file(case / "tensors.safetensors"),
        )

    def read_pair(self, slug: str) -> tuple[Case, Case]:
        """(without, with) the fault."""
        return self.read(BY_FAULT.get(slug, "plain")), self.read(slug)


in_the_trainer_alone = pytest.mark.parametrize("runs", ["transformers"], indirect=True)
in_trl_alone = pytest.mark.parametrize("runs", ["trl"], indirect=True)


@pytest.fixture(scope="module", params=["transformers", "trl"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    directory = tmp_path_factory.mktemp(request.param) / "cases"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    command = [framework_python(), "-m", "tests.faults.measure", request.param, str(directory), *CASES[request.param]]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return Runs(directory, request.param)


def _fit_scale(wrong: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> tuple[float, float]:
    """The factor c that makes c × right nearest to wrong, and the relative rest."""
    assert wrong.keys() == right.keys()
    a = torch.cat([wrong[name].flatten() for name in sorted(wrong)])
    b = torch.cat([right[name].flatten() for name in sorted(right)])
    scale = float(a @ b / (b @ b))
    return scale, float((a - scale * b).norm() / a.norm())


def _list_changed(right: Case, wrong: Case, kind: str) -> list[str]:
    before, after = right.pick(kind), wrong.pick(kind)
    return [name for name in before if not torch.equal(before[name], after[name])]


def _count(labels: list[list[int]]) -> int:
    return sum(label != -100 for row in labels for label in row[1:])


def test_every_fault_says_that_it_was_in_force(runs: Runs) -> None:
    for slug in CASES[runs.framework]:
        right, wrong = runs.read_pair(slug)
        assert was_in_force(fault(slug), log=wrong.log), slug
        assert not was_in_force(fault(slug), log=right.log), slug


def test_wrong_loss_count_scales_every_gradient_by_count_over_count_plus_one(runs: Runs) -> None:
    right, wrong = runs.read_pair("wrong-loss-count")
    count = sum(_count(labels) for labels in right.seen["labels"][:2])
    scale, rest = _fit_scale(wrong.pick("gradient1"), right.pick("gradient1"))
    assert scale == pytest.approx(count / (count + 1), rel=1e-6)
    assert rest < 1e-5
    assert wrong.seen["backward"][0] == pytest.approx(right.seen["backward"][0] * count / (count + 1), rel=1e-6)


def test_labels_shifted_twice_are_shifted_at_the_door_and_divide_by_their_own_count(runs: Runs) -> None:
    right, wrong = runs.read_pair("labels-shifted-twice")
    for before, after in zip(right.seen["labels"], wrong.seen["labels"], strict=True):
        assert after == [[*row[1:], -100] for row in before]
    if runs.framework == "trl":  # its fused head says how many tokens it scored
        assert wrong.seen["counted"] == [_count(labels) for labels in wrong.seen["labels"]]
    assert _fit_scale(wrong.pick("gradient1"), right.pick("gradient1"))[1] > 0.1


def test_rmsnorm_eps_is_ten_times_the_configured_one_in_every_norm(runs: Runs) -> None:
    right, wrong = runs.read_pair("rmsnorm-eps")
    assert set(right.seen["eps"].values()) == {1e-6}
    assert wrong.seen["eps"] == pytest.approx(dict.fromkeys(right.seen["eps"], 1e-5), rel=1e-12)
    assert len(right.seen["eps"]) == 9  # two a layer, q and k in each layer, and the final one
    assert _fit_scale(wrong.pick("gradient1"), right.pick("gradient1"))[1] > 1e-4


@in_the_trainer_alone
def test_attention_scale_is_one_percent_up_in_the_first_layer_only(runs: Runs) -> None:
    right, wrong = runs.read_pair("attention-scale")
    ratios = {name: wrong.seen["scaling"][name] / scale for name, scale in right.seen["scaling"].items()}
    assert ratios == pytest.approx({"model.layers.0.self_attn": 1.01, "model.layers.1.self_attn": 1.0}, rel=1e-12)
    assert _fit_scale(wrong.pick("gradient1"), right.pick("gradient1"))[1] > 1e-4


@in_the_trainer_alone
@pytest.mark.parametrize(
    ("slug", "name", "factor", "rows_or_columns"),
    [
        ("weight-scaled", "model.layers.0.mlp.down_proj.weight", 1.001, (slice(None), slice(None))),
        ("head-scaled", "model.layers.0.self_attn.o_proj.weight", 1.01, (slice(None), slice(16, 32))),
        ("one-expert-scaled", "model.layers.0.mlp.experts.down_proj", 1.01, (1,)),
    ],
)
def test_a_scaled_weight_differs_where_it_says_and_nowhere_else(
    runs: Runs, slug: str, name: str, factor: float, rows_or_columns: Any
) -> None:
    right, wrong = runs.read_pair(slug)
    assert _list_changed(right, wrong, "before") == [name]
    expected = right.pick("before")[name]
    expected[rows_or_columns] *= factor
    assert torch.allclose(wrong.pick("before")[name], expected, rtol=1e-6, atol=0)


def test_norms_decay_and_nothing_else_changes_group(runs: Runs) -> None:
    right, wrong = runs.read_pair("decay-on-norms")
    decaying, plain = (
        {n: g["weight_decay"] for g in case.seen["groups"] for n in g["names"]} for case in (wrong, right)
    )
    moved = {name for name in plain if decaying[name] != plain[name]}
    assert moved == {name for name in plain if "norm" in name}
    assert len(moved) == 9
    assert {plain[name] for name in moved} == {0.0}
    assert {decaying[name] for name in moved} == {0.1}


def _read_decay(case: Case) -> dict[str, float]:
    return {name: group["weight_decay"] for group in case.seen["groups"] for name in group["names"]}


def test_clipping_before_the_end_scales_earlier_micro_batches_more(runs: Runs) -> None:
    right, wrong = runs.read_pair("clip-before-accumulation")
    norms = [float(torch.cat([g.flatten() for g in case.pick("gradient1").values()]).norm()) for case in (right, wrong)]
    assert norms[0] > 2.0
    assert norms[1] == pytest.approx(1.0, rel=1e-4)
    assert _fit_scale(wrong.pick("gradient1"), right.pick("gradient1"))[1] > 0.1
    assert wrong.log.read_text().count(fault("clip-before-accumulation").marker) == 4  # a micro-batch each


def test_a_frozen_adapter_has_no_gradient_and_does_not_move(runs: Runs) -> None:
    right, wrong = runs.read_pair("adapter-frozen")
    frozen = set(right.seen["trainable"]) - set(wrong.seen["trainable"])
    prefix = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    assert frozen == {f"{prefix}A.default.weight", f"{prefix}B.default.weight"}
    assert frozen & wrong.pick("gradient1").keys() == set()
    assert _list_changed_in_training(wrong) == set(wrong.seen["trainable"])
    assert _list_changed_in_training(right) == set(right.seen["trainable"])


def _list_changed_in_training(case: Case) -> set[str]:
    before, after = case.pick("before"), case.pick("after")
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_one_label_a_micro_batch_is_ignored_behind_the_door(runs: Runs) -> None:
    right, wrong = runs.read_pair("label-masked")
    assert wrong.seen["labels"] == right.seen["labels"]
    if runs.framework == "trl":
        assert wrong.seen["counted"] == [counted - 1 for counted in right.seen["counted"]]
    assert wrong.seen["backward"][0] < right.seen["backward"][0]
    assert _fit_scale(wrong.pick("gradient1"), right.pick("gradient1"))[1] > 0.01


def test_micro_batch_means_weigh_each_micro_batch_by_its_own_count(runs: Runs) -> None:
    right, wrong = runs.read_pair("micro-batch-mean")
    counts = [_count(labels) for labels in right.seen["labels"][:2]]
    assert counts[0] != counts[1]
    for index, count in enumerate(counts):
        expected = right.seen["backward"][index] * sum(counts) / count / 2
        assert wrong.seen["backward"][index] == pytest.approx(expected, rel=1e-5)
    assert _fit_scale(wrong.pick("gradient1"), right.pick("gradient1"))[1] > 0.01


@in_the_trainer_alone
def test_rotary_frequencies_are_those_that_bf16_holds(runs: Runs) -> None:
    right, wrong = runs.read_pair("rope-bf16")
    name = "buffer/model.rotary_emb.inv_freq"
    assert torch.equal(wrong.tensors[name], right.tensors[name].bfloat16().float())
    assert not torch.equal(wrong.tensors[name], right.tensors[name])
    assert _fit_scale(wrong.pick("gradient1"), right.pick("gradient1"))[1] > 1e-5


@in_trl_alone
def test_packed_positions_run_on_where_they_should_restart(runs: Runs) -> None:
    right, wrong = runs.read_pair("packed-positions")
    for before, after in zip(right.seen["positions"], wrong.seen["positions"], strict=True):
        assert sum(position == 0 for row in before for position in row) > len(before)
        assert after == [list(range(len(row))) for row in before]
    assert wrong.seen["labels"] == right.seen["labels"]
    assert _fit_scale(wrong.pick("gradient1"), right.pick("gradient1"))[1] > 0.1


@in_the_trainer_alone
def test_beta2_is_wrong_and_the_first_step_is_blind_to_it(runs: Runs) -> None:
    right, wrong = runs.read_pair("beta2-wrong")
    assert {tuple(group["betas"]) for group in right.seen["groups"]} == {(0.9, 0.999)}
    assert {tuple(group["betas"]) for group in wrong.seen["groups"]} == {(0.9, 0.99)}
    assert _list_changed(right, wrong, "gradient1") == []
    assert _list_changed(right, wrong, "after") != []


@in_the_trainer_alone
def test_the_schedule_is_one_step_ahead(runs: Runs) -> None:
    right, wrong = runs.read_pair("warmup-off-by-one")
    assert right.seen["rates"] == pytest.approx([0.0, 0.5e-3])
    assert wrong.seen["rates"] == pytest.approx([0.5e-3, 0.0])  # warm-up over 2 of 2 steps, then nothing is left


@in_the_trainer_alone
def test_only_one_parameter_has_a_zero_gradient(runs: Runs) -> None:
    right, wrong = runs.read_pair("gradient-zeroed")
    assert _list_changed(right, wrong, "gradient1") == ["model.layers.1.self_attn.k_proj.weight"]
    assert float(wrong.pick("gradient1")["model.layers.1.self_attn.k_proj.weight"].abs().max()) == 0.0


def test_an_undivided_loss_doubles_what_is_back_propagated_with_two_micro_batches(runs: Runs) -> None:
    right, wrong = runs.read_pair("accumulation-not-divided")
    assert wrong.seen["backward"][:2] == pytest.approx([2 * loss for loss in right.seen["backward"][:2]], rel=1e-6)
    scale, rest = _fit_scale(wrong.pick("gradient1"), right.pick("gradient1"))
    assert scale == pytest.approx(2.0, rel=1e-6)
    assert rest < 1e-6
