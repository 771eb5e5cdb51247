"""A small model with modules of each kind, and what the recorder would keep of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from checks.captures.capture import Capture, open_capture
from checks.references.batch import Document, MicroBatch

WIDTH, LENGTH, SPLIT = 8, 10, 6


DOCUMENTS = (Document(0, 0, SPLIT), Document(0, SPLIT, LENGTH), Document(1, 0, LENGTH))


class Mix(nn.Module):
    """The running mean over the tokens of a document; `starts`: where documents begin."""

    starts: tuple[tuple[int, ...], ...] = ()

    def forward(self, cache: None, x: torch.Tensor) -> torch.Tensor:
        rows = []
        for index, row in enumerate(x):
            edges = [*(self.starts[index] if self.starts else (0,)), row.shape[0]]
            parts = [row[a:b] for a, b in pairwise(edges)]
            rows.append(torch.cat([p.cumsum(0) / torch.arange(1, p.shape[0] + 1).to(p.dtype)[:, None] for p in parts]))
        return torch.stack(rows)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = Mix()
        self.up = nn.Linear(WIDTH, WIDTH, bias=False)
        self.residual = 1.0

    def forward(self, *, scale: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.residual * x + scale * self.up(self.mix(None, self.norm(x))), None


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, 32, bias=False)

    def block(self, index: int) -> Block:
        layer = self.layers[index]
        assert isinstance(layer, Block)
        return layer

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, position_ids: Any = None) -> torch.Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x, _ = layer(scale=torch.tensor(0.5, dtype=x.dtype), x=x)
        logits: torch.Tensor = self.head(x)
        return logits


def build(dtype: torch.dtype = torch.float64) -> Model:
    torch.manual_seed(0)
    model = Model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.7, generator=torch.Generator().manual_seed(parameter.numel()))
    return model.to(dtype)


def build_framework(dtype: torch.dtype = torch.float64) -> Model:
    """The model as a packing framework runs it: told where documents begin."""
    model = build(dtype)
    model.block(0).mix.starts = model.block(1).mix.starts = ((0, SPLIT), (0,))
    return model


def record(
    model: nn.Module,
    batch: MicroBatch,
    out: Path,
    *,
    change: Callable[[str, torch.Tensor], torch.Tensor | None] | None = None,
) -> Capture:
    """What the recorder keeps of every module: its first tensor argument and its output."""
    tensors: dict[str, torch.Tensor] = {}
    entries: list[dict[str, Any]] = []

    def keep(kind: str, path: str, tensor: torch.Tensor) -> None:
        changed = tensor if change is None else change(f"{kind} {path}", tensor)
        if changed is None:
            return
        key = f"{kind}/0/{path}/full"
        tensors[key] = changed.detach().clone().contiguous()
        entry = {"step": 1, "rank": 0, "micro_batch": 0, "kind": kind, "name": path, "field": None}
        entry |= {"dtype": str(changed.dtype), "global_shape": list(changed.shape), "file": "step.safetensors"}
        entries.append({**entry, "representations": {"full": key}, "stats": {"norm": 0.0, "nonfinite": 0}})

    def hook(path: str) -> Callable[..., None]:
        def after(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            given = next(v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor) and v.dim())
            keep("module_input", path, given)
            keep("module_output", path, output[0] if isinstance(output, tuple) else output)

        return after

    handles = [m.register_forward_hook(hook(p), with_kwargs=True) for p, m in model.named_modules() if p != "layers"]
    with torch.no_grad():
        model(batch.input_ids)
    for handle in handles:
        handle.remove()
    out.mkdir()
    save_file(tensors, out / "step.safetensors")
    size = (out / "step.safetensors").stat().st_size
    manifest = {"format": "plumbline-capture", "version": 1, "ranks": [], "tensors": entries}
    manifest["files"] = [{"path": "step.safetensors", "bytes": size}]
    (out / "manifest.json").write_text(json.dumps(manifest))
    return open_capture(out)
