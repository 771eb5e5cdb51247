"""Which canonical tensors each parameter of a framework holds, as its adapter states it in a JSON file.

A framework with names and layouts of its own fuses, interleaves and divides what a checkpoint holds apart. Each of its
parameters is stated as pieces: boxes of it that are boxes of canonical tensors. Concatenation, permutation of rows and
slices are all of them, so that the same pieces serve parameters, gradients and optimizer states. The file's form is in
`docs/capture-format.md`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

Box = Tuple[Tuple[int, int], ...]
"""[start, stop) in each dimension"""

VERSION = 1


@dataclass(frozen=True)
class Piece:
    """A box of a parameter, and the box of equally many elements that it is of a canonical tensor."""

    name: str
    source: Box
    target: Box


@dataclass(frozen=True)
class Held:
    """What one rank holds of a canonical tensor: the box that all of its pieces fill."""

    global_shape: Tuple[int, ...]
    box: Box
    sources: Tuple[str, ...]
    """the parameters that it lies in, in the order of the file"""


class NameMap:
    """The pieces of one rank's parameters; `held` says what they make of each canonical tensor."""

    def __init__(self, pieces: Mapping[str, Sequence[Piece]], shapes: Mapping[str, Tuple[int, ...]]) -> None:
        self._pieces = {source: tuple(found) for source, found in pieces.items()}
        self.held = _hold(self._pieces, shapes)
        self._canonical = {
            source: tuple(dict.fromkeys(piece.name for piece in found if piece.name))
            for source, found in self._pieces.items()
        }

    def pieces_of(self, source: str) -> Optional[Tuple[Piece, ...]]:
        """Return the pieces of a parameter; None for one that the map does not know."""
        return self._pieces.get(source)

    def names_of(self, source: str) -> Tuple[str, ...]:
        """Return the canonical tensors that a parameter holds parts of; its own name where the map does not know it."""
        return self._canonical.get(source, (source,))

    def find_gaps(self, shapes: Mapping[str, Sequence[int]]) -> Dict[str, str]:
        """Return parameter → what the map states wrongly of it, for the parameters of these shapes.

        Every element of every parameter must lie in exactly one piece, or in padding, which the file states as a piece
        of no tensor.
        """
        gaps = {source: "the name map does not state it" for source in shapes if source not in self._pieces}
        for source, found in self._pieces.items():
            if source not in shapes:
                gaps[source] = "the model does not have it, and the name map states it"
                continue
            shape, boxes = tuple(shapes[source]), [piece.source for piece in found]
            covered = sum(_volume(box) for box in boxes)
            if any(not _inside(box, shape) for box in boxes):
                gaps[source] = f"a piece of the name map lies outside of its shape {list(shape)}"
            elif covered != math.prod(shape) or _overlap(boxes):
                gaps[source] = f"the name map states {covered} of its {math.prod(shape)} elements, or some twice"
        return gaps


def read_name_map(path: Path, *, rank: int) -> NameMap:
    """Return the map of one rank; raises ValueError, one sentence, for a file that is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']}, known is {VERSION}")
        shapes = {name: tuple(int(size) for size in shape) for name, shape in content["tensors"].items()}
        pieces = {source: [_read_piece(piece) for piece in found] for source, found in content["ranks"][rank].items()}
        return NameMap(pieces, shapes)
    except IndexError:
        raise ValueError(f"{path}: states nothing for rank {rank}") from None
    except (KeyError, TypeError, AttributeError, OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: is no name map ({type(error).__name__}: {error})") from error


def _read_piece(raw: Mapping[str, Any]) -> Piece:
    return Piece(str(raw["name"] or ""), _read_box(raw["source"]), _read_box(raw["target"] or ()))


def _read_box(raw: Sequence[Sequence[int]]) -> Box:
    return tuple((int(start), int(stop)) for start, stop in raw)


def _hold(pieces: Mapping[str, Tuple[Piece, ...]], shapes: Mapping[str, Tuple[int, ...]]) -> Dict[str, Held]:
    targets: Dict[str, List[Box]] = {}
    sources: Dict[str, List[str]] = {}
    for source, found in pieces.items():
        for piece in found:
            if not piece.name:
                continue
            if piece.name not in shapes:
                raise ValueError(f"the name map states no shape of {piece.name}")
            if not _inside(piece.target, shapes[piece.name]) or _volume(piece.source) != _volume(piece.target):
                raise ValueError(f"a piece of {source} is no box of {piece.name}")
            targets.setdefault(piece.name, []).append(piece.target)
            sources.setdefault(piece.name, []).append(source)
    held: Dict[str, Held] = {}
    for name, boxes in targets.items():
        bounds = tuple((min(a for a, _ in side), max(b for _, b in side)) for side in zip(*boxes))
        if sum(_volume(box) for box in boxes) != _volume(bounds) or _overlap(boxes):
            raise ValueError(f"what the parameters hold of {name} is no box of it")
        held[name] = Held(shapes[name], bounds, tuple(dict.fromkeys(sources[name])))
    return held


def _volume(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)


def _inside(box: Box, shape: Sequence[int]) -> bool:
    return len(box) == len(shape) and all(0 <= a < b <= size for (a, b), size in zip(box, shape))


def _overlap(boxes: Sequence[Box]) -> bool:
    """Return whether two boxes share an element; they are sorted by their first side, so that few are compared."""
    active: List[Box] = []
    for box in sorted(boxes):
        active = [other for other in active if other[0][1] > box[0][0]]
        if any(all(a < d and c < b for (a, b), (c, d) in zip(box, other)) for other in active):
            return True
        active.append(box)
    return False
