"""Train with transformers' Trainer as one JSON file says: `python train.py config.json`.

Runs in the framework's environment and imports nothing of Plumbline.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, set_seed

IGNORED = -100


def main(path: str) -> None:
    """Read the configuration, train, and leave trainer_state.json in the output directory."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(config["model"])
    rows = [json.loads(line) for line in Path(config["rows"]).read_text(encoding="utf-8").split("\n") if line]
    examples = [tokenize(row, tokenizer, config) for row in rows]
    # A row cut before its first counted token would only divide by zero when a step holds nothing else.
    examples = [example for example in examples if any(label != IGNORED for label in example["labels"][1:])]
    arguments = TrainingArguments(
        **config["arguments"], use_cpu=not torch.cuda.is_available(), remove_unused_columns=False
    )
    trainer = Trainer(
        model=load_model(config),
        args=arguments,
        train_dataset=examples,
        eval_dataset=examples[: config["evaluated_rows"]] if "evaluated_rows" in config else None,
        data_collator=lambda batch: collate(batch, pad_token_id=find_pad_token(tokenizer)),
        processing_class=tokenizer,
    )
    trainer.train(resume_from_checkpoint=config.get("resume_from"))
    trainer.save_state()
    if "export" in config:
        trainer.save_model(config["export"])


def load_model(config: dict[str, Any]) -> Any:
    """Load the checkpoint in the asked dtype, with adapters where asked."""
    model = AutoModelForCausalLM.from_pretrained(
        config["model"], dtype=getattr(torch, config["dtype"]), attn_implementation=config["attention"]
    )
    model.config.use_cache = False
    if config["lora"] is None:
        return model
    from peft import LoraConfig, get_peft_model

    set_seed(config["seed"])
    # PEFT would raise bfloat16 adapters to float32; a run whose parameters are bfloat16 keeps them so.
    return get_peft_model(model, LoraConfig(**config["lora"]), autocast_adapter_dtype=config["dtype"] == "float32")


def tokenize(row: dict[str, Any], tokenizer: Any, config: dict[str, Any]) -> dict[str, list[int]]:
    """Render and tokenise one row, cut to seq_len; labels are −100 where a token is not to be learned."""
    if "messages" in row:
        rendered = tokenizer.apply_chat_template(
            row["messages"], return_dict=True, return_assistant_tokens_mask=config["assistant_only"]
        )
        ids = rendered["input_ids"]
        learned = rendered["assistant_masks"] if config["assistant_only"] else [1] * len(ids)
    else:
        text = row["text"] if "text" in row else row["prompt"] + row["completion"]
        if not text.endswith(tokenizer.eos_token):
            text += tokenizer.eos_token
        ids = tokenizer(text)["input_ids"]
        context = shared_prefix(tokenizer(row["prompt"])["input_ids"], ids) if config["assistant_only"] else 0
        learned = [int(position >= context) for position in range(len(ids))]
    ids, learned = ids[: config["seq_len"]], learned[: config["seq_len"]]
    labels = [token if keep else IGNORED for token, keep in zip(ids, learned, strict=True)]
    return {"input_ids": ids, "labels": labels}


def shared_prefix(first: list[int], second: list[int]) -> int:
    """Count the leading tokens that both have: the last of the prompt may merge with the completion's first."""
    pairs = zip(first, second, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


def find_pad_token(tokenizer: Any) -> int:
    """Return the padding id; its value is masked everywhere, so that end-of-sequence serves where there is none."""
    return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)


def collate(batch: list[dict[str, list[int]]], *, pad_token_id: int) -> dict[str, torch.Tensor]:
    """Pad to the longest row, on the right."""
    longest = max(len(example["input_ids"]) for example in batch)

    def fill(name: str, value: int) -> torch.Tensor:
        return torch.tensor([example[name] + [value] * (longest - len(example[name])) for example in batch])

    mask = [[1] * len(example["input_ids"]) + [0] * (longest - len(example["input_ids"])) for example in batch]
    return {
        "input_ids": fill("input_ids", pad_token_id),
        "attention_mask": torch.tensor(mask),
        "labels": fill("labels", IGNORED),
    }


if __name__ == "__main__":
    main(sys.argv[1])
