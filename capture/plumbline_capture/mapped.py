"""Keep a parameter's tensor under the names of the checkpoint: as it is, or cut into the pieces of a name map."""

from __future__ import annotations

import math
from typing import List, Optional

import torch

from plumbline_capture.name_map import Held, NameMap
from plumbline_capture.represent import Placed, keep_placed, keep_tensor, locate
from plumbline_capture.roots import Name
from plumbline_capture.state import Filling, Recorder

PARTIAL = {"ranks": "partial"}
"""placement of what adds up over the ranks that keep the same part"""


def keep_named(
    recorder: Recorder,
    tensor: torch.Tensor,
    *,
    kind: str,
    name: Name,
    field: Optional[str] = None,
    partial: bool = False,
) -> float:
    """Keep a parameter, or a tensor that belongs to it, for the step's file; returns its Euclidean norm on this rank.

    Where a name map knows the parameter, its pieces go to the canonical tensors that they are parts of. Such a tensor
    is kept once all its pieces on this rank have come. A tensor of another shape than its parameter (a counter of
    steps) belongs to each of them. `partial`: what ranks keep of it adds up to the tensor.
    """
    pieces = None if recorder.names is None else recorder.names.pieces_of(name.canonical)
    if recorder.names is None or pieces is None:
        placed = locate(tensor)
        if partial:
            placed = Placed(placed.local, placed.global_shape, placed.where, PARTIAL)
        if name.order is not None and tensor.dim() == len(name.order):
            placed = placed.permute(name.order)
        entry = keep_placed(recorder, placed, kind=kind, name=name.canonical, source_name=name.source, field=field)
        return entry.stats["norm"] or 0.0
    if tensor.dim() != len(pieces[0].source):
        for canonical in recorder.names.names_of(name.canonical):
            keep_tensor(recorder, tensor, kind=kind, name=canonical, source_name=name.source, field=field)
        return 0.0
    square: float = 0.0
    for piece in pieces:
        if not piece.name:
            continue
        part = tensor.detach()[tuple(slice(start, stop) for start, stop in piece.source)]
        held = recorder.names.held[piece.name]
        key = "/".join((kind, piece.name, field or ""))
        filling = recorder.now.fillings.get(key)
        if filling is None:
            shape = [stop - start for start, stop in held.box]
            filling = recorder.now.fillings[key] = Filling(torch.empty(shape, dtype=tensor.dtype, device=tensor.device))
        offsets = [start for start, _ in held.box]
        place = tuple(slice(a - offset, b - offset) for (a, b), offset in zip(piece.target, offsets))
        filling.tensor[place] = part.reshape(filling.tensor[place].shape)
        filling.filled += part.numel()
        square += float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2
        if filling.filled == filling.tensor.numel():
            _keep_whole(recorder, filling, held, kind=kind, name=piece.name, field=field, partial=partial)
            del recorder.now.fillings[key]
    return math.sqrt(square)


def _keep_whole(
    recorder: Recorder, filling: Filling, held: Held, *, kind: str, name: str, field: Optional[str], partial: bool
) -> None:
    where = [list(span) for span in held.box]
    whole = all(span == (0, size) for span, size in zip(held.box, held.global_shape))
    placement = PARTIAL if partial else {} if whole else {"ranks": "shard"}
    placed = Placed(filling.tensor, held.global_shape, where, dict(placement))
    keep_placed(recorder, placed, kind=kind, name=name, source_name=", ".join(held.sources), field=field)


def canonical_names(names: Optional[NameMap], sources: List[str]) -> List[str]:
    """Return the canonical tensors that parameters hold parts of, each once."""
    if names is None:
        return sources
    return list(dict.fromkeys(name for source in sources for name in names.names_of(source)))


def note_uncovered(recorder: Recorder) -> None:
    """State every parameter of the model that the name map leaves out, or states otherwise than it is."""
    root = recorder.root
    if recorder.names is None or root is None:
        return
    shapes = {}
    for parameter in root.outer.parameters():
        name = root.name_of(parameter)
        if name is not None:
            shapes[name.canonical] = tuple(parameter.shape)
    for source, why in recorder.names.find_gaps(shapes).items():
        recorder.note_missing(f"name of {source}", why)


def note_unfilled(recorder: Recorder) -> None:
    """State every canonical tensor of which this step gave some pieces and not all."""
    for key, filling in recorder.now.fillings.items():
        kind, name, field = key.split("/")
        what = f"{kind} {name} {field}".rstrip()
        recorder.note_missing(what, f"{filling.filled} of its {filling.tensor.numel()} elements on this rank were seen")
    recorder.now.fillings.clear()
