"""Whether a second pass over a step began where the first did, and gave what the first gave."""

from __future__ import annotations

from checks.captures.capture import Capture
from checks.references.reference import Reference

SAME_SKETCH = 1e-12
"""A repeated pass must give the same sketches up to the rounding of their sums."""


def same_gradients(first: Capture, second: Capture, step: int) -> bool:
    """Whether two passes over one step recorded the same gradients."""
    return _same_sketches(first, second, step, "gradient")


def measure_repetition(first: Capture, second: Capture, reference: Reference, multiple: float) -> float:
    """The largest distance of two passes' gradients, in thresholds of a gradient's error.

    0 where the two began from other batches, weights or random states: then nothing needs to repeat.
    """
    step = reference.step
    if not began_alike(first, second, step):
        return 0.0
    ours, theirs = first.tensors(step, "gradient"), second.tensors(step, "gradient")
    worst = 0.0
    for name in reference.gradients:
        a, b = (side[name].read("sketch") if name in side else None for side in (ours, theirs))
        if a is not None and b is not None:
            worst = max(worst, float((a - b).norm()) / (multiple * reference.floor(name).total))
    return worst


def began_alike(first: Capture, second: Capture, step: int) -> bool:
    """Whether two passes over one step began from the same batch, weights and random state."""
    for index in range(len(first.micro_batches(step))):
        ours = first.micro_batch_tensors(step, "batch", index)
        theirs = second.micro_batch_tensors(step, "batch", index)
        for name, record in ours.items():
            a, b = record.read("full"), theirs[name].read("full") if name in theirs else None
            if a is None or b is None or not a.equal(b):
                return False
    return first.step(step).rng == second.step(step).rng and _same_sketches(first, second, step, "parameter_before")


def _same_sketches(first: Capture, second: Capture, step: int, kind: str) -> bool:
    ours, theirs = first.tensors(step, kind), second.tensors(step, kind)
    if set(ours) != set(theirs):
        return False
    for name, record in ours.items():
        a, b = record.read("sketch"), theirs[name].read("sketch")
        if a is None or b is None or float((a - b).norm()) > SAME_SKETCH * max(float(a.norm()), 1.0):
            return False
    return True
