"""Which parameter of the recorded model each tensor of a saved checkpoint is, or is a part of. Imports no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from plumbline_capture.format import canonical_name

Shape = Tuple[int, ...]

# Hugging Face 5 holds the experts of a layer stacked and saves them one by one, under the names of either family
# (https://github.com/huggingface/transformers, conversion_mapping.py: qwen2_moe, mixtral).
_EXPERT = re.compile(r"(?P<layer>.+\.)(?:mlp|block_sparse_moe)\.experts\.(?P<expert>\d+)\.(?P<part>\w+)\.weight")
_STACKED = {
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
    "down_proj": ("down_proj", 0),
    "w1": ("gate_up_proj", 0),
    "w3": ("gate_up_proj", 1),
    "w2": ("down_proj", 0),
}
"""part of one expert → the stacked parameter, and its place among the rows of each expert"""

_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight")
_HEADS = ("lm_head.weight", "output.weight", "embed_out.weight")


@dataclass(frozen=True)
class Target:
    """One parameter of the model, and the tensors of the checkpoint that make it."""

    name: str
    """canonical"""
    sources: Tuple[Tuple[str, ...], ...]
    """names in the checkpoint: one; of stacked experts, for each expert those whose rows follow one another"""
    stacked: bool = False
    """a layer's experts, which the checkpoint holds one by one"""
    tied_as: Optional[str] = None
    """canonical name of a tied head, where this is the copy of the embedding that the checkpoint holds under it"""

    @property
    def source(self) -> str:
        """What the manifest calls the source."""
        count = sum(len(parts) for parts in self.sources)
        first = self.sources[0][0]
        return first if count == 1 else f"{first} and {count - 1} more"


def match_names(saved: Mapping[str, Shape], known: Mapping[str, Shape], *, tied: bool) -> List[Target]:
    """Assign every saved tensor to a parameter: saved, known: name → shape; tied: the config ties head and embedding.

    A tensor that is no known parameter, nor a part of one, keeps its own canonical name. So do the experts of a layer
    where one of them is missing or has another shape.
    """
    targets: List[Target] = []
    experts: Dict[str, Dict[Tuple[int, int], str]] = {}
    taken: Set[str] = set()
    for source, shape in saved.items():
        name = canonical_name(source)
        stacked = None if name in known else _stacked(name)
        if stacked is not None and stacked[0] in known:
            experts.setdefault(stacked[0], {})[stacked[1:]] = source
            continue
        embedding = _tied_embedding(name, shape, known) if tied and name not in known else None
        if embedding is not None:
            targets.append(Target(embedding, ((source,),), tied_as=name))
        else:
            targets.append(Target(source if name in taken else name, ((source,),)))
            taken.add(name)
    for name, parts in experts.items():
        whole = _complete(parts, saved, known[name])
        if whole is not None:
            targets.append(Target(name, whole, stacked=True))
        else:
            targets.extend(Target(canonical_name(source), ((source,),)) for source in parts.values())
    return targets


def _stacked(name: str) -> Optional[Tuple[str, int, int]]:
    match = _EXPERT.fullmatch(name)
    if match is None or match["part"] not in _STACKED:
        return None
    parameter, place = _STACKED[match["part"]]
    return f"{match['layer']}mlp.experts.{parameter}", int(match["expert"]), place


def _complete(
    parts: Mapping[Tuple[int, int], str], saved: Mapping[str, Shape], shape: Shape
) -> Optional[Tuple[Tuple[str, ...], ...]]:
    """Return the parts in order, or None unless they make a tensor of `shape`: (experts, rows, columns)."""
    width = 1 + max(place for _, place in parts)
    if set(parts) != {(expert, place) for expert in range(shape[0]) for place in range(width)}:
        return None
    rows = tuple(tuple(parts[expert, place] for place in range(width)) for expert in range(shape[0]))
    return rows if all(_joined(sources, saved) == shape[1:] for sources in rows) else None


def _joined(sources: Sequence[str], saved: Mapping[str, Shape]) -> Optional[Shape]:
    shapes = [saved[source] for source in sources]
    if len({shape[1:] for shape in shapes}) != 1 or not shapes[0]:
        return None
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _tied_embedding(name: str, shape: Shape, known: Mapping[str, Shape]) -> Optional[str]:
    """Return the only embedding that a head of this shape can be tied to."""
    if not name.endswith(_HEADS):
        return None
    found = [other for other, its in known.items() if other.endswith(_EMBEDDINGS) and its == shape]
    return found[0] if len(found) == 1 else None
