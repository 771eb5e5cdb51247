"""Which of the trainer's parameters the tensors of a dump are: fused ones are cut, single experts are stacked.

Engines fuse matrices that read the same input: vLLM and SGLang hold q, k and v as `qkv_proj`, gate and up as
`gate_up_proj`, a layer's experts as `w13_weight` and `w2_weight`
(https://docs.vllm.ai/en/latest/contributing/model/basic.html, `stacked_params_mapping` of each model's `load_weights`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from plumbline_capture.format import canonical_name
from plumbline_capture.saved_names import Target, match_names

from checks.transfer.dump import Dump

FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
}
"""module of an engine → the trainer's, whose rows follow one another in it"""

STACKED = {"experts.w13_weight": "experts.gate_up_proj", "experts.w2_weight": "experts.down_proj"}
"""a layer's experts in an engine → the trainer's stacked parameter"""

EMBEDDINGS = ("embed_tokens.weight", "lm_head.weight")
"""Engines add rows to these, for the vocabulary to divide over ranks."""

DERIVED = ("cos_sin_cache", "inv_freq", "k_scale", "v_scale", "q_scale", "prob_scale", "expert_map")
"""Buffers that an engine computes or sets itself: rotary tables and scales of its cache."""


@dataclass(frozen=True)
class _Rows:
    """Rows `start` to `stop` of a dump's tensor; all of them for None."""

    source: str
    start: int = 0
    stop: int | None = None


class Reads(Protocol):
    """Gives tensors by the names of a dump: the dump itself, or what its quantised tensors stand for."""

    def read(self, name: str) -> torch.Tensor: ...


@dataclass(frozen=True)
class Matching:
    """`targets`: parameter → what makes it; `copies`: embedding → tied heads beside it; `missing`: parameters without a
    tensor; `extra`: tensors that are no parameter; `padded`: tensors of which only the first rows are the trainer's.
    """

    targets: Mapping[str, Target]
    copies: Mapping[str, tuple[Target, ...]]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    padded: tuple[str, ...]
    rows: Mapping[str, _Rows]

    def assemble(self, target: Target, dump: Reads) -> torch.Tensor:
        """The tensor of the dump that stands for a parameter, in the parameter's shape."""
        parts = [[self._cut(name, dump) for name in names] for names in target.sources]
        return torch.stack([torch.cat(rows) for rows in parts]) if target.stacked else parts[0][0]

    def source_of(self, target: Target) -> str:
        """The dump's own name of it."""
        return self.rows[target.sources[0][0]].source

    def _cut(self, name: str, dump: Reads) -> torch.Tensor:
        rows = self.rows[name]
        tensor = dump.read(rows.source)
        return tensor if rows.stop is None and not rows.start else tensor[rows.start : rows.stop]


def match_dump(dump: Dump, known: Mapping[str, tuple[int, ...]], *, tied: bool, names: Iterable[str]) -> Matching:
    """Lay a dump's tensors of these `names` and the trainer's parameters together; `known`: parameter → shape."""
    rows: dict[str, _Rows] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    padded: list[str] = []
    for source in names:
        if source.endswith(DERIVED):
            continue
        shape = dump.shapes[source]
        for name, cut, cut_shape in _unfuse(source, shape, known, tied=tied):
            rows[name], shapes[name] = cut, cut_shape
            if cut.stop is not None and not cut.start and name.endswith(EMBEDDINGS):
                padded.append(source)
    targets: dict[str, Target] = {}
    copies: dict[str, list[Target]] = {}
    extra: list[str] = []
    for target in match_names(shapes, known, tied=tied):
        if target.tied_as is not None:
            copies.setdefault(target.name, []).append(target)
        elif target.name in known and target.name not in targets:
            targets[target.name] = target
        else:
            extra.append(rows[target.sources[0][0]].source)
    for name in [name for name in copies if name not in targets]:
        targets[name] = copies[name].pop(0)
    missing = tuple(name for name in known if name not in targets)
    found = {name: tuple(each) for name, each in copies.items() if each}
    return Matching(targets, found, missing, tuple(dict.fromkeys(extra)), tuple(padded), rows)


def _unfuse(
    source: str, shape: tuple[int, ...], known: Mapping[str, tuple[int, ...]], *, tied: bool
) -> Iterator[tuple[str, _Rows, tuple[int, ...]]]:
    """What a tensor of the dump is called in the trainer, part by part: name, rows, shape."""
    name = canonical_name(source)
    for engine, trainer in STACKED.items():
        if name.endswith(engine) and name not in known:
            name = name.removesuffix(engine) + trainer
    path, _, field = name.rpartition(".")
    parent, _, module = path.rpartition(".")
    parts = [f"{parent}.{part}.{field}" for part in FUSED.get(module, ())]
    if parts and name not in known and all(part in known for part in parts):
        heights = [known[part][0] for part in parts]
        if sum(heights) == shape[0] and all(known[part][1:] == shape[1:] for part in parts):
            start = 0
            for part, height in zip(parts, heights, strict=True):
                yield part, _Rows(source, start, start + height), (height, *shape[1:])
                start += height
            return
    own = _unpadded(name, shape, known, tied=tied)
    if own is not None:
        yield name, _Rows(source, 0, own), (own, *shape[1:])
    else:
        yield name, _Rows(source), shape


def _unpadded(name: str, shape: tuple[int, ...], known: Mapping[str, tuple[int, ...]], *, tied: bool) -> int | None:
    """The trainer's number of rows where a dump has more of them, for a vocabulary."""
    if not name.endswith(EMBEDDINGS) or len(shape) != 2:
        return None
    embeddings = [each for key, each in known.items() if key.endswith(EMBEDDINGS[0])]
    its = known.get(name) or (embeddings[0] if tied and len(embeddings) == 1 else None)
    return its[0] if its is not None and its[1:] == shape[1:] and its[0] < shape[0] else None
