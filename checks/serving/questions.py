"""Which rows an endpoint is asked: those of the probes without padding, whole, and short enough to be asked again."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from checks.material import Material
from checks.probes.answers import Answer
from checks.roles import Role
from checks.serving.served import Row, Weights

LONGEST = 256
"""tokens; the trainer's model is asked no longer rows after its last step (docs/capture-format.md)"""


@dataclass(frozen=True)
class Question:
    """A row of a probe: `log_probs`: (S − 1,) what the trainer's model says of it; `judged`: (S − 1,) where that is
    decided in the run's precision.
    """

    probe: str
    row: Row
    log_probs: torch.Tensor
    judged: torch.Tensor


def plan_questions(material: Material, weights: Weights) -> tuple[Question, ...]:
    """Every distinct row that the trainer's model has answered with the weights that are served."""
    capture = material.capture_of(Role.PROBED)
    if capture is None or not capture.steps:
        return ()
    after = capture.tensors(max(capture.steps), "probe_after", field="log_probs")
    found: dict[Row, Question] = {}
    for name, answer in material.probes.items():
        if name not in after or answer.input_ids.shape[1] > LONGEST or not bool(answer.mask.all()):
            continue
        said = after[name].read("full") if weights == "trained" else answer.log_probs
        if said is None or said.shape != answer.exact.shape:
            continue
        for index, ids in enumerate(answer.input_ids):
            row = tuple(ids.tolist())
            found.setdefault(row, Question(name, row, said[index], ~answer.exact[index].isnan()))
    return tuple(found.values())


def noise_of(material: Material, questions: tuple[Question, ...]) -> tuple[float, list[Answer]]:
    """The largest floor of the rows that were asked, in nats, and their answers."""
    answers = [material.probes[name] for name in dict.fromkeys(question.probe for question in questions)]
    return max((float(answer.floor.max()) for answer in answers), default=0.0), answers
