"""The routers' biases that are buffers: the checkpoint's, not trained, not moved by a rule that nobody asked for."""

from __future__ import annotations

from collections.abc import Mapping

from checks.captures.capture import Capture
from checks.moe.finding import Part, Problem
from checks.verdict import Measurement, Pattern

ROUNDED: Mapping[str, float] = {"float32": 2.0**-24, "bf16": 2.0**-24, "bf16_params": 2.0**-8, "fp16": 2.0**-24}
"""Largest relative error that holding a checkpoint's bias in the run's parameter dtype may make."""


def judge_biases(capture: Capture, biases: Mapping[str, tuple[float, ...]], *, precision: str) -> Part:
    """`biases`: name → values in the checkpoint. Those in force are read off each captured step's scalars."""
    if not biases:
        return Part()
    problems, measurements, unseen = [], [], []
    for name, asked in biases.items():
        path, _, field = name.rpartition(".")
        problems += _trained(capture, name)
        before: tuple[float, ...] | None = asked if capture.steps[0] == 1 else None
        allowed = ROUNDED[precision] * max(map(abs, asked), default=0.0)
        for step in capture.steps:
            held = capture.step(step).scalars.get(path, {}).get(field)
            if not isinstance(held, list) or len(held) != len(asked):
                unseen.append(name)
                break
            if before is not None:
                moved = max((abs(a - b) for a, b in zip(held, before, strict=True)), default=0.0)
                measurements.append(
                    Measurement(f"{name} at step {step}", moved, allowed, moved <= allowed, 0.0, allowed)
                )
                if moved > allowed:
                    problems.append(_say(name, step, moved, loaded=before is asked))
            before, allowed = tuple(held), 0.0
    seen = len(biases) - len(set(unseen))
    said = (f"{seen} biases of routers are the checkpoint's and stay so",) if seen else ()
    questions = (f"{unseen[0]} was not recorded: it is longer than the recorder keeps, or spread",) if unseen else ()
    return Part(tuple(measurements), tuple(problems), said, questions)


def _trained(capture: Capture, name: str) -> list[Problem]:
    step = capture.steps[0]
    record = capture.step(step)
    if record.optimizer.group_of(name) is None and name not in capture.tensors(step, "gradient"):
        return []
    sentence = f"{name} is trained by the gradient; its family's definition moves it by the load alone, or not at all"
    return [Problem(sentence, Pattern.MODEL_DEFINITION, name)]


def _say(name: str, step: int, moved: float, *, loaded: bool) -> Problem:
    if loaded:
        return Problem(
            f"{name} is not the checkpoint's: off by up to {moved:.3g} at step {step}", Pattern.STATE_TRANSFER, name
        )
    sentence = f"{name} moved by up to {moved:.3g} until step {step}, and the run asks for no rule that moves it"
    return Problem(sentence, Pattern.MODEL_DEFINITION, name)
