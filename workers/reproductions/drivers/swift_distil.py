"""Distil with ms-swift's own estimator of the divergence from a teacher: `python swift_distil.py config.json`.

A loop written by hand; the teacher is the checkpoint before training. Padding is as ms-swift's trainer leaves it: 0 in
what the teacher says of a token, −1e10 in what the student says (https://github.com/modelscope/ms-swift/pull/9767).
Runs in the release's own environment and imports nothing of Plumbline.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
from swift.rl_core.advantage import compute_teacher_kl_per_token
from transformers import AutoModelForCausalLM, AutoTokenizer

PADDING = -1e10


def main(path: str) -> None:
    """Read the configuration and train its steps on the rows in order."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    spec = config["spec"]
    torch.manual_seed(config["seed"])
    tokenizer = AutoTokenizer.from_pretrained(config["model"])
    rows = [json.loads(line) for line in Path(config["rows"]).read_text(encoding="utf-8").split("\n") if line]
    examples = [tokenize(row, tokenizer, config) for row in rows]
    student = AutoModelForCausalLM.from_pretrained(
        config["model"], torch_dtype=torch.float32, attn_implementation=config["attention"]
    )
    teacher = copy.deepcopy(student).eval()
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    optimizer = torch.optim.AdamW(student.parameters(), lr=config["arguments"]["learning_rate"])
    student.train()
    for step in range(spec["steps"]):
        chosen = [examples[(step * spec["batch"] + index) % len(examples)] for index in range(spec["batch"])]
        ids, kept = collate(chosen, pad_token_id=tokenizer.pad_token_id)
        counted = kept[:, 1:].bool()
        with torch.no_grad():
            known = score(teacher, ids, kept).masked_fill(~counted, 0.0)
        said = score(student, ids, kept).masked_fill(~counted, PADDING)
        divergence = compute_teacher_kl_per_token(known, said, counted.float())
        (divergence.sum() / counted.sum()).backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), config["arguments"]["max_grad_norm"])
        optimizer.step()
        optimizer.zero_grad()


def score(model: Any, ids: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """(rows, positions − 1): the log-probability of each token after the first.

    The labels only say which tokens count; nobody looks at the loss that the model makes of them.
    """
    labels = ids.masked_fill(kept == 0, -100)
    logits = model(input_ids=ids, attention_mask=kept, labels=labels).logits[:, :-1]
    found: torch.Tensor = logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    return found


def tokenize(row: dict[str, Any], tokenizer: Any, config: dict[str, Any]) -> list[int]:
    """Render and tokenise one row, cut to seq_len."""
    text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids[: config["seq_len"]]


def collate(batch: list[list[int]], *, pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad to the longest row, on the right: tokens, and which are no padding."""
    longest = max(len(ids) for ids in batch)
    ids = torch.tensor([each + [pad_token_id] * (longest - len(each)) for each in batch])
    return ids, torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in batch])


if __name__ == "__main__":
    main(sys.argv[1])
