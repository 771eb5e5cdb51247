"""A run that is saved, ended and taken up by a new process goes on as if it had never stopped.

Reference: an identity, the uninterrupted run: after N steps, save, end, resume, the next step has the same batch,
learning rate, optimizer state, weights, random state, loss, gradients and update. No model code of ours is involved.
On one kind of CPU the two repeat bit by bit; elsewhere they may differ by the noise floor of the reference step. What
several ranks recorded is put together.
Catches: an optimizer, schedule, weight or random state that is not restored, data that start over or are skipped
(`automodel-optimizer-scheduler-state-not-restored`, `slime-lr-restarts-on-resume`, `verl-resume-sampler-epoch-zero`,
`hf-resume-order-wrong-after-first-epoch`, `accelerate-skip-batches-resets-epoch`, `automodel-rng-saved-per-dp-rank`,
`automodel-scheduler-resume-weight-decay-order`, `mcore-lr-groups-overridden-on-load`).
Cannot see: what shows only from the second step after the resume on (a scheduler whose counter was lost while the
optimizer kept its rate), a resume in a later epoch than the one that the run's steps reach, and faults that both runs
have.
Cost: one more framework run, in two processes.
"""

from __future__ import annotations

from checks.captures.capture import Capture
from checks.check import Check, inconclusive
from checks.material import Material
from checks.parallel.tensors import NotJoined
from checks.parallel.united import unite
from checks.repeats.allowance import Allowance, find_difference
from checks.repeats.rows import SHOWN_TOKENS, RowDifference
from checks.repeats.stages import (
    WHOLE_STATE,
    Pair,
    Stage,
    compare_batch,
    compare_gradients,
    compare_loss,
    compare_random,
    compare_rate,
    compare_state,
    compare_update,
    compare_weights,
    drops_out,
)
from checks.roles import Role, spec_of
from checks.spec import RunSpec
from checks.tolerance import MULTIPLES, USEFUL_TENSOR_LIMIT
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "checkpoint.resume"
COUNTED = {
    "batch": "tensors of the batch",
    "learning rate": "settings of the optimizer",
    "optimizer state": "optimizer states",
    "weights": "weights",
    "random state": "random states",
    "loss": "losses",
    "gradients": "gradients",
    "update": "tensors of the update",
}
NEEDED = ("batch", "weights", "gradients", "update")
"""Stages without which nothing of worth was compared."""


def judge(material: Material) -> Verdict:
    whole, resumed = material.whole, material.capture_of(Role.RESUMED)
    if whole is None or not whole.steps:
        return inconclusive(NAME, material.why_not())
    if resumed is None or not resumed.steps:
        return inconclusive(NAME, "the run that is saved and resumed left no step to compare; see run.completes")
    try:
        resumed = unite(resumed, processes=material.spec.processes, dp_size=material.spec.dp_size)
    except NotJoined as error:
        return inconclusive(NAME, f"the run that is saved and resumed: {error}")
    step = material.spec.steps
    saved_after = spec_of(Role.RESUMED, material.spec).resume_after or 0
    if step not in whole.steps or step - saved_after not in resumed.steps:
        return inconclusive(NAME, f"step {step} was not recorded in both runs; record the last step of each")
    allowance = _allow(material, whole, resumed)
    if isinstance(allowance, str):
        return inconclusive(NAME, allowance)
    pair = Pair(resumed, step - saved_after, whole, step, allowance)
    batch, rows = compare_batch(pair)
    random = compare_random(pair)
    dropout = tuple(drops_out(whole.step(step)))
    rate, state = compare_rate(pair), compare_state(pair)
    stages = (
        batch,
        # Rates are kept with the moments: where all of it was lost, that is the cause.
        *((state, rate) if state.first_wrong == WHOLE_STATE else (rate, state)),
        compare_weights(pair),
        *((random,) if dropout else ()),
        compare_loss(pair),
        compare_gradients(pair),
        compare_update(pair),
    )
    return _decide(pair, stages, rows, random=random, saved_after=saved_after)


def _allow(material: Material, whole: Capture, resumed: Capture) -> Allowance | str:
    """How far the runs may differ, or why that is not known."""
    why = find_difference(whole, resumed)
    if why is None:
        return Allowance("the same kernels on one kind of CPU repeat bit by bit")
    reference = material.first_reference()
    if reference is None:
        return f"{why}, so that they need not repeat bit by bit, and there is no noise floor: {material.why_not()}"
    return Allowance(why, reference, MULTIPLES[material.spec.precision])


def _decide(
    pair: Pair, stages: tuple[Stage, ...], rows: RowDifference | None, *, random: Stage, saved_after: int
) -> Verdict:
    measurements = tuple(
        Measurement(stage.name, stage.worst, stage.limit, stage.holds, limit=2.0 * stage.limit) for stage in stages
    )
    limits = {stage.name: 2.0 * stage.limit for stage in stages if stage.compared}
    evidence = {
        "saved_after": saved_after,
        "repeatable": pair.allowance.exact,
        "allowance": pair.allowance.why,
        "stages": [[stage.name, stage.compared, stage.worst, stage.limit, list(stage.wrong)] for stage in stages],
        "random_state": list(random.wrong),
        "rows": None if rows is None else _describe_rows(rows),
    }
    wrong = [stage for stage in stages if not stage.holds]
    empty = [stage.name for stage in stages if stage.name in NEEDED and not stage.compared]
    where = f"step {saved_after + 1}, the first after a save and a resume,"
    if wrong:
        first = wrong[0]
        others = f"; after it also in {_join([stage.name for stage in wrong[1:]])}" if wrong[1:] else ""
        return Verdict(
            NAME,
            Status.FAIL,
            f"{where} is not the uninterrupted run's, first in its {first.name}: {first.sentence}{others}",
            measurements,
            limits,
            pattern=Pattern.STATE_TRANSFER,
            first_wrong=first.first_wrong,
            evidence=evidence,
        )
    if empty:
        sentence = f"nothing was recorded of the step's {_join(empty)}"
        return inconclusive(NAME, sentence, measurements=measurements, evidence=evidence)
    if max(limits.values()) > USEFUL_TENSOR_LIMIT:
        sentence = f"{pair.allowance.why}, and in this precision a tensor could be off by its own size unseen"
        return inconclusive(NAME, f"{sentence}; ask for deterministic kernels", measurements=measurements)
    compared = _join([f"{stage.compared} {COUNTED[stage.name]}" for stage in stages])
    worst = max(stage.worst for stage in stages)
    sentence = f"{where} is the uninterrupted run's within {worst:.2g}: {compared}"
    if not random.holds:
        sentence += "; its random state is another, which nothing depends on while dropout is off"
    return Verdict(NAME, Status.PASS, sentence, measurements, limits, evidence=evidence)


def _describe_rows(rows: RowDifference) -> dict[str, object]:
    return {
        "place": rows.first,
        "got": list(rows.got[:SHOWN_TOKENS]),
        "wanted": list(rows.wanted[:SHOWN_TOKENS]),
        "same_rows": rows.same_rows,
        "of_step_1": rows.earlier,
        "rows": rows.expected,
    }


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def needs_two_steps(spec: RunSpec) -> str | None:
    return None if spec.steps >= 2 else "a run of one step has no step after which it could be saved and resumed"


CHECK = Check(
    NAME,
    "a saved and resumed run goes on as if it had not stopped",
    __doc__ or "",
    judge,
    roles=(Role.RUN, Role.RESUMED),
    applies=needs_two_steps,
)
