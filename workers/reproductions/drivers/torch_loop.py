"""A loop written by hand on torch, with a model of transformers from 4.38 on: `python torch_loop.py config.json`.

Under bf16 autocast where the run asks for it. Options of a case: `scheduler`: "deepspeed" warms the rate up with
DeepSpeed's WarmupLR, which is told the number of steps and nothing of the rate, and stepped before each update.
Runs in the release's own environment and imports nothing of Plumbline.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

IGNORED = -100


def main(path: str) -> None:
    """Read the configuration, train its steps on the rows in order, and log what a Trainer logs."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    arguments, spec = config["arguments"], config["spec"]
    torch.manual_seed(config["seed"])
    tokenizer = AutoTokenizer.from_pretrained(config["model"])
    rows = [json.loads(line) for line in Path(config["rows"]).read_text(encoding="utf-8").split("\n") if line]
    examples = [tokenize(row, tokenizer, config) for row in rows]
    model = AutoModelForCausalLM.from_pretrained(
        config["model"], torch_dtype=torch.float32, attn_implementation=config["attention"]
    )
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=arguments["learning_rate"],
        betas=(arguments["adam_beta1"], arguments["adam_beta2"]),
        eps=arguments["adam_epsilon"],
        weight_decay=arguments["weight_decay"],
    )
    scheduler = make_scheduler(optimizer, spec, config["case"])
    model.train()
    log: list[dict[str, Any]] = []
    taken = 0
    for step in range(1, spec["steps"] + 1):
        if scheduler is not None:
            scheduler.step()
        chosen = [examples[(taken + index) % len(examples)] for index in range(spec["batch"])]
        taken += spec["batch"]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments["bf16"]):
            loss = model(**collate(chosen, pad_token_id=tokenizer.pad_token_id)).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), arguments["max_grad_norm"])
        rate = optimizer.param_groups[0]["lr"]
        log.append({"step": step, "loss": float(loss.detach()), "grad_norm": float(norm), "learning_rate": rate})
        optimizer.step()
        optimizer.zero_grad()
    output = Path(arguments["output_dir"])
    output.mkdir(parents=True, exist_ok=True)
    (output / "trainer_state.json").write_text(json.dumps({"log_history": log}), encoding="utf-8")


def make_scheduler(optimizer: torch.optim.Optimizer, spec: dict[str, Any], case: dict[str, Any]) -> Any:
    """The case's own; None where the rate stays."""
    if case.get("scheduler") != "deepspeed":
        return None
    from deepspeed.runtime.lr_schedules import WarmupLR

    return WarmupLR(optimizer, warmup_num_steps=spec["warmup_steps"], warmup_type="linear")


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
