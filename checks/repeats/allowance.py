"""How far two trainings of one step may differ that claim to be the same: not at all, or by the step's own noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checks.architecture.step_settings import SKETCH_ROUNDING
from checks.captures.capture import Capture
from checks.references.reference import Reference


@dataclass(frozen=True)
class Allowance:
    """`noise`: None where the same kernels ran on the same CPU, whose results repeat bit by bit; else the reference
    whose floor is allowed, `multiple` times for each of the two runs. Relative differences throughout.
    """

    why: str
    noise: Reference | None = None
    multiple: float = 0.0

    @property
    def exact(self) -> bool:
        return self.noise is None

    def tensor(self, name: str) -> float:
        """Of a parameter, its gradient or its optimizer state. What no gradient reaches is read, never computed."""
        if self.noise is None or name not in self.noise.gradients:
            return SKETCH_ROUNDING
        norm = self.noise.gradients[name].norm
        return 2.0 * self.multiple * self.noise.floor(name).total / norm if norm > 0.0 else SKETCH_ROUNDING

    @property
    def loss(self) -> float:
        if self.noise is None:
            return SKETCH_ROUNDING
        return 2.0 * self.multiple * self.noise.loss_floor / max(abs(self.noise.loss), 1e-300)


def find_difference(a: Capture, b: Capture) -> str | None:
    """Why two captures need not repeat bit by bit; None where they must: one kind of CPU, torch and thread count.

    On an accelerator sums of many threads are added in any order, unless the run asks for deterministic kernels.
    """
    ours, theirs = _environment(a), _environment(b)
    for environment in (ours, theirs):
        if environment.get("hardware", {}).get("gpus") and not environment.get("torch", {}).get("deterministic"):
            return "the runs used a GPU without deterministic kernels"
    if ours.get("hardware", {}).get("gpus") != theirs.get("hardware", {}).get("gpus"):
        return "the runs used different GPUs"
    if ours.get("hardware", {}).get("cpu") != theirs.get("hardware", {}).get("cpu"):
        return "the runs were on different CPUs"
    if ours.get("torch") != theirs.get("torch"):
        return "the runs had different versions or settings of torch"
    return None


def _environment(capture: Capture) -> Mapping[str, Any]:
    environment: Mapping[str, Any] = capture.manifest.get("environment") or {}
    return environment
