"""The runs that a validation can take beside the asked one, each with the run spec that it has."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from math import isqrt

from checks.spec import POLICY_OBJECTIVES, RunSpec


class Role(StrEnum):
    """What a framework run is to its validation."""

    RUN = "run"
    """the asked run"""
    MERGED = "merged"
    """the same rows as one batch without accumulation"""
    RESUMED = "resumed"
    """the asked run, saved before its last step and taken up again by a new process"""
    RESHARDED = "resharded"
    """the asked run, saved before its last step and taken up again by processes that divide the model otherwise"""
    PROBED = "probed"
    """the model as the framework prepared it, asked about batches that Plumbline chose"""
    SINGLE = "single"
    """the rows of all ranks, as micro-batches of one process"""
    TRACED = "traced"
    """the first step again, with what its modules receive and give"""
    OVERFIT = "overfit"
    """the first rows of the data alone, one batch again and again at a constant rate"""
    MEASURED = "measured"
    """the asked run, with the bytes that are alive in each phase of its steps"""


OVERFIT_STEPS = 30
"""In these the reference memorises a batch at the default rate, of most tiny models to a tenth of its first loss."""

MEASURED_STEPS = 5
"""What the first three leave behind has two steps to be freed in: a batch is loaded ahead, a loss is kept a while."""


def spec_of(role: Role, spec: RunSpec) -> RunSpec:
    """The run spec of a role. The planner merges equal ones.

    The merged run trains one step on the same rows: batch · accumulation rows at once. A run without accumulation is
    compared with its rows split in as many micro-batches as divide them.
    """
    if role is Role.RESUMED:
        return replace(spec, resume_after=spec.steps - 1)
    if role is Role.RESHARDED:
        return replace(spec, resume_after=spec.steps - 1, resharded=True)
    if role is Role.PROBED:
        # A batch of completions holds whole groups, which fewer rows may not.
        split = spec.accumulation if spec.objective in POLICY_OBJECTIVES else 1
        return replace(spec, steps=1, accumulation=split, probed=True)
    if role is Role.OVERFIT:
        one = replace(spec, first_rows=spec.batch, steps=OVERFIT_STEPS, accumulation=1)
        return replace(one, schedule="constant", warmup_steps=0)
    if role is Role.MEASURED:
        return replace(spec, steps=max(spec.steps, MEASURED_STEPS))
    if role is Role.TRACED:
        return replace(spec, steps=1)
    if role is Role.RUN:
        return spec
    if role is Role.SINGLE:
        micro_batches = spec.accumulation * spec.dp_size
        one = replace(spec, dp_size=1, tp_size=1, ep_size=1, pp_size=1, cp_size=1, sharding="none")
        return replace(one, accumulation=micro_batches)
    if spec.accumulation > 1:
        return replace(spec, batch=spec.batch * spec.accumulation, accumulation=1, steps=1)
    parts = next((n for n in range(2, isqrt(spec.batch) + 1) if spec.batch % n == 0), spec.batch)
    return replace(spec, batch=spec.batch // parts, accumulation=parts, steps=1)


def other_layout(spec: RunSpec) -> RunSpec:
    """The run spec at the layout that takes up what `spec` has saved: one process, or of one process two with FSDP2."""
    if spec.processes > 1:
        return spec_of(Role.SINGLE, spec)
    return replace(spec, dp_size=2, sharding="fsdp2")
