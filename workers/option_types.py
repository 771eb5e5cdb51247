"""What options of several commands are read with; a wrong one is a sentence of argparse's."""

from __future__ import annotations

import argparse
import math


def split_names(text: str) -> tuple[str, ...]:
    """Names separated by commas, none of them empty."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name")
    return names


def parse_positive(text: str) -> float:
    """A finite number above 0."""
    number = _parse_finite(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def parse_not_negative(text: str) -> float:
    """A finite number, 0 or more."""
    number = _parse_finite(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, 0 or more")
    return number


def _parse_finite(text: str) -> float:
    """The number; NaN, which is neither above nor below anything, for all else."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
