"""Train with TRL's SFTTrainer or DPOTrainer, of releases from 0.12 on: `python trl_trainer.py config.json`.

Runs in the release's own environment and imports nothing of Plumbline. Options of a case:
`pad_with_end`: the tokenizer pads with its end token, as people do where it has no pad token.
`arguments`: further ones of the trainer's configuration; `answers_after`: the text that an answer of DPO follows.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

TURN = "<|im_start|>assistant\n"
"""how an answer begins in ChatML"""


def main(path: str) -> None:
    """Read the configuration, train, and leave trainer_state.json in the output directory."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    case = config["case"]
    rows = [json.loads(line) for line in Path(config["rows"]).read_text(encoding="utf-8").split("\n") if line]
    tokenizer = AutoTokenizer.from_pretrained(config["model"])
    if case.get("pad_with_end"):
        tokenizer.pad_token = tokenizer.eos_token
    model = load_model(config)
    given = {**config["arguments"], "use_cpu": True, **case.get("arguments", {})}
    beside = {"train_dataset": Dataset.from_list(rows), "processing_class": tokenizer}
    if config["spec"]["objective"] == "dpo":
        name_answers(model, tokenizer, after=case.get("answers_after", TURN))
        arguments = DPOConfig(**given, max_length=config["seq_len"], beta=config["spec"]["beta"])
        trainer = DPOTrainer(model=model, ref_model=load_model(config), args=arguments, **beside)
    else:
        # `max_seq_length` up to 0.15.
        length = "max_length" if "max_length" in inspect.signature(SFTConfig).parameters else "max_seq_length"
        trainer = SFTTrainer(model=model, args=SFTConfig(**given, **{length: config["seq_len"]}), **beside)
    trainer.train()
    trainer.save_state()


def load_model(config: dict[str, Any]) -> Any:
    """The checkpoint in float32; `torch_dtype` is what every release of transformers 4 and 5 takes."""
    return AutoModelForCausalLM.from_pretrained(
        config["model"], torch_dtype=torch.float32, attn_implementation=config["attention"]
    )


def name_answers(model: Any, tokenizer: Any, *, after: str) -> None:
    """Have the model told which tokens are answers, as labels: old releases keep that to themselves.

    What the model makes of them is a loss that the trainer does not look at. `after`: the text that an answer follows.
    """
    mark = tokenizer(after, add_special_tokens=False)["input_ids"]

    def add(module: Any, positional: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        ids = positional[0] if positional else named["input_ids"]
        labels = torch.full_like(ids, -100)
        for row, (tokens, kept) in enumerate(zip(ids.tolist(), named["attention_mask"].tolist(), strict=True)):
            starts = [at for at in range(len(tokens)) if tokens[at : at + len(mark)] == mark]
            answer = [index for index, inside in enumerate(kept) if inside and index >= starts[-1] + len(mark)]
            labels[row, answer] = ids[row, answer]
        return (), {**named, "input_ids": ids, "labels": labels}

    model.register_forward_pre_hook(add, with_kwargs=True)


if __name__ == "__main__":
    main(sys.argv[1])
