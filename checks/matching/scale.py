"""The factor by which something is wrong, as a class that the next seed gives again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, TypeGuard

TOLERANCE = 1e-3
"""A factor this near to a simple ratio is that ratio: float32 sums give it within 1e-5, rounded losses within 1e-3."""
LARGEST_TERM = 8
"""Of numerator and denominator: degrees of accumulation and of parallelism on one machine."""
NEAR = 0.1
"""What depends on how many tokens a row has lies on either side of 1 with one seed or another."""
SAME_DIRECTION = 0.99999
"""Cosine from which on two tensors are multiples of one another."""
NO_SCALE = ""
POOLED = "pooled scale"
"""Name of the measurement that sums all tensors; alone it is wrong where no tensor shows it by itself."""
OBJECTIVE = "objective"
"""Name of the measurement of the scalar that is back-propagated."""
UNRELATED = "other numbers"
UNRELATED_FROM = 0.5
"""Relative difference of a weight from which on it is not the checkpoint's rounded, scaled or partly wrong: two
independent draws of one distribution differ by √2."""


def classify(factor: float) -> str:
    """A simple ratio, a power of two, or only where it lies to 1; empty where nothing is scaled.

    What a run scales by a count of tokens or by a norm is another number with the next seed, and is "an odd factor".

    >>> [classify(each) for each in (0.5000002, 2.0, 65536.0, 0.9738, 1.0, -1.0)]
    ['×1/2', '×2', '×65536', '× an odd factor near 1', '', '×-1']
    """
    if not math.isfinite(factor):
        return "× no finite factor"
    if factor == 0.0:
        return "×0"
    if abs(factor - 1.0) <= TOLERANCE:
        return NO_SCALE
    ratio = Fraction(abs(factor)).limit_denominator(LARGEST_TERM)
    power = Fraction(2) ** round(math.log2(abs(factor)))
    near = (ratio,) if ratio.numerator <= LARGEST_TERM else ()
    for simple in (*near, power):
        if simple and abs(abs(factor) / simple - 1) <= TOLERANCE:
            return f"×{'-' if factor < 0 else ''}{simple}"
    if abs(factor - 1.0) <= NEAR:
        return "× an odd factor near 1"
    return f"× an odd factor {'above' if abs(factor) > 1.0 else 'below'} 1"


def read_scale(evidence: Mapping[str, Any], wrong: Iterable[str]) -> str:
    """The class of the one factor that a verdict's evidence shows; empty where it shows none, or several.

    `wrong`: names of the measurements that do not hold. Read are, in this order, the denominators of a step, its loss
    where that alone is wrong, loaded weights, and the tables of scales and cosines by parameter, of which every wrong
    one must be the same multiple of its reference.
    """
    listed = tuple(dict.fromkeys(wrong))
    total, in_force = evidence.get("total"), evidence.get("in_force")
    if _is_number(total) and _is_number(in_force):
        return _divide(total, in_force)
    loss = evidence.get("loss")
    if listed == (OBJECTIVE,) and isinstance(loss, Mapping):
        return _divide(loss.get("framework"), loss.get("reference"))
    weights = evidence.get("weights_off")
    if isinstance(weights, Mapping) and weights:
        return _agree(_read_weight(each) for each in weights.values())
    return _read_tables(evidence, listed)


def _read_tables(evidence: Mapping[str, Any], wrong: tuple[str, ...]) -> str:
    scales, cosines = evidence.get("scales"), evidence.get("cosines")
    if not isinstance(scales, Mapping) or not isinstance(cosines, Mapping):
        return NO_SCALE
    if wrong == (POOLED,) and _is_number(evidence.get("scale")):
        return classify(float(evidence["scale"]))
    names = [name for name in wrong if _is_number(scales.get(name)) and _is_number(cosines.get(name))]
    if any(abs(cosines[name]) < SAME_DIRECTION for name in names):
        return NO_SCALE
    return _agree(classify(float(scales[name])) for name in names)


def _read_weight(off: Mapping[str, Any]) -> str:
    """Of a loaded weight: its factor where nothing else is wrong with it, else whether it is another weight."""
    relative, scale = off.get("relative"), off.get("scale")
    if not _is_number(relative) or not _is_number(scale):
        return NO_SCALE
    if abs(abs(float(scale) - 1.0) - float(relative)) <= TOLERANCE * float(relative):
        return classify(float(scale))
    return UNRELATED if float(relative) >= UNRELATED_FROM else NO_SCALE


def _divide(one: object, other: object) -> str:
    return classify(one / other) if _is_number(one) and _is_number(other) and other else NO_SCALE


def _agree(classes: Iterable[str]) -> str:
    found = set(classes)
    return found.pop() if len(found) == 1 else NO_SCALE


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
