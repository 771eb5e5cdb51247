"""From Megatron's parameters to the checkpoint's tensors: the pieces that every rank's parameters are made of.

Fused query, key and value are interleaved by group of heads, gate lies before up in one matrix, experts are counted
from 0 on each rank, layers from 0 in each pipeline stage, the vocabulary is padded and divided by rows. With
Transformer Engine the norm before a matrix is a parameter of that matrix. The statement is this module's own: the
framework's own conversion (mcore-bridge, Megatron-Bridge) is code under test.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from checks.models.checkpoint import read_config
from workers.frameworks.megatron_core.layout import Layout, Place

VERSION = 1
Style = Literal["local", "te"]
"""local: Megatron's own layers; te: Transformer Engine's, which hold the norm before them"""

Box = list[list[int]]
EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


@dataclass(frozen=True)
class Shapes:
    """What of a model's config.json decides how its parameters are fused and divided."""

    layers: int
    heads: int
    groups: int
    head_size: int
    experts: int
    vocabulary: int
    padded_vocabulary: int
    tied: bool
    tensors: Mapping[str, tuple[int, ...]]
    """canonical name → shape"""


def read_shapes(model: Path, *, padded_vocabulary: int | None = None) -> Shapes:
    """Read a checkpoint's config; `padded_vocabulary`: rows with those that only fill up, None for none."""
    from checks.references.scalars import build_empty  # loads torch, which a command that runs nothing does without

    config: Mapping[str, Any] = read_config(model)
    tensors = {name: tuple(parameter.shape) for name, parameter in build_empty(model).named_parameters()}
    heads = int(config["num_attention_heads"])
    vocabulary = int(config["vocab_size"])
    experts = next((config[name] for name in ("num_experts", "num_local_experts") if config.get(name)), 0)
    return Shapes(
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        groups=int(config.get("num_key_value_heads") or heads),
        head_size=int(config.get("head_dim") or config["hidden_size"] // heads),
        experts=int(experts),
        vocabulary=vocabulary,
        padded_vocabulary=vocabulary if padded_vocabulary is None else padded_vocabulary,
        tied=bool(config.get("tie_word_embeddings")),
        tensors=tensors,
    )


def build_name_map(shapes: Shapes, layout: Layout, *, style: Style, prefix: str = "") -> dict[str, Any]:
    """What `plumbline-capture --names` reads: for each rank, parameter → pieces. `prefix`: path of the GPT model."""
    ranks = []
    for rank in range(layout.ranks):
        writer = _Writer(shapes, layout, layout.place(rank), style, prefix)
        ranks.append(dict(writer.write()))
    return {"version": VERSION, "tensors": {k: list(v) for k, v in shapes.tensors.items()}, "ranks": ranks}


Pieces = list[dict[str, Any]]


@dataclass(frozen=True)
class _Writer:
    """Writes one rank's parameters."""

    shapes: Shapes
    layout: Layout
    place: Place
    style: Style
    prefix: str

    def write(self) -> Iterator[tuple[str, Pieces]]:
        for source, pieces in self._parameters():
            yield self.prefix + source, pieces

    def _parameters(self) -> Iterator[tuple[str, Pieces]]:
        shapes, layout, place = self.shapes, self.layout, self.place
        first, last = place.pp == 0, place.pp == layout.pp - 1
        if first:
            yield "embedding.word_embeddings.weight", self._vocabulary_rows(EMBEDDING)
        each = shapes.layers // layout.pp
        for local in range(each):
            for source, pieces in self._layer(place.pp * each + local):
                yield f"decoder.layers.{local}.{source}", pieces
        if last:
            yield "decoder.final_layernorm.weight", self._whole(NORM)
            if not shapes.tied:
                yield "output_layer.weight", self._vocabulary_rows(HEAD)
            elif not first:
                yield "output_layer.weight", self._vocabulary_rows(EMBEDDING)

    def _layer(self, layer: int) -> Iterator[tuple[str, Pieces]]:
        path = f"model.layers.{layer}."
        experts = f"{path}mlp.gate.weight" in self.shapes.tensors
        te = self.style == "te"
        before_attention = "self_attention.linear_qkv.layer_norm_weight" if te else "input_layernorm.weight"
        before_mlp = "mlp.linear_fc1.layer_norm_weight" if te and not experts else "pre_mlp_layernorm.weight"
        yield before_attention, self._whole(f"{path}input_layernorm.weight")
        yield before_mlp, self._whole(f"{path}post_attention_layernorm.weight")
        yield "self_attention.linear_qkv.weight", self._fused_heads(f"{path}self_attn", "weight")
        if f"{path}self_attn.q_proj.bias" in self.shapes.tensors:
            yield "self_attention.linear_qkv.bias", self._fused_heads(f"{path}self_attn", "bias")
        for one, other in (("q_layernorm", "q_norm"), ("k_layernorm", "k_norm")):
            if f"{path}self_attn.{other}.weight" in self.shapes.tensors:
                yield f"self_attention.{one}.weight", self._whole(f"{path}self_attn.{other}.weight")
        yield "self_attention.linear_proj.weight", self._share(f"{path}self_attn.o_proj.weight", axis=1)
        if experts:
            yield "mlp.router.weight", self._whole(f"{path}mlp.gate.weight")
            yield from self._experts(f"{path}mlp.experts")
        else:
            halves = [f"{path}mlp.gate_proj.weight", f"{path}mlp.up_proj.weight"]
            yield "mlp.linear_fc1.weight", self._stacked(halves)
            yield "mlp.linear_fc2.weight", self._share(f"{path}mlp.down_proj.weight", axis=1)

    def _experts(self, path: str) -> Iterator[tuple[str, Pieces]]:
        each = self.shapes.experts // self.layout.ep
        for local in range(each):
            expert = self.place.ep * each + local
            for source, name in (("linear_fc1", "gate_up_proj"), ("linear_fc2", "down_proj")):
                shape = self.shapes.tensors[f"{path}.{name}"]
                target = [[expert, expert + 1], *_all_of(shape[1:])]
                numbered = f"{source}.weight{local}" if self.style == "te" else f"local_experts.{local}.{source}.weight"
                yield f"mlp.experts.{numbered}", [_piece(f"{path}.{name}", _all_of(shape[1:]), target)]

    def _whole(self, name: str) -> Pieces:
        box = _all_of(self.shapes.tensors[name])
        return [_piece(name, box, box)]

    def _share(self, name: str, *, axis: int) -> Pieces:
        """This rank's equal part along one axis."""
        shape = self.shapes.tensors[name]
        part = shape[axis] // self.layout.tp
        source, target = _all_of(shape), _all_of(shape)
        source[axis], target[axis] = [0, part], [self.place.tp * part, (self.place.tp + 1) * part]
        return [_piece(name, source, target)]

    def _stacked(self, names: list[str]) -> Pieces:
        """This rank's rows of several matrices, one after the other."""
        pieces, start = [], 0
        for name in names:
            (found,) = self._share(name, axis=0)
            rows = found["source"][0][1]
            found["source"][0] = [start, start + rows]
            start += rows
            pieces.append(found)
        return pieces

    def _fused_heads(self, path: str, field: str) -> Pieces:
        """For each group of this rank: the rows of its query heads, its key head, its value head."""
        shapes, size = self.shapes, self.shapes.head_size
        per_group = shapes.heads // shapes.groups
        own = shapes.groups // self.layout.tp
        pieces, start = [], 0
        for group in range(self.place.tp * own, (self.place.tp + 1) * own):
            for name, count in (("q_proj", per_group), ("k_proj", 1), ("v_proj", 1)):
                full = f"{path}.{name}.{field}"
                rest = _all_of(shapes.tensors[full][1:])
                rows = count * size
                pieces.append(_piece(full, [[start, start + rows], *rest], [[group * rows, (group + 1) * rows], *rest]))
                start += rows
        return pieces

    def _vocabulary_rows(self, name: str) -> Pieces:
        """This rank's rows of the padded vocabulary; those past its end are padding, a piece of no tensor."""
        width = self.shapes.tensors[name][1]
        part = self.shapes.padded_vocabulary // self.layout.tp
        first = self.place.tp * part
        real = max(0, min(part, self.shapes.vocabulary - first))
        columns = [0, width]
        pieces = [_piece(name, [[0, real], columns], [[first, first + real], columns])] if real else []
        return pieces + ([_piece(None, [[real, part], columns], None)] if real < part else [])


def _piece(name: str | None, source: Box, target: Box | None) -> dict[str, Any]:
    assert target is None or _volume(source) == _volume(target)
    return {"name": name, "source": source, "target": target}


def _all_of(shape: tuple[int, ...]) -> Box:
    return [[0, size] for size in shape]


def _volume(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)
