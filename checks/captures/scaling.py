"""Attempts at an update under loss scaling, as the recorder saw them. Format: docs/capture-format.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checks.captures.capture import RECORD_AGAIN, Capture
from checks.errors import CaptureError


@dataclass(frozen=True)
class Attempt:
    """One `scaler.step` and the `update` after it.

    `step`: number of the optimizer's step that it was, or would have been. `found_inf`: how many checks found an
    infinity or a NaN, None where none was made. `fused`: the optimizer divides and skips inside of its kernel.
    `clips_before`, `clips_after`: calls of clipping before and after the gradients were divided by the scale. `rate`:
    learning rate of the first group. `set_to`: scale that the caller gave to `update`.
    """

    step: int
    stepped: bool
    fused: bool
    clips_before: int
    clips_after: int
    rate: float | None
    found_inf: float | None
    scale: float
    tracker: int
    next_scale: float
    next_tracker: int
    set_to: float | None
    growth_factor: float
    backoff_factor: float
    growth_interval: int


def read_attempts(capture: Capture, *, rank: int = 0) -> tuple[Attempt, ...]:
    """Every attempt of one rank in order; empty where no scaler was seen.

    Raises:
        CaptureError: a field is missing or of the wrong kind.
    """
    for entry in capture.manifest["ranks"]:
        if int(entry["rank"]) == rank:
            try:
                return tuple(_attempt(raw) for raw in entry.get("scaling") or ())
            except (KeyError, TypeError, ValueError, IndexError) as error:
                found = f"lacks or misstates the field {error} of its loss scaling"
                raise CaptureError(str(capture.path), found, RECORD_AGAIN) from error
    return ()


def _attempt(raw: Mapping[str, Any]) -> Attempt:
    rates = raw["rates"]
    return Attempt(
        step=int(raw["step"]),
        stepped=bool(raw["stepped"]),
        fused=bool(raw["fused"]),
        clips_before=int(raw["clips"]["before_unscale"]),
        clips_after=int(raw["clips"]["after_unscale"]),
        rate=None if not rates or rates[0] is None else float(rates[0]),
        found_inf=None if raw["found_inf"] is None else float(raw["found_inf"]),
        scale=float(raw["scale"]),
        tracker=int(raw["growth_tracker"]),
        next_scale=float(raw["next_scale"]),
        next_tracker=int(raw["next_growth_tracker"]),
        set_to=None if raw["set_to"] is None else float(raw["set_to"]),
        growth_factor=float(raw["growth_factor"]),
        backoff_factor=float(raw["backoff_factor"]),
        growth_interval=int(raw["growth_interval"]),
    )
