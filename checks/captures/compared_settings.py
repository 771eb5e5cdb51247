"""Scalar settings of the optimizer, the clipping and the modules that differ between two captures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from checks.captures.capture import Capture

Setting = tuple[str, object, object]
"""name, value of a, value of b"""

NO_SETTINGS = frozenset({"config", "name_or_path", "transformers_version"})
"""The config is laid beside a module's scalars; where a model was read from, and what wrote it, are no settings."""


def compare_settings(a: Capture, b: Capture, places: Iterable[tuple[int, int]], *, ranks: bool) -> tuple[Setting, ...]:
    """Settings that differ, by (step, rank); what differs alike on several ranks is told of the first.

    `ranks`: whether a rank is named.
    """
    found: dict[str, Setting] = {}
    for step, rank in places:
        for name, ours, theirs in _settings(a, b, step, rank):
            place = f"step {step} of rank {rank}" if ranks else f"step {step}"
            found.setdefault(repr((step, name, ours, theirs)), (f"{place}: {name}", ours, theirs))
    return tuple(found.values())


def _settings(a: Capture, b: Capture, step: int, rank: int) -> Iterator[Setting]:
    ours, theirs = a.step(step, rank=rank), b.step(step, rank=rank)
    left_optimizer, right_optimizer = ours.recorded_optimizer, theirs.recorded_optimizer
    pairs: list[Setting] = [
        ("optimizer", left_optimizer and left_optimizer.name, right_optimizer and right_optimizer.name),
        ("micro-batches", len(ours.micro_batches), len(theirs.micro_batches)),
        ("clip max_norm", [c.max_norm for c in ours.clips], [c.max_norm for c in theirs.clips]),
    ]
    groups = (optimizer.groups if optimizer else () for optimizer in (left_optimizer, right_optimizer))
    for index, (left, right) in enumerate(zip(*groups, strict=False)):
        for setting in sorted(left.settings.keys() | right.settings.keys()):
            pairs.append((f"{setting} of group {index}", left.settings.get(setting), right.settings.get(setting)))
    for path in sorted(ours.scalars.keys() & theirs.scalars.keys()):
        left_scalars, right_scalars = _flat(ours.scalars[path]), _flat(theirs.scalars[path])
        for attribute in sorted(left_scalars.keys() & right_scalars.keys()):
            pairs.append((f"{path}.{attribute}", left_scalars[attribute], right_scalars[attribute]))
    return (pair for pair in pairs if pair[1] != pair[2])


def _flat(scalars: Mapping[str, object]) -> dict[str, object]:
    """A module's settings with those of its config beside them."""
    flat = {name: value for name, value in scalars.items() if name not in NO_SETTINGS}
    config = scalars.get("config")
    if isinstance(config, Mapping):
        flat |= {
            f"config.{name}": value
            for name, value in config.items()
            if not name.startswith("_") and name not in NO_SETTINGS
        }
    return flat
