"""What each of TRL's objectives asks of a run spec and its data, and the arguments that state it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from checks.errors import BadRequest
from checks.models.checkpoint import read_config
from checks.samples import Preference, Sample, read_preferences, read_prompts
from checks.spec import RunSpec
from workers.frameworks.trainer import name_turns

Rows = tuple[Preference, ...] | tuple[Mapping[str, Any], ...]

SCORING = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Families whose class for sequence classification is the decoder and a linear head on the last token, nothing else."""

LOSS_TYPES: Mapping[str, str] = {"gspo": "grpo"}
"""GRPO's variants that TRL calls otherwise: GSPO is GRPO with the ratio of a sequence."""


def check_rows(spec: RunSpec) -> None:
    """Raise BadRequest for settings of rows that an objective other than supervised fine-tuning has not."""
    name = spec.objective
    what = "completions" if name == "grpo" else "preferences"
    if spec.packing:
        raise BadRequest("packing", f"TRL does not pack {what}", "set packing=false")
    if spec.assistant_only:
        found = f"true has no meaning for {name}, which scores the answers and nothing else"
        raise BadRequest("assistant_only", found, "set assistant_only=false")
    if name == "reward":
        _check_reward(spec)
    if name == "kto" and spec.batch < 2:
        found = "1 leaves no other row to estimate KTO's reference point on, and TRL refuses it"
        raise BadRequest("batch", found, "set batch to 2 or more")


def _check_reward(spec: RunSpec) -> None:
    if spec.lora:
        found = "adapters leave the head that scores untrained, unless it is saved as a module of its own"
        raise BadRequest("lora", f"true is not run with reward: {found}", "set lora=false")
    family = str(read_config(spec.model).get("model_type"))
    if family not in SCORING:
        found = f"{family} has no head for scores whose definition is written here"
        raise BadRequest("objective", found, f"give a model of {', '.join(sorted(SCORING))}")


def check_prompts(spec: RunSpec) -> tuple[Sample, ...]:
    """Check what GRPO generates and return its prompts as samples, for what every request is checked for."""
    rows = spec.batch * spec.accumulation
    if rows % spec.num_generations:
        found = f"{spec.num_generations} does not divide the {rows} rows of a step into whole groups"
        raise BadRequest("num_generations", found, "make batch × accumulation a multiple of it")
    if spec.max_completion_length >= spec.seq_len:
        found = f"{spec.max_completion_length} leaves no room for a prompt within seq_len={spec.seq_len}"
        raise BadRequest("max_completion_length", found, "make it smaller than seq_len")
    return tuple(
        Sample(index=index, line=one.line, form="messages", messages=(*one.messages, ("assistant", one.answer)))
        if one.messages
        else Sample(index=index, line=one.line, form="prompt_completion", prompt=one.text, completion=one.answer)
        for index, one in enumerate(read_prompts(spec.data))
    )


def make_rows(spec: RunSpec) -> Rows:
    """The rows of the run's data, as TRL's trainer of the objective reads them."""
    if spec.objective == "grpo":
        return tuple(
            {"prompt": name_turns(one.messages) if one.messages else one.text, "known": one.known}
            for one in read_prompts(spec.data)
        )
    preferences = read_preferences(spec.data)
    return _take_apart(preferences) if spec.objective == "kto" else preferences


def _take_apart(preferences: tuple[Preference, ...]) -> tuple[Mapping[str, Any], ...]:
    """KTO's rows, in the order in which they are trained on: the preferred answer of each pair, then the rejected one
    of the next, so that every micro-batch has both kinds and answers to several prompts.
    """
    rows: list[Mapping[str, Any]] = []
    for index, one in enumerate(preferences):
        rows.append({**_answer(one.chosen), "label": True})
        rows.append({**_answer(preferences[(index + 1) % len(preferences)].rejected), "label": False})
    return tuple(rows)


def _answer(side: Sample) -> dict[str, Any]:
    if side.form == "messages":
        turns = side.prompt_turns
        return {"prompt": name_turns(side.messages[:turns]), "completion": name_turns(side.messages[turns:])}
    return {"prompt": side.prompt, "completion": side.completion}


def _build_dpo(spec: RunSpec) -> dict[str, Any]:
    """What `trl.DPOConfig` adds to TrainingArguments."""
    return {
        "max_length": spec.seq_len,
        "truncation_mode": "keep_start",
        "beta": spec.beta,
        "loss_type": ["sigmoid"],
    }


def _build_orpo(spec: RunSpec) -> dict[str, Any]:
    """What `trl.experimental.orpo.ORPOConfig` adds: `beta` is the paper's λ."""
    return {"max_length": spec.seq_len, "beta": spec.beta, "remove_unused_columns": False}


def _build_kto(spec: RunSpec) -> dict[str, Any]:
    """What `trl.KTOConfig` adds. The rows are read in order: reference points are made of neighbours."""
    return {
        "max_length": spec.seq_len,
        "beta": spec.beta,
        "loss_type": "kto",
        "desirable_weight": 1.0,
        "undesirable_weight": 1.0,
        "train_sampling_strategy": "sequential",
    }


def _build_reward(spec: RunSpec) -> dict[str, Any]:
    """What `trl.RewardConfig` adds: `beta` is the weight of the centring term. Pairs that are too long are left out."""
    return {"max_length": spec.seq_len, "center_rewards_coefficient": spec.beta, "disable_dropout": True}


def _build_grpo(spec: RunSpec) -> dict[str, Any]:
    """What `trl.GRPOConfig` adds: one batch of completions a step, or for `num_iterations` steps.

    TRL multiplies the penalty by the ratio unless it is told not to; the papers of the variants do not.
    """
    from checks.references.objectives import VARIANTS  # loads torch, which a command that runs nothing does without

    variant = VARIANTS[spec.grpo_loss]
    return {
        "loss_type": LOSS_TYPES.get(spec.grpo_loss, spec.grpo_loss),
        "importance_sampling_level": variant.level,
        "epsilon": variant.low,
        "epsilon_high": variant.high,
        "scale_rewards": "group" if variant.scaled else "none",
        "beta": spec.beta,
        "use_bias_correction_kl": False,
        "num_generations": spec.num_generations,
        "num_iterations": spec.num_iterations,
        "steps_per_generation": spec.accumulation,
        "max_completion_length": spec.max_completion_length,
        "temperature": spec.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "mask_truncated_completions": False,
        "remove_unused_columns": False,
    }


BUILDERS: Mapping[str, Callable[[RunSpec], dict[str, Any]]] = {
    "dpo": _build_dpo,
    "orpo": _build_orpo,
    "kto": _build_kto,
    "reward": _build_reward,
    "grpo": _build_grpo,
}
"""objective → what its trainer's configuration adds to TrainingArguments"""
