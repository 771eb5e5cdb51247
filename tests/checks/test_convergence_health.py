"""convergence.health: what does not look like training."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from checks.captures.log import LogRecord
from checks.convergence import convergence_health
from checks.convergence.convergence_health import find_course, noise_of
from checks.material import Material
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor

STEPS = 60


def losses(*, fall: float = 3.0, noise: float = 0.05, seed: int = 0) -> list[float]:
    generator = random.Random(seed)
    return [6.0 - fall * step / STEPS + generator.gauss(0.0, noise) for step in range(STEPS)]


def judge(material: Material, edit: Editor, curve: list[float], norms: list[float] | None = None) -> Verdict:
    assert material.capture is not None
    editing = edit(material.capture)
    norms = norms or [1.0] * len(curve)
    editing.log = tuple(
        LogRecord(i, loss, norm, 1e-3) for i, (loss, norm) in enumerate(zip(curve, norms, strict=True), 1)
    )
    return convergence_health.judge(replace(material, run=replace(material.run, capture=editing.save())))


@pytest.mark.parametrize("seed", range(20))
def test_a_curve_that_falls_passes_whatever_its_noise(healthy: Material, edit: Editor, seed: int) -> None:
    verdict = judge(healthy, edit, losses(noise=0.2, seed=seed))
    assert verdict.status is Status.PASS, verdict.sentence
    assert verdict.sentence.startswith("over 60 steps the loss falls from ")


def test_a_spike_that_comes_back_is_training(healthy: Material, edit: Editor) -> None:
    curve = losses()
    curve[30] += 3.0
    assert judge(healthy, edit, curve).status is Status.PASS


def test_a_spike_that_stays_fails_at_its_step(healthy: Material, edit: Editor) -> None:
    curve = losses()
    verdict = judge(healthy, edit, [*curve[:30], *(loss + 3.0 for loss in curve[30:])])
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "step 31")
    assert "does not come back within 10 steps" in verdict.sentence


@pytest.mark.parametrize(("fall", "said"), [(-2.0, "the loss rises from"), (0.0, "the loss stays at")])
def test_a_loss_that_rises_or_stays_fails(healthy: Material, edit: Editor, fall: float, said: str) -> None:
    verdict = judge(healthy, edit, losses(fall=fall))
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith(said)


def test_what_is_no_number_fails_however_short_the_run(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit, [5.0, math.nan])
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.PRECISION)
    assert verdict.sentence == "the loss of step 2 is nan"
    assert judge(healthy, edit, [5.0], [math.inf]).sentence == "the gradient norm of step 1 is inf"


def test_a_norm_that_explodes_or_dies_fails(healthy: Material, edit: Editor) -> None:
    norms = [1.0] * STEPS
    norms[40] = 101.0
    exploded = judge(healthy, edit, losses(), norms)
    assert exploded.sentence == "the gradient norm of step 41 is 101, 101 times the usual"
    assert judge(healthy, edit, losses(), [1.0] * 40 + [99.0] + [1.0] * 19).status is Status.PASS
    dead = judge(healthy, edit, losses(), [1.0] * 50 + [1e-7] * 10)
    assert (dead.sentence, dead.pattern) == ("the gradient norm is dead from step 51 on", Pattern.OBJECTIVE_SCALE)


def test_few_steps_are_skipped_or_inconclusive(healthy: Material, edit: Editor) -> None:
    applies = convergence_health.CHECK.applies
    assert applies(replace(healthy.spec, steps=20)) is None
    assert applies(healthy.spec) == "3 steps are too few to tell training from noise; set steps=20 or more"
    verdict = judge(healthy, edit, losses()[:19])
    assert verdict.sentence == "only 19 steps were logged; 20 tell training from noise"
    assert judge(healthy, edit, []).sentence == "the framework logged no loss"


def test_without_a_rate_the_loss_may_stay() -> None:
    assert find_course([5.0] * 40, lr=0.0) is None
    assert find_course([5.0] * 40, lr=1e-3) is not None


def test_noise_is_that_between_neighbours() -> None:
    assert noise_of([1.0, 2.0, 1.0, 2.0]) == pytest.approx(1.4826 / math.sqrt(2.0))
    assert noise_of([1.0, 2.0, 3.0]) == noise_of([3.0, 2.0, 1.0])
    assert noise_of([1.0]) == 0.0
