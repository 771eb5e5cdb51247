"""A loop written by hand around accelerate, of releases from 0.32 on: `python accelerate_loop.py config.json`.

Saves with `save_state`, and goes on with `load_state` and `skip_first_batches`, as accelerate's documentation says.
Runs in the release's own environment and imports nothing of Plumbline.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

IGNORED = -100


def main(path: str) -> None:
    """Read the configuration and train all steps, or those after the saved one."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    arguments, spec = config["arguments"], config["spec"]
    torch.manual_seed(config["seed"])
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
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
    loader: Any = DataLoader(
        examples,  # type: ignore[arg-type]
        batch_size=spec["batch"],
        shuffle=True,
        collate_fn=lambda batch: collate(batch, pad_token_id=tokenizer.pad_token_id),
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    if "resume_from" in config:
        accelerator.load_state(config["resume_from"])
        step = int(config["resume_from"].rpartition("-")[2])
    model.train()
    while step < spec["steps"]:
        epoch, done = divmod(step, len(loader))
        loader.set_epoch(epoch)
        batches = accelerator.skip_first_batches(loader, done) if done else loader
        for batch in batches:
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), arguments["max_grad_norm"])
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if arguments.get("save_strategy") == "steps" and step == arguments["save_steps"]:
                accelerator.save_state(str(Path(arguments["output_dir"]) / f"checkpoint-{step}"))
            if step == spec["steps"]:
                return


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
