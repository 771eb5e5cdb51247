"""What the checkpoint says of every captured step's answers, whatever has become of its weights since."""

from __future__ import annotations

from dataclasses import replace

from checks.captures.capture import Capture
from checks.errors import BadRequest
from checks.material import Material
from checks.references.budget import OverBudget, check_memory
from checks.references.initial import CannotCompare, InitialAnswers, compute_initial_answers
from checks.references.initial_tokens import TokenAnswers, compute_initial_tokens
from checks.references.mismatched import ReferencePoints, compute_reference_points
from checks.references.model import choose_source
from checks.references.routing import read_choices
from checks.references.selection import read_selections
from checks.spec import POLICY_OBJECTIVES


def add_answers(material: Material, capture: Capture) -> Material:
    """Add what the objective compares with: of dpo and kto answers, of kto reference points too, of grpo tokens."""
    spec, source = material.spec, choose_source(material.spec.model)
    answers: dict[int, InitialAnswers] = {}
    tokens: dict[int, TokenAnswers] = {}
    points: dict[int, ReferencePoints] = {}
    reasons = {step: why for step, why in material.no_reference.items() if step not in material.batches}
    for step, micro_batches in material.batches.items():
        choices, keys = read_choices(capture, step, micro_batches), read_selections(capture, step, micro_batches)
        try:
            check_memory(source.checkpoint)
            if spec.objective in POLICY_OBJECTIVES:
                tokens[step] = compute_initial_tokens(
                    spec, source, micro_batches, choices=choices, keys=keys, step=step
                )
                continue
            answers[step] = compute_initial_answers(spec, source, micro_batches, choices=choices, keys=keys, step=step)
            if spec.objective == "kto":
                points[step] = compute_reference_points(spec, source, micro_batches)
        except (CannotCompare, OverBudget, BadRequest) as error:
            reasons[step] = str(error)
    return replace(material, answers=answers, token_answers=tokens, reference_points=points, no_answers=reasons)
