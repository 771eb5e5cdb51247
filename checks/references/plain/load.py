"""Read a checkpoint's safetensors straight into the plain model."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from checks.errors import BadRequest
from checks.references.plain.attention import Attention
from checks.references.plain.families import build_plain, read_config
from checks.references.plain.modules import PlainCausalLM, RotaryEmbedding

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

EXPERT = re.compile(r"(?P<stack>.+\.experts)\.(?P<expert>\d+)\.(?P<part>gate|up|down)_proj\.weight")
"""A projection of one expert: published checkpoints of qwen3_moe and deepseek_v3 store each by itself."""


@dataclass(frozen=True)
class Place:
    """Where a stored tensor belongs: the whole of `name`, or the `half` (0, 1, None: both) of one expert's slice."""

    name: str
    expert: int | None = None
    half: int | None = None

    def of(self, stacked: torch.Tensor) -> torch.Tensor:
        """The view of a parameter that the tensor fills; raises IndexError for an expert that is not there."""
        if self.expert is None:
            return stacked
        one = stacked[self.expert]
        return one if self.half is None else one.chunk(2, dim=0)[self.half]


def load_plain(
    checkpoint: Path,
    *,
    dtype: torch.dtype,
    attention: Attention = "sdpa",
    accumulate: torch.dtype | None = None,
    float32: Collection[str] = (),
) -> PlainCausalLM:
    """The plain model with the checkpoint's weights taken to `dtype`, those named in `float32` to no narrower one.

    `accumulate` is float64 for float64 weights, else float32, unless given; buffers of the checkpoint are taken to it.
    Raises BadRequest naming the file for a tensor that is missing, unexpected or of another shape, UnsupportedModel for
    other families.
    """
    config = read_config(checkpoint)
    wide = accumulate or (torch.float64 if dtype == torch.float64 else torch.float32)
    with torch.device("meta"):
        model = build_plain(config, attention=attention, accumulate=wide)
    for module in model.modules():
        if isinstance(module, RotaryEmbedding):
            module.compute_frequencies()
    wanted: Mapping[str, torch.Tensor] = model.state_dict(keep_vars=True)
    filled: Counter[str] = Counter()
    for file, name, tensor in read_tensors(checkpoint):
        if config.ignores(name):
            continue
        place = find_place(name, wanted)
        if place is None:
            raise BadRequest(str(file), f"holds the unexpected tensor {name}", "give the checkpoint of its config.json")
        shape = tuple(place.of(wanted[place.name]).shape)
        if tuple(tensor.shape) != shape:
            found = f"{name} has shape {tuple(tensor.shape)}, config.json asks for {shape}"
            raise BadRequest(str(file), found, "give the checkpoint of its config.json")
        if config.tie_word_embeddings and name == "lm_head.weight":
            check_tied(file, tensor, checkpoint)
            continue
        narrow = torch.promote_types(dtype, torch.float32) if place.name in float32 else dtype
        put(model, place, tensor, dtype=narrow if isinstance(wanted[place.name], nn.Parameter) else wide)
        filled[place.name] += tensor.numel()
    model.tie_weights()
    check_complete(checkpoint, filled, model.state_dict(keep_vars=True))
    return model.train()


def find_place(name: str, wanted: Mapping[str, torch.Tensor]) -> Place | None:
    """Where the tensor `name` goes in a model that has the tensors `wanted`; None where it is unexpected."""
    if name in wanted:
        return Place(name)
    match = EXPERT.fullmatch(name)
    if match is None:
        return None
    stacked = f"{match['stack']}.{'down_proj' if match['part'] == 'down' else 'gate_up_proj'}"
    expert = int(match["expert"])
    if stacked not in wanted or expert >= wanted[stacked].shape[0]:
        return None
    return Place(stacked, expert, {"gate": 0, "up": 1, "down": None}[match["part"]])


def put(model: nn.Module, place: Place, tensor: torch.Tensor, *, dtype: torch.dtype) -> None:
    """Give the model a stored tensor; a stack of experts gets its memory with its first one."""
    path, _, field = place.name.rpartition(".")
    module = model.get_submodule(path)
    held: torch.Tensor = getattr(module, field)
    if place.expert is None:
        taken = tensor.to(dtype)
        setattr(module, field, nn.Parameter(taken) if isinstance(held, nn.Parameter) else taken)
        return
    if held.is_meta:
        held = nn.Parameter(torch.empty(held.shape, dtype=dtype))
        setattr(module, field, held)
    with torch.no_grad():
        place.of(held).copy_(tensor)


def check_complete(checkpoint: Path, filled: Mapping[str, int], held: Mapping[str, torch.Tensor]) -> None:
    """Raise BadRequest where the checkpoint did not fill every tensor of the model."""
    tied = {id(held[name]) for name in filled}
    missing = sorted(name for name, tensor in held.items() if name not in filled and id(tensor) not in tied)
    if missing:
        found = f"lacks the tensor {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        raise BadRequest(str(checkpoint), found, "give a complete checkpoint")
    partial = sorted(name for name, count in filled.items() if count != held[name].numel())
    if partial:
        found = f"holds {filled[partial[0]]} of the {held[partial[0]].numel()} values of {partial[0]}"
        raise BadRequest(str(checkpoint), found, "give a complete checkpoint")


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
