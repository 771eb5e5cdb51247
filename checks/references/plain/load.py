"""Read a checkpoint's safetensors straight into the plain model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from checks.errors import BadRequest
from checks.references.plain.config import PlainConfig
from checks.references.plain.modules import Attention, PlainCausalLM, RotaryEmbedding

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DERIVED = "rotary_emb.inv_freq"
"""Some early llama checkpoints carry this buffer, which follows from the config."""


def load_plain(
    checkpoint: Path, *, dtype: torch.dtype, attention: Attention = "sdpa", accumulate: torch.dtype | None = None
) -> PlainCausalLM:
    """The plain model with the checkpoint's weights taken to `dtype`.

    `accumulate` is float64 for float64 weights, else float32, unless given. Raises BadRequest naming the file for a
    tensor that is missing, unexpected or of another shape, UnsupportedModel for other families.
    """
    config = PlainConfig.from_json(checkpoint)
    wide = accumulate or (torch.float64 if dtype == torch.float64 else torch.float32)
    with torch.device("meta"):
        model = PlainCausalLM(config, attention=attention, accumulate=wide)
    model.model.rotary_emb = RotaryEmbedding(config, accumulate=wide)
    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
    seen: set[str] = set()
    for file, name, tensor in read_tensors(checkpoint):
        if name.endswith(DERIVED):
            continue
        if name not in wanted:
            raise BadRequest(str(file), f"holds the unexpected tensor {name}", "give the checkpoint of its config.json")
        if tuple(tensor.shape) != wanted[name]:
            found = f"{name} has shape {tuple(tensor.shape)}, config.json asks for {wanted[name]}"
            raise BadRequest(str(file), found, "give the checkpoint of its config.json")
        if config.tie_word_embeddings and name == "lm_head.weight":
            check_tied(file, tensor, checkpoint)
            continue
        seen.add(name)
        path, _, field = name.rpartition(".")
        setattr(model.get_submodule(path), field, nn.Parameter(tensor.to(dtype)))
    model.tie_weights()
    missing = sorted(name for name, parameter in model.named_parameters() if name not in seen)
    if missing:
        found = f"lacks the tensor {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        raise BadRequest(str(checkpoint), found, "give a complete checkpoint")
    return model.train()


def read_tensors(checkpoint: Path) -> Iterator[tuple[Path, str, torch.Tensor]]:
    """(file, name, tensor) of every tensor of a checkpoint, one at a time; raises BadRequest naming the file."""
    for file in list_shards(checkpoint):
        try:
            with safe_open(file, framework="pt") as shard:
                names = list(shard.keys())
                for name in names:
                    yield file, name, shard.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise BadRequest(str(file), f"is no readable safetensors file ({error})", "download it again") from error


def list_shards(checkpoint: Path) -> list[Path]:
    """The weight files of a checkpoint, by its index if there is one; raises BadRequest where there is none."""
    index = checkpoint / INDEX
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise BadRequest(str(index), "has no readable weight_map", "download it again") from error
        return [checkpoint / name for name in names]
    if (checkpoint / SINGLE).exists():
        return [checkpoint / SINGLE]
    files = sorted(checkpoint.glob("*.safetensors"))
    if not files:
        raise BadRequest(str(checkpoint), "holds no *.safetensors", "give a directory with a saved checkpoint")
    return files


def check_tied(file: Path, head: torch.Tensor, checkpoint: Path) -> None:
    """Raise BadRequest where a tied checkpoint stores a head that differs from its embedding."""
    for _, name, tensor in read_tensors(checkpoint):
        if name == "model.embed_tokens.weight" and not torch.equal(tensor, head):
            found = "lm_head.weight differs from model.embed_tokens.weight, config.json says that they are tied"
            raise BadRequest(str(file), found, "set tie_word_embeddings to false or save one of them")
