"""Headings, order and help of the form's fields."""

from __future__ import annotations

from collections.abc import Mapping

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Objective, batch and data",
        ("objective", "beta", "steps", "batch", "accumulation", "seq_len", "packing", "assistant_only"),
    ),
    ("Precision and attention", ("precision", "attention", "gradient_checkpointing")),
    ("Adapters", ("lora", "lora_r", "lora_alpha", "lora_targets")),
    ("Optimizer", ("optimizer", "lr", "beta1", "beta2", "eps", "weight_decay", "momentum", "max_grad_norm")),
    ("Schedule and seed", ("schedule", "warmup_steps", "seed")),
    ("Processes", ("dp_size", "tp_size", "ep_size", "sharding")),
    ("Rollout engine", ("synced",)),
)
"""Settings that are named in no group come in one of their own, so that a new one is never missing."""

HELP: Mapping[str, str] = {
    "objective": "sft: the next token; dpo: answers preferred over others; framework trl, and data with preferences",
    "beta": "of dpo: how strongly the model is held to what it began as",
    "steps": "optimizer steps; the first and the last are captured",
    "batch": "rows a micro-batch",
    "accumulation": "micro-batches a step",
    "seq_len": "tokens a row, up to the model's positions",
    "precision": "bf16, fp16: autocast over float32 parameters; bf16_params: parameters too",
    "attention": "a family that needs eager has it as its default",
    "packing": "several documents a row",
    "assistant_only": "only the assistant's tokens count",
    "lora": "train adapters instead of the weights",
    "lora_targets": "names of modules, separated by commas",
    "momentum": "of sgd",
    "gradient_checkpointing": "recompute activations in the backward pass",
    "dp_size": "processes that each train on rows of their own",
    "tp_size": "processes that share every weight matrix; framework plain",
    "ep_size": "processes that share the experts; framework plain",
    "sharding": "what data-parallel processes hold: ddp, all of the model; fsdp2, a part of each parameter",
    "synced": "directory of the weights that an engine holds, as safetensors with sync.json; for transfer.sync",
}
