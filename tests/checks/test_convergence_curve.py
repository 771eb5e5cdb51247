"""convergence.curve: rows to batches, the reference's training against torch, the band, its power, the verdict."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.captures.log import LogRecord
from checks.convergence import convergence_curve
from checks.convergence.band import collect_evidence, compare_curve, find_limits
from checks.convergence.convergence_curve import leave_to_single_steps
from checks.faults import fault
from checks.material import Material
from checks.references import budget, trajectory
from checks.references.budget import OverBudget, check_work
from checks.references.convention import learn_convention
from checks.references.course import Course, UnknownRows, read_course
from checks.references.kept import IGNORED
from checks.references.model import State, choose_source
from checks.references.step import count_targets, forward_logits, lay_out
from checks.references.training import Trained, Training, train
from checks.references.trajectory import Power, Trajectory, compute_trajectory, find_floors, find_undecided, leaves
from checks.roles import Role
from checks.spec import RunSpec
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.data_runs import Batch, batch_up, make_material, make_spec, pack, tokenize_all, write_data

ROWS = [{"text": f"{number} hens lay {5 * number} eggs"} for number in range(6)]
NONE = State({}, {})


@pytest.fixture
def small(tmp_path: Path) -> RunSpec:
    return make_spec(write_data(tmp_path, ROWS), steps=3, max_grad_norm=0.5)


def record(spec: RunSpec, directory: Path, batches: list[Batch] | None = None, **options: Any) -> Material:
    batches = batches or batch_up(tokenize_all(spec))
    return make_material(spec, batches, directory, **options)


def follow(material: Material) -> Course:
    assert material.capture is not None
    assert material.dataset is not None
    return read_course(material.spec, material.capture, learn_convention(material.dataset, ()))


def make_training(material: Material) -> Training:
    source = choose_source(material.spec.model)
    training = Training(material.spec, source, NONE, frozenset(), frozenset(), {}, follow(material))
    names = frozenset(name for name, _ in training.build(dtype=torch.float64, attention="eager").named_parameters())
    return replace(training, trainable=names, decaying=frozenset(name for name in names if "norm" not in name))


def test_the_batches_of_every_step_are_those_that_the_framework_made(small: RunSpec, tmp_path: Path) -> None:
    batches = batch_up(tokenize_all(small))
    course = follow(record(small, tmp_path, batches))
    assert len(course) == 3
    for step, batch in zip(course, batches, strict=True):
        (micro,) = step
        mask, shifted = batch["attention_mask"].bool(), batch["labels"][:, 1:]
        assert torch.equal(micro.input_ids[mask], batch["input_ids"][mask])
        assert torch.equal(micro.targets[:, :-1], shifted)
        assert bool((micro.targets[:, -1] == IGNORED).all())


def test_documents_of_a_packed_row_are_rows_of_their_own(small: RunSpec, tmp_path: Path) -> None:
    ids = [one["input_ids"] for one in tokenize_all(small)]
    spec = replace(small, packing=True, steps=2)
    first, second = follow(record(spec, tmp_path, [pack(ids[:3]), pack(ids[3:])]))
    assert [document.stop for document in first[0].documents] == [len(row) for row in ids[:3]]
    assert first[0].input_ids[1, : len(ids[1])].tolist() == ids[1]
    assert count_targets(second) == sum(len(row) - 1 for row in ids[3:])


def test_rows_that_cannot_be_known_are_not_guessed(small: RunSpec, tmp_path: Path) -> None:
    batches = batch_up(tokenize_all(small))
    other = {name: value.clone() for name, value in batches[1].items()}
    other["input_ids"][0, 1] += 1
    for name in "abc":
        (tmp_path / name).mkdir()
    with pytest.raises(UnknownRows, match=r"1 of 6 rows are no sample of the data set \(see data.template\)"):
        follow(record(small, tmp_path / "a", [batches[0], other, batches[2]]))
    with pytest.raises(UnknownRows, match="no row of step 3 was printed"):
        follow(record(small, tmp_path / "b", batches[:2]))

    def lose(manifest: dict[str, Any]) -> None:
        manifest["missing"] = [{"rank": 0, "step": None, "what": "rows", "why": "too many"}]

    with pytest.raises(UnknownRows, match="not all rows were printed: too many"):
        follow(record(small, tmp_path / "c", batches, edit=lose))


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw", "weight_decay": 0.1, "schedule": "linear", "warmup_steps": 1, "lr": 0.01},
        {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1, "lr": 0.1},
    ],
    ids=["adamw", "sgd"],
)
def test_the_training_is_that_of_torch(small: RunSpec, tmp_path: Path, settings: dict[str, Any]) -> None:
    training = make_training(record(replace(small, **settings), tmp_path))
    model = training.build(dtype=torch.float64, attention="eager")
    losses = train(training, model, layout="documents", exact=True).losses
    assert losses == pytest.approx(train_with_torch(training), abs=1e-12)
    assert losses[2] < losses[0] - 0.01


def train_with_torch(training: Training) -> list[float]:
    spec = training.spec
    model = training.build(dtype=torch.float64, attention="eager")
    groups = [
        {"params": [p for n, p in model.named_parameters() if (n in training.decaying) is decay], "weight_decay": value}
        for decay, value in ((True, spec.weight_decay), (False, 0.0))
    ]
    optimizer: torch.optim.Optimizer
    if spec.optimizer == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=spec.lr)
    else:
        optimizer = torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum)
    factors = {"linear": (0.0, 1.0, 0.5), "constant": (1.0, 1.0, 1.0)}[spec.schedule]
    losses = []
    for micro_batches, factor in zip(training.course, factors, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = spec.lr * factor
        optimizer.zero_grad()
        ((batch,),) = lay_out(micro_batches, "right")
        logits = forward_logits(model, batch)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.max_grad_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_a_run_whose_loss_is_lost_ends_there(small: RunSpec, tmp_path: Path) -> None:
    training = make_training(record(replace(small, lr=1e300, max_grad_norm=0.0), tmp_path))
    done = train(training, training.build(dtype=torch.float64, attention="eager"), layout="right", exact=True)
    assert math.isfinite(done.losses[0])
    assert len(done.losses) == len(done.choices) == 3
    assert math.isnan(done.losses[-1])


def test_the_whole_reference_has_a_band_and_a_power_that_leaves_it(small: RunSpec, tmp_path: Path) -> None:
    training = make_training(record(replace(small, steps=3), tmp_path))
    found = compute_trajectory(training)
    assert len(found.runs) == len(trajectory.MOVES) == 6
    assert len(set(found.runs)) > 3
    assert found.undecided is None
    assert all(floor < 1e-4 for floor in found.floors)
    assert all(allowed == 8.0 * floor for allowed, floor in zip(found.allowed, found.floors, strict=True))
    assert found.power is not None
    assert found.power.rate is not None
    assert found.power.rate < 0.05
    assert leaves(found.power.losses, found.exact, [9.0 * floor for floor in found.floors]) is not None
    assert found.power.losses[0] == pytest.approx(found.exact[0], abs=1e-12)
    assert not found.power.gradients  # the norm is clipped, and AdamW divides by the rest
    half = train(
        training.with_rate(1.0 + found.power.rate / 4.0),
        training.build(dtype=torch.float64, attention="eager"),
        layout="right",
        exact=True,
    )
    assert leaves(half.losses, found.exact, [9.0 * floor for floor in found.floors]) is None


def test_floors_grow_with_the_steps_and_hold_the_loss_own_round_off() -> None:
    exact, runs = (4.0, 0.5, 2.0), [(4.5, 0.5, 2.25), (4.0, 1.25, math.nan)]
    assert find_floors(exact, runs[:1], epsilon=0.125) == (0.5 + 0.5, 0.5 + 0.125, 0.5 + 0.25)
    assert find_floors(exact, runs, epsilon=0.125) == (0.5 + 0.5, 0.75 + 0.125, math.inf)


def test_a_curve_leaves_where_it_first_exceeds_what_is_allowed() -> None:
    assert leaves((1.0, 2.0, 3.0), (1.0, 2.5, 5.0), (0.0, 0.5, 1.0)) == 3
    assert leaves((1.0, math.nan), (1.0, 2.0), (1.0, 1.0)) == 2
    assert leaves((1.0, 2.0), (1.0, 2.0), (0.0, 0.0)) is None


def test_a_choice_within_the_noise_is_undecided_from_its_step_on() -> None:
    sharp = Trained((1.0, 1.0), ((torch.tensor([[0.9, 0.1]]),), (torch.tensor([[0.5, 0.5 - 1e-6]]),)))
    moved = [
        Trained((1.0, 1.0), ((sharp.choices[0][0] + by,), (sharp.choices[1][0] + by,))) for by in (1e-8, 1e-6, 0.11)
    ]
    assert find_undecided(sharp, moved[:1]) is None
    assert find_undecided(sharp, moved[:2]) == 2
    assert find_undecided(sharp, moved) == 1
    assert find_undecided(sharp, [Trained((1.0, 1.0), ((), ()))]) == 1
    assert find_undecided(Trained((1.0,), ((),)), [Trained((1.0,), ((),))]) is None


def test_a_reference_beyond_the_budget_is_refused_with_the_steps_that_fit(
    small: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "count_parameters", lambda checkpoint: 1_000_000)
    check_work(small.model, steps=100)
    with pytest.raises(OverBudget, match=r"101 steps of 1,000,000 parameters .* 1e\+08 .*; set steps=100, or"):
        check_work(small.model, steps=101)
    # Nobody asked for the curve of a short run: it is trained along only where that takes seconds.
    check_work(small.model, steps=10)
    with pytest.raises(OverBudget, match=r"11 steps of 1,000,000 parameters .* 1e\+07 "):
        check_work(small.model, steps=11)


EXACT = (6.0, 5.5, 5.0)
KNOWN = Trajectory(EXACT, (EXACT, EXACT), (1e-6, 1e-5, 1e-5), 8.0, power=Power(0.01, (6.0, 5.4, 4.9), False))


def judge(material: Material, edit: Editor, losses: tuple[float | None, ...], known: Trajectory = KNOWN) -> Verdict:
    assert material.capture is not None
    editing = edit(material.capture)
    editing.log = tuple(LogRecord(step, loss, None, None) for step, loss in enumerate(losses, start=1))
    run = replace(material.run, capture=editing.save())
    return convergence_curve.judge(replace(material, run=run, trajectory=known))


@pytest.fixture
def long(healthy: Material) -> Material:
    """The healthy run, as if it had been asked for its curve."""
    return replace(healthy, spec=replace(healthy.spec, steps=20))


def test_losses_in_the_band_pass_and_state_what_would_have_been_seen(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit, (6.0 + 7e-6, 5.5 - 7e-5, 5.0))
    assert verdict.status is Status.PASS
    assert verdict.sentence == (
        "the losses of 3 steps stay in the band of 2 runs of the reference; a learning rate off by 0.01 of itself "
        "would be seen; doubled gradients would not"
    )
    assert verdict.detection_limits == {
        "learning rate": 0.01,
        "scale of the logged loss": pytest.approx(9e-6 / 6.0),
    }
    first, worst = verdict.measurements
    assert first.value == pytest.approx(7e-6)
    assert (first.threshold, first.floor) == (8e-6, 1e-6)
    assert worst.name == "loss of step 1, the furthest"
    assert json.loads(json.dumps(verdict.evidence, allow_nan=False))["reference"] == [6.0, 5.5, 5.0]


def test_a_loss_outside_fails_at_its_step(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit, (6.0, 5.5 + 9e-5, 5.0))
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.OBJECTIVE_SCALE)
    assert verdict.first_wrong == "loss of step 2"
    assert "so that an update up to step 1 was not that of the step's own gradients" in verdict.sentence
    at_once = judge(healthy, edit, (6.1, 5.5, 5.0))
    assert (at_once.first_wrong, at_once.pattern) == ("loss of step 1", None)
    assert "no update was made yet" in at_once.sentence
    lost = judge(healthy, edit, (6.0, 5.5, math.nan))
    assert (lost.status, lost.first_wrong) == (Status.FAIL, "loss of step 3")
    json.dumps(lost.evidence, allow_nan=False)


def test_a_curve_that_would_hide_a_doubled_rate_is_inconclusive(
    long: Material, healthy: Material, edit: Editor
) -> None:
    blind = replace(KNOWN, power=Power(None, EXACT, True))
    verdict = judge(long, edit, EXACT, blind)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.endswith("not even a doubled learning rate would be seen; doubled gradients would")
    short = judge(healthy, edit, EXACT, blind)
    assert short.status is Status.SKIPPED
    assert short.sentence.endswith("doubled gradients would; 3 steps need no curve, 20 or more do")


@pytest.mark.parametrize(
    ("losses", "said"),
    [((), "the framework logged no loss"), ((6.0, None, 5.0), "the framework logged no loss of step 2")],
)
def test_without_a_logged_loss_nothing_is_judged(
    long: Material, edit: Editor, losses: tuple[float | None, ...], said: str
) -> None:
    verdict = judge(long, edit, losses)
    assert (verdict.status, verdict.sentence) == (Status.INCONCLUSIVE, said)


def test_what_a_short_run_did_not_log_is_taken_from_its_capture(healthy: Material, edit: Editor) -> None:
    """The healthy run's steps 1 and 3 are captured; its losses are those of the forwards that were seen."""
    seen = {
        step: math.fsum(float(micro.token_losses_seen[micro.counted].sum()) for micro in micros)  # type: ignore[index]
        / sum(int(micro.counted.sum()) for micro in micros)
        for step, micros in healthy.batches.items()
    }
    exact = (seen[1], 0.0, seen[3])
    known = Trajectory(exact, (exact, exact), (1e-6, 1e-5, 1e-5), 8.0, power=Power(0.01, (6.0, 5.4, 4.9), False))
    verdict = judge(healthy, edit, (), known)
    assert verdict.status is Status.PASS
    assert verdict.sentence.startswith("the losses of 2 steps stay in the band")
    assert json.loads(json.dumps(verdict.evidence, allow_nan=False))["logged"][1] is None
    other = replace(known, exact=(seen[1], 0.0, seen[3] + 1e-4))
    assert judge(healthy, edit, (), other).first_wrong == "loss of step 3"
    # Its own log comes first: a loss that is logged otherwise than it is trained leaves the band.
    assert judge(healthy, edit, (None, None, seen[3] + 1e-4), known).first_wrong == "loss of step 3"
    only_first = replace(healthy, batches={1: healthy.batches[1]})
    assert judge(only_first, edit, (), known).status is Status.SKIPPED


def test_a_short_run_is_judged_up_to_the_first_choice_that_its_precision_leaves_open(
    long: Material, healthy: Material, edit: Editor
) -> None:
    losses = (6.0, 5.5, 5.0 + 1e-3)
    assert judge(healthy, edit, losses).first_wrong == "loss of step 3"
    late = judge(healthy, edit, losses, replace(KNOWN, undecided=3))
    assert (late.status, late.evidence["logged"]) == (Status.PASS, [6.0, 5.5, None])
    assert judge(healthy, edit, (6.0, 5.6, 5.0), replace(KNOWN, undecided=3)).first_wrong == "loss of step 2"
    early = judge(healthy, edit, losses, replace(KNOWN, undecided=2))
    assert early.status is Status.SKIPPED
    assert early.sentence.startswith(
        "the run's precision does not decide which experts or keys a token takes in step 2;"
    )
    assert judge(long, edit, losses, replace(KNOWN, undecided=3)).first_wrong == "loss of step 3"


def test_without_a_reference_the_reason_is_the_materials(long: Material, healthy: Material) -> None:
    why = "2 of 6 rows are no sample of the data set"
    verdict = convergence_curve.judge(replace(long, no_trajectory=why))
    assert (verdict.status, verdict.sentence) == (Status.INCONCLUSIVE, why)
    short = convergence_curve.judge(replace(healthy, no_trajectory=why))
    assert (short.status, short.sentence) == (Status.SKIPPED, f"{why}; 3 steps need no curve, 20 or more do")


def test_every_run_of_two_steps_or_more_has_a_course() -> None:
    spec = make_spec("gsm8k_sample", steps=1)
    assert convergence_curve.CHECK.applies(spec) == "a single step has no curve; set steps=3 or more"
    assert convergence_curve.CHECK.applies(replace(spec, steps=2)) is None
    assert convergence_curve.CHECK.roles == (Role.RUN,)


def test_the_curve_of_a_short_run_does_not_repeat_what_a_sharper_check_says(healthy: Material, edit: Editor) -> None:
    curve = judge(healthy, edit, (6.0, 5.5 + 9e-5, 5.0))
    passing = Verdict("step.gradients", Status.PASS, "agrees")
    failing = Verdict("step.gradients", Status.FAIL, "differs")
    alone = {"step.gradients": passing, convergence_curve.NAME: curve}
    assert leave_to_single_steps(alone, healthy.spec) is alone
    both = {"step.gradients": failing, convergence_curve.NAME: curve}
    left = leave_to_single_steps(both, healthy.spec)
    assert left["step.gradients"] is failing
    assert (left[convergence_curve.NAME].status, left[convergence_curve.NAME].sentence) == (
        Status.SKIPPED,
        "loss of step 2 leaves the band as well; see step.gradients",
    )
    assert leave_to_single_steps(both, replace(healthy.spec, steps=20)) is both


def test_the_plots_show_the_band_and_the_shifted_rate(healthy: Material, edit: Editor) -> None:
    assert healthy.capture is not None
    editing = edit(healthy.capture)
    editing.log = tuple(LogRecord(step, loss, None, None) for step, loss in enumerate(EXACT, start=1))
    comparison = compare_curve(editing.save(), KNOWN)
    plots: Any = collect_evidence(comparison)["plots"]
    names = [curve["name"] for curve in plots[0]["curves"]]
    assert names[:2] == ["logged", "reference"]
    assert names[-1] == "learning rate + 0.01"
    assert plots[1]["curves"][0]["y"] == [None, None, None]
    assert find_limits(replace(KNOWN, power=None)) == {"scale of the logged loss": pytest.approx(9e-6 / 6.0)}


def test_the_fault_of_single_steps_is_one_that_the_captured_ones_do_not_show() -> None:
    lost = fault("every-third-update-lost")
    assert (lost.check, lost.settings) == ("convergence.curve", ("steps=20",))
