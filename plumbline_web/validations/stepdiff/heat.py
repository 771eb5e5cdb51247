"""The heatmap's colour: log10(error / threshold), so that the hue turns where each tensor's own threshold lies."""

from __future__ import annotations

import math
from dataclasses import dataclass

BINS_A_DECADE = 2
DECADES = 4
"""On either side of the threshold; what lies further has the last colour."""

MOST = BINS_A_DECADE * DECADES


@dataclass(frozen=True)
class Swatch:
    """One colour of the legend: `shade` as `shade` gives it, `low` its lower end in thresholds."""

    shade: str
    low: float

    @property
    def exponent(self) -> int:
        return round(math.log10(self.low))

    @property
    def is_decade(self) -> bool:
        return round(math.log10(self.low) * BINS_A_DECADE) % BINS_A_DECADE == 0


def shade(ratio: float, *, holds: bool) -> str:
    """The CSS class of an error given in thresholds: `heat-n8` … `heat-n1` below it, `heat-p1` … `heat-p8` above.

    `holds` decides the side, so that colour and verdict cannot disagree at the threshold itself.
    """
    if math.isnan(ratio):
        return "heat-nan"
    if ratio <= 0.0:
        return f"heat-n{MOST}"
    position = math.inf if math.isinf(ratio) else math.log10(ratio) * BINS_A_DECADE
    if holds:
        return f"heat-n{int(min(MOST, max(1, -math.floor(max(position, -MOST)))))}"
    return f"heat-p{int(min(MOST, max(1, math.floor(min(position, MOST)) + 1)))}"


def list_swatches() -> tuple[Swatch, ...]:
    """The scale from far below the threshold to far above, in the order of a legend."""
    below = [Swatch(f"heat-n{MOST - i}", 10.0 ** (-(MOST - i) / BINS_A_DECADE)) for i in range(MOST)]
    above = [Swatch(f"heat-p{i + 1}", 10.0 ** (i / BINS_A_DECADE)) for i in range(MOST)]
    return (*below, *above)
