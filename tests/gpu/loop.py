"""A small language model trained in plain torch on a device: `python loop.py DEVICE SIZE STEPS [--deterministic]`.

SIZE is tiny or large. Prints one JSON line: the SHA-256 of the final parameters, the seconds of each step (the device
waited for), and the number of parameters.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    """Of the model and its batch."""

    width: int
    layers: int
    heads: int
    vocabulary: int
    rows: int
    positions: int


SIZES = {"tiny": Size(32, 2, 2, 96, 2, 16), "large": Size(512, 6, 8, 16_384, 8, 512)}


class Block(nn.Module):
    """Causal attention and a feed-forward network, each behind a norm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.first, self.second = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: (rows, positions, width)."""
        rows, positions, width = hidden.shape
        q, k, v = self.qkv(self.first(hidden)).view(rows, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(rows, positions, width))
        return hidden + self.down(functional.gelu(self.up(self.second(hidden))))


class Model(nn.Module):
    """Embedding, blocks, norm, head."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList([Block(size) for _ in range(size.layers)])
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """input_ids: (rows, positions); returns logits (rows, positions, vocabulary)."""
        hidden = self.embed(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def main(device: str, name: str, steps: str, *options: str) -> None:
    """Train, and print what came of it."""
    if "--deterministic" in options:
        torch.use_deterministic_algorithms(True)
    size = SIZES[name]
    torch.manual_seed(0)
    model = Model(size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    seconds = []
    for _ in range(int(steps)):
        began = time.perf_counter()
        for _ in range(2):
            ids = torch.randint(0, size.vocabulary, (size.rows, size.positions), generator=generator).to(device)
            with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
                logits = model(ids)
            loss = functional.cross_entropy(logits[:, :-1].float().reshape(-1, size.vocabulary), ids[:, 1:].reshape(-1))
            (loss / 2).backward()
            del logits, loss
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    content = b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters())
    count = sum(parameter.numel() for parameter in model.parameters())
    print(json.dumps({"digest": hashlib.sha256(content).hexdigest(), "seconds": seconds, "parameters": count}))


if __name__ == "__main__":
    main(*sys.argv[1:])
