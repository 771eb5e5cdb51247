"""The loss curve that a run should have: trained in float64, and in the run's own precision in forms that must not
matter, whose spread is the band.

Rounding grows with the steps: an optimizer that divides by its moments turns the sign of a gradient that is nearly
zero into a whole update. A band says how far two right runs part; each run in it has other roundings of the initial
weights, another layout of the batch or another attention kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from checks.captures.capture import Capture
from checks.probes.choices import ambiguous_from
from checks.references.auxiliary import AuxiliaryLoss
from checks.references.budget import check_memory, check_work
from checks.references.convention import Convention
from checks.references.course import read_course
from checks.references.model import State, choose_source, float64_mode
from checks.references.moving import move_inputs
from checks.references.reference import refuse_dropout, root_config
from checks.references.step import Layout
from checks.references.training import Trained, Training, train
from checks.spec import RunSpec
from checks.tolerance import EPSILON, MULTIPLES

MOVES = (1, 4, 16, 1, 4, 16)
"""By how many last bits the float32 weights of each run of the band are moved at its start. A step's own rounding is
that of many operations; the larger moves show more of the events that rounding brings about by chance. In 16 bits one
rounding shows as much, and each run's inputs are moved by one."""
LAYOUTS: tuple[Layout, ...] = ("right", "merged", "documents")
CHOOSING_MOVES = (256, 256)
"""Of the runs that stand for other expert choices, where the precision of the run does not decide one."""
PILOT = 2.0**-7
"""relative change of the learning rate by which the first guess of the power is made"""
LARGEST_SHIFT = 1.0
"""a learning rate twice the asked one: what is not seen of that is called blind"""
DOUBLED = 2.0
"""factor of the gradients in the run that asks whether their scale would be seen"""


@dataclass(frozen=True)
class Power:
    """`rate`: the smallest relative change of the learning rate that was computed and leaves the band, None where even
    a doubled rate stays inside; `losses`: the curve with it; `gradients`: whether doubled gradients leave the band.
    """

    rate: float | None
    losses: tuple[float, ...]
    gradients: bool


@dataclass(frozen=True)
class Trajectory:
    """Losses of each step, in nats. `exact`: in float64; `runs`: those of the band; `floors`: how far they part.

    `undecided`: the first step with an expert choice that the run's precision does not decide; from there on the band
    is that of runs that choose otherwise.
    """

    exact: tuple[float, ...]
    runs: tuple[tuple[float, ...], ...]
    floors: tuple[float, ...]
    multiple: float
    undecided: int | None = None
    shared: tuple[str, ...] = ()
    name: str = ""
    power: Power | None = None

    @property
    def allowed(self) -> tuple[float, ...]:
        """How far a right run may be from `exact`, a step each."""
        return tuple(self.multiple * floor for floor in self.floors)


def compute_trajectory(training: Training) -> Trajectory:
    """Train the reference over the whole course, once for each run of the band, and as often as its power takes.

    Raises:
        OverBudget: in memory, or in steps times parameters.
    """
    check_memory(training.source.checkpoint)
    check_work(training.source.checkpoint, steps=len(training.course))
    sharp = _train_exactly(training, layout="documents")
    exact = sharp.losses
    band = [_train_in_band(training, number, bits=bits) for number, bits in enumerate(MOVES)]
    precision = training.spec.precision
    undecided = find_undecided(sharp, [run for run, layout in band if layout == "documents"])
    runs = [run.losses for run, _ in band]
    floors = find_floors(exact, runs, epsilon=EPSILON[precision])
    if undecided is not None:
        wide = [
            _train_in_band(training, number, bits=bits)[0].losses
            for number, bits in enumerate(CHOOSING_MOVES, start=len(MOVES))
        ]
        runs += wide
        floors = floors[: undecided - 1] + find_floors(exact, runs, epsilon=EPSILON[precision])[undecided - 1 :]
    limits = [(MULTIPLES[precision] + 1.0) * floor for floor in floors]
    return Trajectory(
        exact=exact,
        runs=tuple(runs),
        floors=floors,
        multiple=MULTIPLES[precision],
        undecided=undecided,
        shared=training.source.shared,
        name=training.source.name,
        power=_measure_power(training, exact, limits),
    )


def find_undecided(sharp: Trained, noisy: Sequence[Trained]) -> int | None:
    """The first step, from 1, with a choice whose margin rounding could overcome; None where every one is decided."""
    for step, cuts in enumerate(sharp.choices, start=1):
        for run in noisy:
            others = run.choices[step - 1]
            if len(others) != len(cuts):
                return step
            for cut, other in zip(cuts, others, strict=True):
                if ambiguous_from([cut], [other]) < cut.shape[0]:
                    return step
    return None


def refer_run(
    spec: RunSpec, capture: Capture, state: State, *, convention: Convention, decaying: frozenset[str]
) -> Trajectory:
    """The curve that a recorded run should have: `state` is its start, where no checkpoint holds it.

    Raises:
        NoReference: dropout is on.
        UnknownRows: what the run trained on in some step cannot be told.
        OverBudget: in memory, or in steps times parameters.
    """
    step = min(capture.steps)
    refuse_dropout(capture, step)
    training = Training(
        spec=spec,
        source=choose_source(spec.model),
        state=state,
        trainable=frozenset(capture.step(step).trainable),
        decaying=decaying,
        config=root_config(capture, step),
        course=read_course(spec, capture, convention),
    )
    return compute_trajectory(training)


def find_floors(exact: Sequence[float], runs: Sequence[Sequence[float]], *, epsilon: float) -> tuple[float, ...]:
    """The largest deviation of a run of the band up to each step, with the round-off of the loss.

    Up to each step, because deviations grow, and one step's may by luck be small in all runs.
    """
    floors: list[float] = []
    widest = 0.0
    for step, loss in enumerate(exact):
        moved = [abs(run[step] - loss) for run in runs]
        widest = max([widest, *(value if math.isfinite(value) else math.inf for value in moved)])
        floors.append(widest + epsilon * max(abs(loss), 1.0))
    return tuple(floors)


def leaves(losses: Sequence[float], exact: Sequence[float], allowed: Sequence[float]) -> int | None:
    """The first step, from 1, whose loss is further from the exact one than is allowed; None where none is."""
    for step, (loss, right, limit) in enumerate(zip(losses, exact, allowed, strict=True), start=1):
        if not abs(loss - right) <= limit:
            return step
    return None


def _measure_power(training: Training, exact: tuple[float, ...], limits: Sequence[float]) -> Power:
    """`limits`: the deviation a step at which even a run at the edge of the band would be out of it."""
    pilot = _train_exactly(training.with_rate(1.0 + PILOT), layout="right").losses
    responses = [abs(loss - right) / PILOT for loss, right in zip(pilot, exact, strict=True)]
    guesses = [limit / response for limit, response in zip(limits, responses, strict=True) if response > 0.0]
    shift = min([*guesses, LARGEST_SHIFT])
    losses = exact
    found = None
    while found is None and shift <= LARGEST_SHIFT:
        losses = _train_exactly(training.with_rate(1.0 + shift), layout="right").losses
        if leaves(losses, exact, limits) is not None:
            found = shift
        elif shift == LARGEST_SHIFT:
            break
        else:
            shift = min(2.0 * shift, LARGEST_SHIFT)  # the loss is not linear in the rate
    doubled = _train_exactly(training, layout="right", gradient_factor=DOUBLED).losses
    return Power(found, losses, leaves(doubled, exact, limits) is not None)


def _train_exactly(training: Training, *, layout: Layout, gradient_factor: float = 1.0) -> Trained:
    model = training.build(dtype=torch.float64, attention="eager")
    with float64_mode(training.source):
        return train(training, model, layout=layout, exact=True, gradient_factor=gradient_factor)


def _train_in_band(training: Training, number: int, *, bits: int) -> tuple[Trained, Layout]:
    """One run in the run's own precision, its start moved by rounding, its layout and kernel by turns."""
    attentions, precision = training.attentions, training.spec.precision
    layout = LAYOUTS[number % len(LAYOUTS)]
    if layout == "merged" and AuxiliaryLoss.of(training.config, ()) is not None:
        layout = "right"  # a load-balancing loss is not additive over micro-batches
    model = training.build(dtype=training.own_dtype, attention=attentions[number % len(attentions)])
    if precision == "float32":
        _move_weights(model, bits * EPSILON[precision], seed=number)
    else:
        move_inputs(model, EPSILON[precision], seed=number)
    return train(training, model, layout=layout, exact=False), layout


def _move_weights(model: nn.Module, relative: float, *, seed: int) -> None:
    """Multiply each weight by 1 ± 2 × `relative`."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            sign = torch.randint(0, 2, parameter.shape, generator=generator).to(parameter.dtype) * 2 - 1
            parameter.mul_(1 + 2 * relative * sign)
