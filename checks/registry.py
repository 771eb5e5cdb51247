"""All checks, by name, in the order in which they are read."""

from __future__ import annotations

from checks.architecture import (
    memory_step,
    model_definition,
    step_accumulation,
    step_activations,
    step_advantages,
    step_causality,
    step_denominator,
    step_determinism,
    step_dropout,
    step_frozen,
    step_grad_norm,
    step_gradients,
    step_lengths,
    step_lora,
    step_loss,
    step_moe,
    step_padding,
    step_precision,
    step_rl_logprobs,
    step_rl_loss,
    step_scaler,
    step_schedule,
    step_settings,
    step_update,
)
from checks.check import Check
from checks.convergence import convergence_curve, convergence_health, convergence_overfit
from checks.errors import BadRequest
from checks.levels import LEVELS
from checks.lifecycle import (
    checkpoint_reshard,
    checkpoint_resume,
    checkpoint_roundtrip,
    data_coverage,
    data_mask,
    data_packing,
    data_preference,
    data_template,
    environment_known_problems,
    environment_settings,
    eval_loss,
    run_completes,
    serving_cache,
    serving_logprobs,
    serving_quantised,
    transfer_sync,
)
from checks.parallel import parallel_data, parallel_gradients, parallel_replicas
from checks.roles import Role
from checks.suggesting import nearest

CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        run_completes.CHECK,
        environment_known_problems.CHECK,
        environment_settings.CHECK,
        data_template.CHECK,
        data_mask.CHECK,
        data_preference.CHECK,
        data_coverage.CHECK,
        step_precision.CHECK,
        step_settings.CHECK,
        step_lora.CHECK,
        step_loss.CHECK,
        step_moe.CHECK,
        step_denominator.CHECK,
        step_rl_loss.CHECK,
        step_advantages.CHECK,
        step_rl_logprobs.CHECK,
        step_gradients.CHECK,
        step_grad_norm.CHECK,
        step_activations.CHECK,
        step_update.CHECK,
        step_scaler.CHECK,
        step_schedule.CHECK,
        step_frozen.CHECK,
        step_accumulation.CHECK,
        data_packing.CHECK,
        checkpoint_resume.CHECK,
        checkpoint_roundtrip.CHECK,
        checkpoint_reshard.CHECK,
        model_definition.CHECK,
        step_lengths.CHECK,
        step_padding.CHECK,
        step_causality.CHECK,
        step_determinism.CHECK,
        step_dropout.CHECK,
        eval_loss.CHECK,
        serving_logprobs.CHECK,
        serving_cache.CHECK,
        serving_quantised.CHECK,
        transfer_sync.CHECK,
        parallel_data.CHECK,
        parallel_replicas.CHECK,
        parallel_gradients.CHECK,
        memory_step.CHECK,
        convergence_health.CHECK,
        convergence_curve.CHECK,
        convergence_overfit.CHECK,
    )
}

ALL = "all"

DEFAULT_CHECKS: tuple[str, ...] = tuple(
    name for name, check in CHECKS.items() if set(check.roles) <= {Role.RUN, Role.MERGED, Role.SINGLE}
)
"""Those that are judged unless others are asked for: they take no run of the framework beside these two."""


def by_level() -> dict[str, tuple[Check, ...]]:
    """Title of a level → its checks, both in reading order."""
    found = {title: tuple(c for c in CHECKS.values() if c.level == level) for level, title in LEVELS.items()}
    return {title: checks for title, checks in found.items() if checks}


def find_checks(names: tuple[str, ...] | None) -> tuple[Check, ...]:
    """The checks of these names and levels, in reading order; the default ones for None, every one for `all`.

    Raises:
        BadRequest: a name that no check and no level has, with the nearest ones.
    """
    wanted = DEFAULT_CHECKS if names is None else names
    known = {*CHECKS, *(check.level for check in CHECKS.values()), ALL}
    for name in wanted:
        if name not in known:
            near = nearest(name, known)
            remedy = f"did you mean {', '.join(near)}" if near else "`plumbline checks` lists them"
            raise BadRequest("checks", f"there is no check {name!r}", remedy)
    return tuple(check for check in CHECKS.values() if {check.name, check.level, ALL} & set(wanted))
