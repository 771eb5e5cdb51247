"""One line of a framework's own training log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LogRecord:
    """What a framework logged for one optimizer step; None where it logged no such number.

    `loss` is the mean over the step's counted tokens as the framework computes it, `grad_norm` the norm before
    clipping, `learning_rate` the one that the step was taken with. `tokens` is how many the run had seen by then, and
    `seconds` how long it had trained: as logged, else the run's mean step times the number of steps.
    """

    step: int
    loss: float | None
    grad_norm: float | None
    learning_rate: float | None
    tokens: float | None = None
    seconds: float | None = None
