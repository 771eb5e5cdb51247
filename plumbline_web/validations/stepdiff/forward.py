"""Forward error module by module, each fed the framework's own input, and the first that is wrong by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plumbline_web.validations.stepdiff.documents import (
    FAIL,
    SKIPPED,
    Judged,
    in_thresholds,
    read_number,
    read_optional,
)


@dataclass(frozen=True)
class Module:
    """One module on its own inputs: relative error of its output."""

    path: str
    class_name: str
    error: float
    floor: float | None
    threshold: float
    holds: bool

    @property
    def ratio(self) -> float:
        return in_thresholds(self.error, self.threshold)


@dataclass(frozen=True)
class Forward:
    """`modules` in the order in which a forward completes them; without any, `why` says how to get them."""

    modules: tuple[Module, ...]
    why: str

    @property
    def first(self) -> Module | None:
        """The first wrong one: children complete before their parents, so it is wrong by itself."""
        return next((module for module in self.modules if not module.holds), None)

    @property
    def wrong(self) -> int:
        return sum(not module.holds for module in self.modules)


def read_forward(judgements: Mapping[str, Judged]) -> Forward:
    """What the second pass found, from the evidence of `step.gradients`."""
    gradients = judgements.get("step.gradients")
    entries = (gradients.evidence.get("modules") or ()) if gradients is not None else ()
    modules = tuple(
        Module(
            path=entry["module"],
            class_name=entry["class"],
            error=read_number(entry["error"]),
            floor=read_optional(entry.get("floor")),
            threshold=read_number(entry["threshold"]),
            holds=entry["holds"],
        )
        for entry in entries
    )
    return Forward(modules, "" if modules else _say_why(gradients, judgements.get("step.loss")))


def _say_why(gradients: Judged | None, loss: Judged | None) -> str:
    if gradients is None or gradients.status == SKIPPED:
        return (
            "Modules are compared one by one in a second pass, which step.gradients asks for when the forward differs. "
            "It was not judged here: clone this validation and choose step.gradients."
        )
    if gradients.status != FAIL and (loss is None or loss.status != FAIL):
        return (
            "Every token's loss agrees with the reference, so the forward is right as a whole and no second pass was "
            "run. It runs by itself when token losses differ."
        )
    if gradients.status == FAIL and (loss is None or loss.status != FAIL or not _token_fails(loss)):
        return (
            "The token losses agree: what is wrong lies behind the forward, so no second pass was run. It runs by "
            "itself when token losses differ."
        )
    return (
        "The forward differs, and there is no second pass to say where: it was not recorded, or it belongs to another "
        "step. Retry this validation; a longer time limit leaves room for it."
    )


def _token_fails(loss: Judged) -> bool:
    return any(m.name == "largest token error" and not m.holds for m in loss.measurements)
