"""Headings, order and help of the form's fields."""

from __future__ import annotations

from collections.abc import Mapping

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Objective, batch and data",
        ("objective", "beta", "steps", "batch", "accumulation", "seq_len", "packing", "padding_free", "assistant_only"),
    ),
    ("GRPO", ("grpo_loss", "num_generations", "num_iterations", "max_completion_length", "temperature")),
    ("Precision and attention", ("precision", "attention", "gradient_checkpointing")),
    ("Adapters", ("lora", "lora_r", "lora_alpha", "lora_targets")),
    ("Optimizer", ("optimizer", "lr", "beta1", "beta2", "eps", "weight_decay", "momentum", "max_grad_norm")),
    ("Schedule and seed", ("schedule", "warmup_steps", "seed")),
    ("Processes", ("dp_size", "tp_size", "ep_size", "pp_size", "cp_size", "sharding")),
    ("The framework's own", ("options", "command")),
    ("Rollout engine", ("synced",)),
)
"""Settings that are named in no group come in one of their own, so that a new one is never missing."""

HELP: Mapping[str, str] = {
    "objective": "sft: the next token; dpo, orpo, kto: answers preferred over others, from data with preferences; "
    "reward: a score of each of them; "
    "grpo: the model's own answers, by reward; ppo, reinforce_plus_plus: the same, a token at a time; frameworks that "
    "have them",
    "beta": "of dpo, kto, grpo: how strongly the model is held to what it began as; of orpo: weight of the odds ratio; "
    "of reward: that of the centring term",
    "grpo_loss": "the variant that was published",
    "num_generations": "completions of one prompt; batch × accumulation is a multiple of it",
    "num_iterations": "steps on the same completions",
    "max_completion_length": "tokens that are generated at most",
    "temperature": "what logits are divided by, in sampling and in training",
    "steps": "optimizer steps; the first and the last are captured",
    "batch": "rows a micro-batch",
    "accumulation": "micro-batches a step",
    "seq_len": "tokens a row, up to the model's positions",
    "precision": "bf16, fp16: autocast over float32 parameters; bf16_params: parameters too",
    "attention": "a family that needs eager has it as its default",
    "packing": "several documents a row",
    "padding_free": "the rows of a batch in one row, without padding; not in every framework",
    "assistant_only": "only the assistant's tokens count",
    "lora": "train adapters instead of the weights",
    "lora_targets": "names of modules, separated by commas",
    "momentum": "of sgd",
    "gradient_checkpointing": "recompute activations in the backward pass",
    "dp_size": "processes that each train on rows of their own",
    "tp_size": "processes that share every weight matrix; not in every framework",
    "ep_size": "processes that share the experts; not in every framework",
    "pp_size": "processes that each hold some of the layers; not in every framework",
    "cp_size": "processes that share the tokens of every row; not in every framework",
    "sharding": "what data-parallel processes hold: ddp, all of the model; fsdp2, a part of each parameter",
    "options": "settings of this framework alone, each as name=value, separated by commas; see docs/frameworks.md",
    "command": "of framework command, for administrators: what is run, as a shell has it, but by none; {model}, {data} "
    "and {output} stand for paths; state precision, steps and what else is to be judged",
    "synced": "directory of the weights that an engine holds, as safetensors with sync.json; for transfer.sync",
}
