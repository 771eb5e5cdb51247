"""Which checks can judge a run of another objective than supervised fine-tuning, and why the others cannot."""

from __future__ import annotations

from checks.spec import RunSpec

FOR_ANY_OBJECTIVE = frozenset(
    {
        *("run.completes", "environment.known_problems", "environment.settings", "data.coverage", "data.preference"),
        *("step.precision", "step.settings", "step.lora", "step.update", "step.schedule", "step.frozen"),
        *("step.lengths", "step.padding", "step.causality", "step.determinism", "step.dropout"),
        *("step.gradients", "step.activations", "step.accumulation", "step.rl_loss", "model.definition"),
        *("checkpoint.resume", "checkpoint.roundtrip", "serving.logprobs", "serving.cache"),
        *("step.scaler", "serving.quantised", "transfer.sync"),
    }
)
"""Checks that hold a run against its spec, its data, its checkpoint or itself, whatever it minimises."""

ROWS = frozenset({"data.template", "data.mask", "data.packing"})
"""Checks of rows that stand alone."""

COURSE = "a preference's loss and gradient norm may die once its answers are told apart, as no language model's do"

WHY_NOT = {"convergence.health": COURSE, **dict.fromkeys(ROWS, "data.preference judges the rows of preferences")}


def why_not_objective(name: str, spec: RunSpec) -> str | None:
    """The reason why a check has nothing to say on a run of this objective, None where it has."""
    if spec.objective == "sft" or name in FOR_ANY_OBJECTIVE:
        return None
    return WHY_NOT.get(name, "its reference is that of supervised fine-tuning")


def needs_preferences(spec: RunSpec) -> str | None:
    """The reason why a check of preferences has nothing to say on a run spec: it has none."""
    return None if spec.objective == "dpo" else "the run does not train on preferences (objective=sft)"
