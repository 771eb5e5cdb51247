"""Faults of preferences: pairs, their prompts and masks, and what is minimised over them."""

from __future__ import annotations

from checks.faults.entries.fault import Fault
from checks.verdict import Pattern

PREFERENCE_FAULTS: tuple[Fault, ...] = (
    Fault(
        slug="preference-swapped",
        summary="chosen and rejected change places in the collator",
        problem=None,
        url="https://github.com/huggingface/trl/issues/2578",
        check="data.preference",
        pattern=Pattern.LOSS_MASK,
        settings=("objective=dpo",),
    ),
    Fault(
        slug="preference-prompt-cut",
        summary="the prompts of rejected answers lose their first tokens",
        problem=None,
        url="https://github.com/hiyouga/LLaMA-Factory/issues/4617",
        check="data.preference",
        pattern=Pattern.SEQUENCE_LENGTH,
        settings=("objective=dpo",),
    ),
    Fault(
        slug="preference-mask-early",
        summary="the mask of the answers is one token early",
        problem=None,
        url="https://github.com/OpenRLHF/OpenRLHF/issues/465",
        check="data.preference",
        pattern=Pattern.LOSS_MASK,
        settings=("objective=dpo",),
    ),
    Fault(
        slug="rejected-answer-cut",
        summary="rejected answers lose their end, preferred ones do not",
        problem="trl-dpo-drops-last-column",
        url="https://github.com/huggingface/trl/pull/2332",
        check="data.preference",
        pattern=Pattern.LOSS_MASK,
        settings=("objective=dpo",),
    ),
    Fault(
        slug="reference-is-policy",
        summary="the reference model is the policy itself",
        problem=None,
        url="https://github.com/huggingface/trl/issues/1843",
        check="step.rl_loss",
        pattern=Pattern.STATE_TRANSFER,
        settings=("objective=dpo",),
    ),
    Fault(
        slug="preference-beta-doubled",
        summary="beta is twice what was asked",
        problem=None,
        url="https://github.com/AI-Hypercomputer/maxtext/issues/1530",
        check="step.rl_loss",
        pattern=Pattern.OBJECTIVE_SCALE,
        settings=("objective=dpo",),
    ),
    Fault(
        slug="preference-not-divided",
        summary="the loss of preferences is not divided over the accumulation",
        problem="trl-dpo-ga-scale",
        url="https://github.com/huggingface/trl/pull/2615",
        check="step.rl_loss",
        pattern=Pattern.OBJECTIVE_SCALE,
        settings=("objective=dpo",),
    ),
)
"""The registry's entries, by what they are about."""
