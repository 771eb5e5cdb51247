"""From rows of data to recorded rollouts: what an engine would have sampled, made the same in every run.

The completions of a prompt are cuts of its known answer, of lengths of their own, in which every third token or so is
another one; the reward is the share that was kept. So the trainer is what is judged, and no engine is needed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from checks.errors import BadRequest
from checks.models.checkpoint import read_config
from checks.references.template import ChatTokenizer, load_tokenizer, render_messages
from checks.samples import Prompt, read_prompts
from checks.spec import RunSpec

KEPT = 2.0 / 3.0
"""How often a token is that of the answer."""

VALUE_RANGE = 0.5
"""A recorded value function says between minus and plus this of each token."""


def record_rollouts(spec: RunSpec) -> tuple[Mapping[str, Any], ...]:
    """The completions of all steps in order, those of one prompt next to each other.

    Raises:
        BadRequest: no prompt leaves room for a completion within seq_len.
    """
    tokenizer, room = load_tokenizer(spec.model), spec.seq_len - spec.max_completion_length
    tokenised = ((_encode_prompt(one, tokenizer), _encode(one.answer, tokenizer)) for one in read_prompts(spec.data))
    usable = [(prompt, answer) for prompt, answer in tokenised if 0 < len(prompt) <= room and answer]
    if not usable:
        found = f"{spec.seq_len} leaves no prompt beside {spec.max_completion_length} tokens of a completion"
        raise BadRequest("seq_len", found, "set it higher, or max_completion_length lower")
    vocabulary = int(read_config(spec.model)["vocab_size"])
    rollouts = -(-spec.steps // spec.num_iterations)
    groups = rollouts * spec.batch * spec.accumulation // spec.num_generations
    rows: list[Mapping[str, Any]] = []
    for group in range(groups):
        prompt, answer = usable[group % len(usable)]
        for sample in range(spec.num_generations):
            draw = random.Random(f"{spec.seed} {group} {sample}")
            rows.append(_complete(prompt, answer, draw, spec, vocabulary=vocabulary) | {"group": group})
    return tuple(rows)


def _complete(
    prompt: list[int], answer: list[int], draw: random.Random, spec: RunSpec, *, vocabulary: int
) -> dict[str, Any]:
    most = spec.max_completion_length
    length = draw.randint(max(1, most // 2), most)
    kept = [draw.random() < KEPT for _ in range(length)]
    own = [answer[place % len(answer)] if same else draw.randrange(vocabulary) for place, same in enumerate(kept)]
    row: dict[str, Any] = {
        "tokens": [*prompt, *own],
        "response_length": length,
        "reward": sum(kept) / length,
        "loss_mask": [1] * length,
    }
    if spec.objective == "ppo":
        row["values"] = [draw.uniform(-VALUE_RANGE, VALUE_RANGE) for _ in range(length)]
    return row


def _encode_prompt(one: Prompt, tokenizer: ChatTokenizer) -> list[int]:
    if not one.messages:
        return list(tokenizer.tokenizer.encode(one.text).ids)
    return _encode(render_messages(one.messages, tokenizer, add_generation_prompt=True), tokenizer)


def _encode(text: str, tokenizer: ChatTokenizer) -> list[int]:
    return list(tokenizer.tokenizer.encode(text, add_special_tokens=False).ids)
