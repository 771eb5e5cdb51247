"""Each router's choice against the reference's scores, and the weights that it gives to the chosen."""

from __future__ import annotations

from checks.moe.finding import Part, Problem
from checks.references.reference import Reference
from checks.references.router_weights import WeightError
from checks.references.routing import ChoiceError
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern

EXPERTS = "experts"
"""`what` of a choice that a router made; indexers of sparse attention choose keys."""


def judge_routing(reference: Reference, *, precision: str, forward_agrees: bool) -> Part:
    """Choices and weights; where the forward differs, only what the hidden states cannot change: the weights' sum."""
    multiple = MULTIPLES[precision]
    choices = [choice for choice in reference.choices if choice.what == EXPERTS]
    totals = [_judge_total(w, reference.epsilon, multiple) for w in reference.router_weights if w.total is not None]
    problems = [p for part in totals for p in part.problems]
    measurements = [m for part in totals for m in part.measurements]
    limits = {"sum of a token's weights": max((float(m.limit or 0.0) for m in measurements), default=0.0)}
    if not forward_agrees:
        question = "the forward differs (step.loss), so that the reference's scores are not those of the run"
        summed = ("the weights of each token add up as they must",) if totals else ()
        return Part(tuple(measurements), tuple(problems), summed, (question,), limits if totals else {})
    for part in (
        *(_judge_choice(c, multiple) for c in choices),
        *(_judge_weights(w, reference.epsilon, multiple) for w in reference.router_weights),
    ):
        measurements += part.measurements
        problems += part.problems
    said: list[str] = [f"the choice of {len(choices)} routers is that of the float64 scores"] if choices else []
    questions = []
    if reference.router_weights:
        said.append("their weights are the reference's")
        worst = max(reference.router_weights, key=lambda w: w.floor)
        limits["weight of an expert"] = (multiple + 1.0) * (worst.floor + reference.epsilon * worst.largest)
    elif choices:
        questions.append("no router's weights were recorded")
    return Part(tuple(measurements), tuple(problems), tuple(said), tuple(questions), limits if measurements else {})


def _judge_total(weights: WeightError, epsilon: float, multiple: float) -> Part:
    assert weights.total is not None
    # Each weight is rounded once by the division and once by the sum.
    floor = 4.0 * epsilon * abs(weights.total)
    error = abs(weights.worst_total - weights.total)
    holds = error <= multiple * floor
    measurement = Measurement(
        f"sum of a token's weights in {weights.router}", error, multiple * floor, holds, floor, (multiple + 1.0) * floor
    )
    if holds:
        return Part((measurement,))
    sentence = (
        f"{weights.router} gives a token's experts weights that add up to {weights.worst_total:.6g}; the config asks "
        f"for weights that add up to {weights.total:.6g}"
    )
    return Part((measurement,), (Problem(sentence, Pattern.MODEL_DEFINITION, weights.router),))


def _judge_choice(choice: ChoiceError, multiple: float) -> Part:
    threshold = 2.0 * multiple * choice.floor
    name = f"experts chosen by {choice.router} ({choice.differing} of {choice.tokens} tokens differ)"
    holds = choice.margin <= threshold
    measurement = Measurement(name, choice.margin, threshold, holds, choice.floor, threshold, unit="score")
    if holds:
        return Part((measurement,))
    sentence = (
        f"{choice.router} chose other experts than its scores say for {choice.differing} of {choice.tokens} tokens, by "
        f"a margin of up to {choice.margin:.3g} where the scores' noise is {choice.floor:.2g}"
    )
    return Part((measurement,), (Problem(sentence, Pattern.MODEL_DEFINITION, choice.router),))


def _judge_weights(weights: WeightError, epsilon: float, multiple: float) -> Part:
    floor = weights.floor + epsilon * weights.largest
    holds = weights.error <= multiple * floor
    name = f"weights given by {weights.router}"
    measurement = Measurement(name, weights.error, multiple * floor, holds, floor, (multiple + 1.0) * floor)
    if holds:
        return Part((measurement,))
    sentence = (
        f"{weights.router} gives the chosen experts other weights than the reference: off by {weights.error:.3g}, "
        f"allowed {multiple * floor:.2g}"
    )
    return Part((measurement,), (Problem(sentence, Pattern.MODEL_DEFINITION, weights.router),))
