"""The halves: what thresholds and checks were looked at with, and what they are scored on."""

from __future__ import annotations

import hashlib
from typing import Literal

from checks.models import FAMILIES

Half = Literal["calibration", "held out"]
HALVES: tuple[Half, ...] = ("calibration", "held out")


def half_of_family(family: str) -> Half:
    """The half that benchmarks.calibration gives a family: every second one in the alphabet is held out."""
    return HALVES[sorted(FAMILIES).index(family) % 2]


def half_of_fault(slug: str) -> Half:
    """By a hash of the slug, so that a new fault moves none of the others."""
    return HALVES[hashlib.sha256(slug.encode()).digest()[0] % 2]
