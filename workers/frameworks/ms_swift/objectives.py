"""What `swift rlhf` asks of a run spec and its data for DPO and GRPO, and the options that state it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from checks.errors import BadRequest
from checks.references.template import ChatTokenizer, load_tokenizer, render_messages
from checks.samples import Prompt, Sample, read_preferences, read_prompts
from checks.spec import RunSpec
from workers.frameworks.ms_swift.templates import choose_template
from workers.frameworks.trainer import name_turns
from workers.frameworks.trl.objectives import LOSS_TYPES, check_prompts

OBJECTIVES = ("sft", "dpo", "grpo")
REWARDS = Path(__file__).with_name("rewards.py")
STOP_EVERY = 16
"""Every so many-th token ends a completion of GRPO, as the tokenizer's end token does: an untrained model's would all
have the same length, which hides what lengths weigh."""


def check_objective(spec: RunSpec) -> tuple[Sample, ...]:
    """Raise BadRequest for settings that an objective has not; return its rows as examples, to be checked as such."""
    if spec.objective not in OBJECTIVES:
        found = f"ms-swift is run here with {', '.join(OBJECTIVES)}, not with {spec.objective}"
        raise BadRequest("objective", found, "set framework trl")
    for name in ("packing", "padding_free"):
        if getattr(spec, name):
            raise BadRequest(name, f"true is not run with {spec.objective} here", f"set {name}=false")
    if spec.assistant_only:
        found = f"true has no meaning for {spec.objective}, which scores the answers and nothing else"
        raise BadRequest("assistant_only", found, "set assistant_only=false")
    if spec.objective == "grpo":
        return check_prompts(spec)
    return tuple(side for one in read_preferences(spec.data) for side in one.sides)


def make_rows(spec: RunSpec) -> tuple[Mapping[str, Any], ...]:
    """The rows of the run's data as ms-swift reads them; of grpo those prompts that leave room for a completion.

    Raises:
        BadRequest: no prompt does.
    """
    if spec.objective == "dpo":
        return tuple(
            {"messages": _turns(one.chosen), "rejected_messages": _turns(one.rejected)}
            for one in read_preferences(spec.data)
        )
    tokenizer, room = load_tokenizer(spec.model), spec.seq_len - spec.max_completion_length
    fitting = [one for one in read_prompts(spec.data) if _count_tokens(one, tokenizer) <= room]
    if not fitting:
        found = f"no prompt has {room} tokens or fewer, which seq_len={spec.seq_len} leaves beside a completion"
        raise BadRequest(f"data {spec.data}", found, "set seq_len higher")
    return tuple({"messages": _prompt_turns(one), "known": one.known} for one in fitting)


def _turns(side: Sample) -> list[dict[str, str]]:
    if side.form == "messages":
        return name_turns(side.messages)
    return name_turns((("user", side.prompt), ("assistant", side.completion)))


def _prompt_turns(one: Prompt) -> list[dict[str, str]]:
    return name_turns(one.messages or (("user", one.text),))


def _count_tokens(one: Prompt, tokenizer: ChatTokenizer) -> int:
    text = render_messages(one.messages, tokenizer, add_generation_prompt=True) if one.messages else one.text
    return len(tokenizer.tokenizer.encode(text).ids)


def _build_dpo(spec: RunSpec) -> dict[str, Any]:
    return {"beta": spec.beta, "loss_type": "sigmoid", "label_smoothing": 0.0}


def _build_grpo(spec: RunSpec) -> dict[str, Any]:
    """One batch of completions a step, or for `num_iterations` steps. A prompt is never cut: see `make_rows`."""
    from checks.references.objectives import VARIANTS  # loads torch, which a command that runs nothing does without

    variant = VARIANTS[spec.grpo_loss]
    return {
        "beta": spec.beta,
        "loss_type": LOSS_TYPES.get(spec.grpo_loss, spec.grpo_loss),
        "importance_sampling_level": variant.level,
        "epsilon": variant.low,
        "epsilon_high": variant.high,
        "advantage_estimator": "grpo",
        "scale_rewards": "group" if variant.scaled else "none",
        "kl_in_reward": False,
        "num_generations": spec.num_generations,
        "num_iterations": spec.num_iterations,
        "steps_per_generation": spec.accumulation,
        "max_completion_length": spec.max_completion_length,
        "temperature": spec.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "repetition_penalty": 1.0,
        "overlong_filter": False,
        "use_vllm": False,
        "truncation_strategy": "left",
        "external_plugins": [str(REWARDS)],
        "reward_funcs": ["share_characters"],
    }


BUILDERS: Mapping[str, Callable[[RunSpec], dict[str, Any]]] = {"dpo": _build_dpo, "grpo": _build_grpo}
"""objective → what its options add to those of supervised fine-tuning"""


def build_options(spec: RunSpec, sample: Sample) -> dict[str, Any]:
    """The options of `swift rlhf` for an objective, over those that it shares with `swift sft`.

    The answer is what counts; ms-swift's Jinja backend cannot tell it apart from the prompt.
    """
    template = choose_template(spec, sample, answers_only=True)
    return {"rlhf_type": spec.objective, **template, "loss_scale": "last_round", **BUILDERS[spec.objective](spec)}
