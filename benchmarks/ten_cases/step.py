"""One training step of a Llama in plain PyTorch, in a healthy or a faulty variant: the program under judgement.

Run by path (`python step.py CHECKPOINT VARIANT`) under the recorder; it imports nothing of this tree.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import nn
from transformers import LlamaForCausalLM

LENGTHS = (61, 24, 96, 45, 70, 37, 88, 52)
"""tokens a row; unequal, so that padding and the token counts of micro-batches matter"""
SEED = 11
FIRST_TOKEN = 3
"""below are the special tokens"""
IGNORED = -100
FAULTY_LAYER = 1
FAULTY_WEIGHT = "model.layers.0.mlp.down_proj"
VARIANTS = (
    "plain",
    "sdpa",
    "micro-batches",
    "bf16",
    "scale-double",
    "scale-percent",
    "eps",
    "weight",
    "not-divided",
    "labels-twice",
)


def main(checkpoint: str, variant: str) -> None:
    """Train one step and print its loss."""
    if variant not in VARIANTS:
        raise SystemExit(f"variant: there is no {variant!r}; use one of {', '.join(VARIANTS)}.")
    torch.manual_seed(SEED)
    model = LlamaForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="sdpa" if variant == "sdpa" else "eager"
    ).train()
    break_model(model, variant)
    input_ids, attention_mask, labels = make_batch(model.config.vocab_size, model.config.pad_token_id)
    tokens = int((labels[:, 1:] != IGNORED).sum())
    if variant == "labels-twice":
        labels = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)  # the model shifts by one itself
        tokens = int((labels[:, 1:] != IGNORED).sum())
    optimizer = torch.optim.AdamW(group_parameters(model), lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
    micro_batches = 2 if variant in ("micro-batches", "not-divided") else 1
    total = 0.0
    for rows in torch.arange(len(LENGTHS)).chunk(micro_batches):
        with torch.autocast("cpu", dtype=torch.bfloat16) if variant == "bf16" else nullcontext():
            loss = model(
                input_ids=input_ids[rows],
                attention_mask=attention_mask[rows],
                labels=labels[rows],
                num_items_in_batch=tokens,
                use_cache=False,
            ).loss
        if variant == "not-divided":
            loss = loss * micro_batches
        loss.backward()
        total += float(loss.detach())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"{variant}: loss {total:.7f} over {tokens} tokens", flush=True)


def make_batch(vocab_size: int, pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(B, S) input_ids, attention_mask and labels of random rows, padded on the right; the same on every run."""
    generator = torch.Generator().manual_seed(SEED)
    rows = [torch.randint(FIRST_TOKEN, vocab_size, (length,), generator=generator) for length in LENGTHS]
    input_ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_token_id)
    attention_mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).to(torch.int64)
    return input_ids, attention_mask, input_ids.masked_fill(attention_mask == 0, IGNORED)


def break_model(model: LlamaForCausalLM, variant: str) -> None:
    """Change what a forward fault changes; nothing for the other variants."""
    attention = model.model.layers[FAULTY_LAYER].self_attn
    if variant == "scale-double":
        attention.scaling *= 2.0
    elif variant == "scale-percent":
        attention.scaling *= 1.01
    elif variant == "eps":
        for module in model.modules():
            if hasattr(module, "variance_epsilon"):
                module.variance_epsilon *= 10.0
    elif variant == "weight":
        with torch.no_grad():
            model.get_submodule(FAULTY_WEIGHT).weight.mul_(1.001)


def group_parameters(model: nn.Module) -> Sequence[dict[str, object]]:
    """Matrices with weight decay, norm weights without."""
    parameters = list(model.parameters())
    return (
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.01},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
