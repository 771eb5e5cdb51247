"""Plumbline's column: the checks of one validation on a recorded step, and the first wrong module."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ten_cases.cases import Case
from checks.assemble import assemble
from checks.captures.capture import Capture
from checks.locating import locate
from checks.material import RunOutcome
from checks.registry import CHECKS
from checks.roles import Role
from checks.verdict import Status, Verdict

JUDGES = ("step.settings", "step.loss", "step.denominator", "step.gradients")
"""the checks that one captured step feeds; the update needs a third step, and accumulation a second run"""

SCALE, BLOCKS = "scale of all", " by block"
"""how `checks.tolerance` names the limit of the pooled scale, and those of single heads and vocabulary rows"""


@dataclass(frozen=True)
class Judgement:
    """The verdicts by check, and the first wrong module by re-synchronised inputs (None: none is wrong by itself)."""

    case: Case
    verdicts: Mapping[str, Verdict]
    first_wrong_module: str | None

    @property
    def failed(self) -> tuple[str, ...]:
        return tuple(name for name, verdict in self.verdicts.items() if verdict.status is Status.FAIL)

    @property
    def right(self) -> bool:
        """Every check passes a healthy step, one at least fails a faulty one, and the first wrong module is the faulty
        one: none where the forward is right."""
        seen = all(v.status is Status.PASS for v in self.verdicts.values()) if self.case.healthy else bool(self.failed)
        return seen and self.first_wrong_module == self.case.module

    @property
    def smallest_scale(self) -> float:
        """The smallest relative error, common to all gradients, that `step.gradients` would have seen."""
        return self._limits.get(SCALE, math.inf)

    @property
    def smallest_in_a_tensor(self) -> tuple[float, str]:
        """The smallest relative fault that would have been seen in any parameter's gradient, and the weakest kind."""
        return _weakest({k: v for k, v in self._limits.items() if k != SCALE and not k.endswith(BLOCKS)})

    @property
    def smallest_in_a_block(self) -> tuple[float, str]:
        """The same for any single vocabulary row or head."""
        return _weakest({k.removesuffix(BLOCKS): v for k, v in self._limits.items() if k.endswith(BLOCKS)})

    @property
    def _limits(self) -> Mapping[str, float]:
        return self.verdicts["step.gradients"].detection_limits


def judge(case: Case, capture: Capture, *, checkpoint: Path, data: Path) -> Judgement:
    """Hold a recorded step against its float64 reference, as a validation does.

    `data` gives no documents to look for: the batch is random tokens, so that its rows are told by the mask. The
    capture holds every module's input and output already, so it is its own second pass.
    """
    outcome = RunOutcome("completed", 0, 0.0, None, capture, None)
    material = assemble(case.make_spec(checkpoint, data), {Role.RUN: outcome}, references=True, definition=False)
    material = locate(material, capture)
    first = material.divergence.first if material.divergence is not None else None
    verdicts = {name: CHECKS[name].judge(material) for name in JUDGES}
    return Judgement(case, verdicts, first.module if first is not None else None)


def _weakest(limits: Mapping[str, float]) -> tuple[float, str]:
    kind = max(limits, key=lambda name: limits[name], default="parameter")
    return limits.get(kind, math.inf), kind
