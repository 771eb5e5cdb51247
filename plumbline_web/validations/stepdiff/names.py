"""Where a tensor sits: its row and column of the heatmap, by its canonical name."""

from __future__ import annotations

import re
from dataclasses import dataclass

OUTSIDE = "outside the layers"
"""Column of what belongs to no layer: embedding, final norm, head."""

PARTS = ("bias", "lora_A", "lora_B")
"""Parameters that a module has beside its weight: they stand under what the module stands under."""

_LAYER = re.compile(r"^(?P<before>.*\blayers)\.(?P<layer>\d+)\.(?P<rest>.+)$")
_EXPERT = re.compile(r"\bexperts\.(?P<expert>\d+)\.")


@dataclass(frozen=True)
class Place:
    """`row`: key and title of a layer, or of one tensor outside them; `column`: parameter kind within a layer."""

    row: str
    column: str
    layer: int | None
    expert: int | None
    """of a tensor that belongs to one expert; the experts of a layer share a cell"""

    @property
    def group(self) -> str:
        """What the column's head stands under: `self_attn`, `mlp`, `mlp.experts` …; empty for the layer's own."""
        return self._split()[0]

    @property
    def short(self) -> str:
        """`q_proj`, `q_proj bias`, `q_proj lora_A`."""
        return self._split()[1]

    def _split(self) -> tuple[str, str]:
        if self.layer is None:
            return "", self.column
        parts = self.column.split(".")
        own = 2 if len(parts) > 1 and parts[-1] in PARTS else 1
        return ".".join(parts[:-own]), " ".join(parts[-own:])


def place(name: str) -> Place:
    """Read a canonical parameter name or a module path.

    `model.layers.3.self_attn.q_proj.weight` is row `layers.3`, column `self_attn.q_proj`; biases keep their ending.
    """
    found = _LAYER.match(name)
    if found is None:
        return Place(name.removeprefix("model.").removesuffix(".weight"), OUTSIDE, None, None)
    rest = found["rest"].removesuffix(".weight")
    expert = _EXPERT.search(f"{rest}.")
    if expert is not None:
        rest = _EXPERT.sub("experts.", f"{rest}.").rstrip(".")
    stack = found["before"].removeprefix("model.")
    return Place(f"{stack}.{found['layer']}", rest, int(found["layer"]), int(expert["expert"]) if expert else None)
