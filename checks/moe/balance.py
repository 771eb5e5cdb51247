"""The load-balancing term: its weight, its value, and its gradient on the routers, each once a step.

A router's gradient is α times that of the token loss and β times that of the term, both known from the reference, so
that β can be told from a wrong scale of the token loss: least squares on the gradients, or on their sketches, which
are linear too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from checks.captures.capture import Capture
from checks.models.checkpoint import read_text_setting
from checks.moe.finding import Part, Problem
from checks.references.reference import Reference, root_config
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern

TERM = "load-balancing loss"
USEFUL_LIMIT = 0.5
"""A term that could be half or one and a half times the asked one unseen is not judged."""


@dataclass(frozen=True)
class Shares:
    """A router gradient as α · that of the token loss + β · that of the term.

    `noise`: by how much β may be off per unit of floor-sized error; likewise `token_noise` for α. `residual`: what
    neither explains, ‖·‖, and `floor`, of the gradients concerned together.
    """

    token: float
    term: float
    token_noise: float
    noise: float
    residual: float
    floor: float


def judge_balance(capture: Capture, reference: Reference, asked: Mapping[str, object], *, precision: str) -> Part:
    """Weight in force against `asked`, the content of config.json; then the term's gradient and value."""
    step = reference.step
    in_force = root_config(capture, step)
    drift = _compare_weights(asked, in_force)
    if not reference.auxiliary_gradients:
        off = "no load-balancing loss is asked for" if not drift else ""
        return Part(problems=drift, said=(off,) if off else ())
    shares = divide(capture, reference)
    if shares is None:
        return Part(problems=drift, open_questions=("the routers' gradients were not recorded",))
    multiple = MULTIPLES[precision]
    threshold, limit = multiple * shares.floor * shares.noise, (multiple + 1.0) * shares.floor * shares.noise
    evidence: dict[str, object] = {
        "balance": {"gradient": shares.term, "token_loss_gradient": shares.token, "value": reference.auxiliary}
    }
    if shares.residual > multiple * shares.floor:
        question = "the routers' gradients differ otherwise too (step.gradients), so that the term's share is not known"
        return Part(problems=drift, open_questions=(question,), evidence=evidence)
    if limit > USEFUL_LIMIT:
        question = (
            f"the {TERM}'s gradient is lost in the noise of the routers' (its scale could be off by {limit:.2g}); give "
            "it more weight (router_aux_loss_coef) or more tokens"
        )
        return Part(problems=drift, open_questions=(question,), evidence=evidence)
    error = abs(shares.term - 1.0)
    measurement = Measurement(
        f"gradient of the {TERM} on the routers", error, threshold, error <= threshold, threshold / multiple, limit
    )
    problems = list(drift)
    if error > threshold:
        micro_batches = len(reference.micro_batches)
        problems.append(_say_scale(shares.term, threshold, micro_batches))
    value, value_problem = _judge_value(capture, reference, shares, multiple)
    problems += [value_problem] if value_problem and error <= threshold else []
    said = f"the {TERM} has {shares.term:.5f} × its gradient on the routers"
    return Part(
        (measurement, *value),
        tuple(problems),
        (said,),
        limits={f"{TERM}: gradient": limit} | ({f"{TERM}: value": float(value[0].limit or 0.0)} if value else {}),
        evidence=evidence,
    )


def _compare_weights(asked: Mapping[str, object], in_force: Mapping[str, object]) -> tuple[Problem, ...]:
    """config.json against the config of the model that runs: on or off, and by which weight."""
    weight, held = read_text_setting(asked, "router_aux_loss_coef"), in_force.get("router_aux_loss_coef")
    wanted = bool(read_text_setting(asked, "output_router_logits"))
    on = bool(in_force.get("output_router_logits"))
    if not isinstance(held, int | float) or isinstance(held, bool):
        return ()
    found = held if on else 0.0
    expected = (weight if isinstance(weight, int | float) else held) if wanted else 0.0
    if math.isclose(found, expected, rel_tol=1e-9):
        return ()
    sentence = f"a {TERM} is added with weight {found:g}; config.json asks for {expected:g}"
    return (Problem(sentence, Pattern.MODEL_DEFINITION, "router_aux_loss_coef"),)


def divide(capture: Capture, reference: Reference) -> Shares | None:
    """The recorded router gradients divided into the two; None where they were not recorded."""
    records = capture.tensors(reference.step, "gradient")
    seen, token, term, square = [], [], [], 0.0
    for name, added in reference.auxiliary_gradients.items():
        whole, record = reference.gradients[name], records.get(name)
        full = None if record is None else record.read("full")
        stored = None if record is None else record.read("sketch")
        if full is not None and whole.full is not None and added.full is not None:
            parts = (full.double().flatten(), whole.full.flatten(), added.full.flatten())
        elif stored is not None:
            parts = (stored, whole.sketch, added.sketch)
        else:
            continue
        seen.append(parts[0])
        token.append(parts[1] - parts[2])
        term.append(parts[2])
        square += reference.floor(name).total ** 2
    if not seen:
        return None
    return solve(torch.cat(seen), torch.cat(token), torch.cat(term), floor=math.sqrt(square))


def solve(seen: torch.Tensor, token: torch.Tensor, term: torch.Tensor, *, floor: float) -> Shares:
    """Least squares of `seen` by `token` and `term`, all (n,) float64."""
    basis = torch.stack([token, term], dim=1)
    alpha, beta = torch.linalg.lstsq(basis, seen[:, None], driver="gelsd").solution.flatten().tolist()
    residual = float((seen - alpha * token - beta * term).norm())
    return Shares(alpha, beta, _inverse(token, term), _inverse(term, token), residual, floor)


def _inverse(vector: torch.Tensor, other: torch.Tensor) -> float:
    """1 / ‖the part of `vector` that `other` does not share‖: how an error in the gradient moves its coefficient."""
    square = float(other @ other)
    alone = vector if square == 0.0 else vector - (float(vector @ other) / square) * other
    norm = float(alone.norm())
    return 1.0 / norm if norm > 0.0 else math.inf


def _say_scale(scale: float, threshold: float, micro_batches: int) -> Problem:
    what = f"the gradient of the {TERM} on the routers is {scale:.4g} × what the config asks for"
    if abs(scale) <= threshold:
        what = f"no gradient of the {TERM} reaches the routers"
    elif micro_batches > 1 and abs(scale - micro_batches) <= threshold * micro_batches:
        what += f": it is added in full in each of the {micro_batches} micro-batches"
    elif micro_batches > 1 and abs(scale * micro_batches - 1.0) <= threshold * micro_batches:
        what += f": it is divided by the {micro_batches} micro-batches twice"
    return Problem(what, Pattern.OBJECTIVE_SCALE, TERM)


def _judge_value(
    capture: Capture, reference: Reference, shares: Shares, multiple: float
) -> tuple[tuple[Measurement, ...], Problem | None]:
    """What was back-propagated beyond the token losses; nothing where the token loss itself has a wrong scale."""
    records = capture.micro_batches(reference.step)
    losses = [m.token_losses_seen[m.counted].sum() for m in reference.micro_batches if m.token_losses_seen is not None]
    backward = [record.backward for record in records if record.backward is not None]
    if len(losses) != len(reference.micro_batches) or len(backward) != len(records):
        return (), None
    if abs(shares.token - 1.0) > multiple * shares.floor * shares.token_noise:
        return (), None
    seen = math.fsum(backward) - math.fsum(float(loss) for loss in losses) / reference.denominator
    floor = reference.loss_floor + reference.epsilon * max(map(abs, backward), default=0.0)
    error, threshold = abs(seen - reference.auxiliary), multiple * floor
    limit = (multiple + 1.0) * floor / (abs(reference.auxiliary) or math.inf)
    measurement = Measurement(f"value of the {TERM}", error, threshold, error <= threshold, floor, limit, unit="nats")
    if error <= threshold:
        return (measurement,), None
    sentence = f"the {TERM} adds {seen:.6g} to the loss, {reference.auxiliary:.6g} by its definition"
    return (measurement,), Problem(sentence, Pattern.OBJECTIVE_SCALE, TERM)
