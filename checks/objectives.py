"""Which checks can judge a run of another objective than supervised fine-tuning, and why the others cannot."""

from __future__ import annotations

from collections.abc import Mapping

from checks.spec import POLICY_OBJECTIVES, PREFERENCE_OBJECTIVES, RunSpec

FOR_ANY_OBJECTIVE = frozenset(
    {
        *("run.completes", "environment.known_problems", "environment.settings", "data.coverage", "data.preference"),
        *("step.precision", "step.settings", "step.lora", "step.update", "step.schedule", "step.frozen"),
        *("step.lengths", "step.padding", "step.causality", "step.determinism", "step.dropout"),
        *("step.gradients", "step.activations", "step.accumulation", "step.rl_loss", "step.advantages"),
        *("step.rl_logprobs", "step.grad_norm", "model.definition", "checkpoint.resume", "checkpoint.roundtrip"),
        *("serving.logprobs", "serving.cache"),
        *("step.scaler", "serving.quantised", "transfer.sync"),
    }
)
"""Checks that hold a run against its spec, its data, its checkpoint or itself, whatever it minimises."""

BETWEEN_RANKS = frozenset({"parallel.data", "parallel.replicas", "parallel.gradients"})
"""Checks that hold a run of several ranks against one of one process, on the same completions."""

ROWS = frozenset({"data.template", "data.mask", "data.packing"})
"""Checks of rows that stand alone."""

COURSE = "a preference's loss and gradient norm may die once its answers are told apart, as no language model's do"

NO_TOKENS = "a reward model gives no probability to tokens, which probes ask for"

WHY_NOT = {"convergence.health": COURSE, **dict.fromkeys(ROWS, "data.preference judges the rows of preferences")}

COMPLETIONS: Mapping[str, str] = {
    **dict.fromkeys(
        ("data.template", "data.mask", "data.preference", "data.coverage", "data.packing"),
        "the rows are the model's own completions, not those of the data",
    ),
    "convergence.health": "a reward's loss has no level that it begins at or falls to",
}

WHY_NOT_OF: Mapping[str, Mapping[str, str]] = {
    "orpo": {
        "step.accumulation": "ORPO's likelihood is a mean over each micro-batch's tokens: another split is another "
        "objective",
    },
    "kto": {
        "data.preference": "KTO takes pairs apart: data.template and data.mask judge rows, step.rl_loss their labels",
        "step.accumulation": "KTO's reference point is one of the micro-batch: another split is another objective",
        "data.template": "",
        "data.mask": "",
    },
    "reward": {
        "data.preference": "a score is of a whole row: data.template judges rows, step.rl_loss what is made of pairs",
        "data.template": "",
        "serving.logprobs": NO_TOKENS,
        "serving.cache": NO_TOKENS,
        **dict.fromkeys(
            ("step.lengths", "step.padding", "step.causality", "step.determinism", "step.dropout"), NO_TOKENS
        ),
    },
    **dict.fromkeys(POLICY_OBJECTIVES, COMPLETIONS),
}
"""Objective → check → why it has nothing to say there; empty where it has, though it has not on preferences."""


def why_not_objective(name: str, spec: RunSpec) -> str | None:
    """The reason why a check has nothing to say on a run of this objective, None where it has."""
    own = WHY_NOT_OF.get(spec.objective, {})
    if name in own:
        return own[name] or None
    if spec.objective == "grpo" and name == "step.accumulation" and spec.grpo_loss == "bnpo":
        return "bnpo is a mean over each micro-batch's tokens: another split is another objective"
    if spec.objective in POLICY_OBJECTIVES and name == "checkpoint.resume" and (spec.steps - 1) % spec.num_iterations:
        return "completions under way are not saved: a run that is resumed among their iterations generates others"
    if spec.objective == "sft" or name in FOR_ANY_OBJECTIVE:
        return None
    if spec.objective in POLICY_OBJECTIVES and name in BETWEEN_RANKS:
        return None
    return WHY_NOT.get(name, "its reference is that of supervised fine-tuning")


def needs_preferences(spec: RunSpec) -> str | None:
    """The reason why a check of preferences has nothing to say on a run spec: it has none."""
    if spec.objective in PREFERENCE_OBJECTIVES:
        return None
    return f"the run does not train on preferences (objective={spec.objective})"


def needs_other_objective(spec: RunSpec) -> str | None:
    """The reason why a check of objectives has nothing to say on a run spec: it is supervised fine-tuning."""
    return "the run is supervised fine-tuning (objective=sft)" if spec.objective == "sft" else None


def needs_completions(spec: RunSpec) -> str | None:
    """The reason why a check of sampled completions has nothing to say on a run spec: it trains on none."""
    if spec.objective in POLICY_OBJECTIVES:
        return None
    return f"the run does not train on completions of its own (objective={spec.objective})"
