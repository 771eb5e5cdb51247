"""A loop written by hand around DeepSpeed's engine, of releases from 0.17 on: `python deepspeed_loop.py config.json`.

One process, gloo, no partitioning; the rate warms up with `WarmupLR`, whose highest rate is left to its default.
Runs in the release's own environment and imports nothing of Plumbline.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch

os.environ["DS_ACCELERATOR"] = "cpu"  # DeepSpeed reads it when it is imported

import deepspeed
from transformers import AutoModelForCausalLM, AutoTokenizer

IGNORED = -100


def main(path: str) -> None:
    """Read the configuration and train its steps on the rows in order."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    arguments, spec = config["arguments"], config["spec"]
    join_alone()
    tokenizer = AutoTokenizer.from_pretrained(config["model"])
    rows = [json.loads(line) for line in Path(config["rows"]).read_text(encoding="utf-8").split("\n") if line]
    examples = [tokenize(row, tokenizer, config) for row in rows]
    model = AutoModelForCausalLM.from_pretrained(
        config["model"], torch_dtype=torch.float32, attn_implementation=config["attention"]
    )
    warmup = {"warmup_num_steps": arguments["warmup_steps"], "warmup_type": "linear"}
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": spec["batch"],
            "gradient_accumulation_steps": 1,
            "gradient_clipping": arguments["max_grad_norm"],
            "optimizer": {
                "type": "AdamW",
                "params": {
                    "torch_adam": True,
                    "lr": arguments["learning_rate"],
                    "betas": [arguments["adam_beta1"], arguments["adam_beta2"]],
                    "eps": arguments["adam_epsilon"],
                    "weight_decay": arguments["weight_decay"],
                },
            },
            "scheduler": {"type": "WarmupLR", "params": warmup},
        },
    )
    engine.train()
    for step in range(spec["steps"]):
        chosen = [examples[(step * spec["batch"] + index) % len(examples)] for index in range(spec["batch"])]
        engine.backward(engine(**collate(chosen, pad_token_id=tokenizer.pad_token_id)).loss)
        engine.step()


def join_alone() -> None:
    """The variables of a run of one process, at a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in alone.items()})
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)


def tokenize(row: dict[str, Any], tokenizer: Any, config: dict[str, Any]) -> list[int]:
    """Render and tokenise one row, cut to seq_len; every token is learned."""
    text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids[: config["seq_len"]]


def collate(batch: list[list[int]], *, pad_token_id: int) -> dict[str, torch.Tensor]:
    """Pad to the longest row, on the right."""
    longest = max(len(ids) for ids in batch)
    padding = [longest - len(ids) for ids in batch]
    return {
        "input_ids": torch.tensor([ids + [pad_token_id] * more for ids, more in zip(batch, padding, strict=True)]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * more for ids, more in zip(batch, padding, strict=True)]),
        "labels": torch.tensor([ids + [IGNORED] * more for ids, more in zip(batch, padding, strict=True)]),
    }


if __name__ == "__main__":
    main(sys.argv[1])
