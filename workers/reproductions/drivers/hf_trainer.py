"""Train with transformers' Trainer, of releases from 4.38 on: `python hf_trainer.py config.json`.

Runs in the release's own environment and imports nothing of Plumbline. Options of a case:
`collator`: "padding" pads with −100 (the default); "language_modeling" is the library's own collator of that name.
`label_first`: the first token of a row has a label too, as where labels are a copy of the tokens.
`pad_with_end`: the tokenizer pads with its end token, as people do where it has no pad token.
`model_class`: the model's class, where it is not the auto class of causal language models.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer, Trainer, TrainingArguments

IGNORED = -100


def main(path: str) -> None:
    """Read the configuration, train, and leave trainer_state.json in the output directory."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    case = config["case"]
    tokenizer = AutoTokenizer.from_pretrained(config["model"])
    if case.get("pad_with_end"):
        tokenizer.pad_token = tokenizer.eos_token
    rows = [json.loads(line) for line in Path(config["rows"]).read_text(encoding="utf-8").split("\n") if line]
    examples = [tokenize(row, tokenizer, config) for row in rows]
    if case.get("collator", "padding") == "language_modeling":
        collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
        examples = [{"input_ids": example["input_ids"]} for example in examples]
    else:
        collator = lambda batch: collate(batch, pad_token_id=tokenizer.pad_token_id)  # noqa: E731
    trainer = Trainer(
        model=load_model(config),
        args=TrainingArguments(**config["arguments"], use_cpu=True, remove_unused_columns=False),
        train_dataset=examples,
        data_collator=collator,
        **{name_of_tokenizer(): tokenizer},
    )
    trainer.train(resume_from_checkpoint=config.get("resume_from"))
    trainer.save_state()


def name_of_tokenizer() -> str:
    """`processing_class` since 4.46."""
    return "processing_class" if "processing_class" in inspect.signature(Trainer.__init__).parameters else "tokenizer"


def load_model(config: dict[str, Any]) -> Any:
    """The checkpoint in float32; `torch_dtype` is what every release of 4 and 5 takes."""
    model_class = getattr(transformers, config["case"].get("model_class", "AutoModelForCausalLM"))
    model = model_class.from_pretrained(
        config["model"], torch_dtype=torch.float32, attn_implementation=config["attention"]
    )
    model.config.use_cache = False
    return model


def tokenize(row: dict[str, Any], tokenizer: Any, config: dict[str, Any]) -> dict[str, list[int]]:
    """Render and tokenise one row, cut to seq_len; every token that something predicts is learned."""
    if "messages" in row:
        text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
    else:
        text = row["text"] if "text" in row else row["prompt"] + row["completion"]
        text += "" if text.endswith(tokenizer.eos_token) else tokenizer.eos_token
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][: config["seq_len"]]
    first = ids[0] if config["case"].get("label_first") else IGNORED
    return {"input_ids": ids, "labels": [first, *ids[1:]]}


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
