"""What must be said of a command, and which checks have nothing to hold it against where it is not said.

Every other adapter turns the run spec into its framework's settings; a command is what it is. A default that nobody
stated is no claim about it, and judging by one would blame the command for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from checks.parallel.scope import ALONE
from checks.roles import Role, spec_of
from checks.spec import RunSpec

if TYPE_CHECKING:  # loads torch, which a client without one does without
    from checks.check import Check

FRAMEWORK: Final = "command"

REQUIRED: Mapping[str, str] = {
    "precision": "set precision=float32, bf16 (autocast), bf16_params or fp16",
    "steps": "set steps to how many optimizer steps it takes",
}
"""What no verdict can do without, with how it is given: which steps are recorded, and what rounding allows."""

_RATE = ("lr", "schedule", "warmup_steps")
_UPDATE = (*_RATE, "optimizer", "weight_decay", "max_grad_norm")
_MOMENTS = {"adamw": ("beta1", "beta2", "eps"), "sgd": ("momentum",)}

JUDGED_BY: Mapping[str, tuple[str, ...]] = {
    "environment.settings": ("accumulation", "attention", "gradient_checkpointing", "lora"),
    "data.template": ("seq_len",),
    "data.mask": ("seq_len", "assistant_only"),
    "data.coverage": ("seq_len",),
    "data.preference": ("seq_len",),
    "step.settings": ("attention",),
    "step.update": _UPDATE,
    "step.scaler": _RATE,
    "step.schedule": _RATE,
    "step.frozen": _RATE,
    "step.rl_loss": ("beta",),
    "step.advantages": ("num_generations", "grpo_loss"),
    "memory.step": ("optimizer", "attention", "gradient_checkpointing"),
    "convergence.health": ("lr",),
    "convergence.curve": _UPDATE,
}
"""Check → the settings that it holds a run against."""

REPEATED = frozenset({Role.RUN, Role.TRACED})
"""Runs that are the same command again."""


def is_commanded(spec: RunSpec) -> bool:
    """Whether the run is a command, of which there are no other runs than itself."""
    return spec.framework == FRAMEWORK and bool(spec.command)


def why_not_stated(check: Check, spec: RunSpec) -> str | None:
    """Why a check has nothing to say on a command; None where it has, and for every other framework."""
    if not is_commanded(spec):
        return None
    for role in () if check.name in ALONE else check.roles:
        # What is recorded of the same command may differ, what it does may not.
        if role not in REPEATED and spec_of(role, spec) != spec:
            return f"takes a {role.value} run, and a command is run as it is given"
    needed = JUDGED_BY.get(check.name, ())
    if needed == _UPDATE:
        needed += _MOMENTS[spec.optimizer]
    missing = [name for name in needed if name in spec.unstated]
    if missing:
        return f"{', '.join(missing)} of the command {'is' if len(missing) == 1 else 'are'} not stated; set what it has"
    return None
