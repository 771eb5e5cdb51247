"""What the recorder's meter counted, as typed values. Format: docs/capture-format.md, "Memory"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checks.captures.capture import RECORD_AGAIN, Capture
from checks.errors import CaptureError


@dataclass(frozen=True)
class Group:
    """Storages that are alike: `count` tensors of this shape, made by one operation in one kind of module.

    `module`: path of one of the modules in whose forward they were made, None outside of modules; `caller`: the line
    that asked for them; `role`: parameter, buffer, gradient or state where they are known to be one.
    """

    bytes: int
    count: int
    shape: tuple[int, ...]
    dtype: str
    role: str | None
    operation: str
    module: str | None
    caller: str | None
    phase: str
    step: int
    micro_batch: int | None

    @property
    def sentence(self) -> str:
        """The group as a sentence names it."""
        shape = " × ".join(map(str, self.shape)) or "one number"
        made = f"made in {self.module}" if self.module else f"made in the {self.phase} phase"
        line = f" ({self.caller})" if self.caller else ""
        return f"{self.count} of {shape} {self.dtype.removeprefix('torch.')}, {made}{line}"


@dataclass(frozen=True)
class Phase:
    """One phase of a step: bytes alive when it began and ended and at its peak.

    `left`: bytes that were made in it, are nothing that must stay, and were alive at its end. `at_peak`, `left_groups`:
    what that was, for the captured steps.
    """

    step: int
    micro_batch: int | None
    name: str
    begin: int
    end: int
    peak: int
    left: int
    at_peak: tuple[Group, ...]
    left_groups: tuple[Group, ...]
    allocator: int | None
    allocator_peak: int | None


@dataclass(frozen=True)
class Copies:
    """How many of the parameters' shapes are found among tensors that are nothing known."""

    matched: int
    of: int
    bytes: int
    largest: Group | None


@dataclass(frozen=True)
class Survivors:
    """What was made in an earlier step and is alive, numbers left out."""

    made_in: int
    bytes: int
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Moment:
    """What was alive before or after an update, by what it is; `others` is nothing known."""

    step: int
    name: str
    live: int
    parameters: int
    buffers: int
    gradients: int
    states: int
    other: int
    others: tuple[Group, ...]
    copies_of_parameters: Copies
    copies_of_trainable: Copies
    survivors: tuple[Survivors, ...]
    allocator: int | None


@dataclass(frozen=True)
class Zeroed:
    """One `zero_grad`: how it was called, and the bytes of gradients that it left alive."""

    step: int
    set_to_none: bool
    alive: int
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Measured:
    """The memory of one process's steps."""

    device: str
    operations: int
    phases: tuple[Phase, ...]
    moments: tuple[Moment, ...]
    zeroed: tuple[Zeroed, ...]

    def phases_of(self, step: int, name: str) -> tuple[Phase, ...]:
        return tuple(phase for phase in self.phases if phase.step == step and phase.name == name)

    def moments_named(self, name: str) -> tuple[Moment, ...]:
        return tuple(moment for moment in self.moments if moment.name == name)


BEFORE, AFTER = "before the update", "after the update"


def read_measured(capture: Capture) -> tuple[Measured, ...]:
    """The memory of every process that was metered; empty where none was.

    Raises:
        CaptureError: a field is missing or of the wrong kind.
    """
    try:
        return tuple(_measured(raw) for raw in capture.manifest.get("memory", ()))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        found = f"lacks or misstates the field {error} of its memory"
        raise CaptureError(str(capture.path), found, RECORD_AGAIN) from error


def _measured(raw: Mapping[str, Any]) -> Measured:
    return Measured(
        device=str(raw["device"]),
        operations=int(raw["operations"]),
        phases=tuple(_phase(each) for each in raw["phases"] if "end_bytes" in each),
        moments=tuple(_moment(each) for each in raw["settled"]),
        zeroed=tuple(
            Zeroed(
                step=int(each["step"]),
                set_to_none=bool(each["set_to_none"]),
                alive=int(each["alive_bytes"]),
                groups=parse_groups(each["groups"]),
            )
            for each in raw["zeroed"]
        ),
    )


def _phase(raw: Mapping[str, Any]) -> Phase:
    return Phase(
        step=int(raw["step"]),
        micro_batch=raw["micro_batch"],
        name=str(raw["phase"]),
        begin=int(raw["begin_bytes"]),
        end=int(raw["end_bytes"]),
        peak=int(raw["peak_bytes"]),
        left=int(raw["left_bytes"]),
        at_peak=parse_groups(raw["at_peak"]["groups"] if "at_peak" in raw else ()),
        left_groups=parse_groups(raw.get("left", ())),
        allocator=raw.get("allocator_bytes"),
        allocator_peak=raw.get("allocator_peak_bytes"),
    )


def _moment(raw: Mapping[str, Any]) -> Moment:
    return Moment(
        step=int(raw["step"]),
        name=str(raw["moment"]),
        live=int(raw["live_bytes"]),
        parameters=int(raw["parameter_bytes"]),
        buffers=int(raw["buffer_bytes"]),
        gradients=int(raw["gradient_bytes"]),
        states=int(raw["state_bytes"]),
        other=int(raw["other_bytes"]),
        others=parse_groups(raw["others"]),
        copies_of_parameters=_copies(raw["copies"]["parameters"]),
        copies_of_trainable=_copies(raw["copies"]["trainable"]),
        survivors=tuple(
            Survivors(int(each["made_in"]), int(each["bytes"]), parse_groups(each["groups"]))
            for each in raw["survivors"]
        ),
        allocator=raw.get("allocator_bytes"),
    )


def _copies(raw: Mapping[str, Any]) -> Copies:
    largest = raw["largest"]
    return Copies(
        int(raw["matched"]), int(raw["of"]), int(raw["bytes"]), None if largest is None else parse_group(largest)
    )


def parse_groups(raw: Sequence[Mapping[str, Any]]) -> tuple[Group, ...]:
    return tuple(parse_group(each) for each in raw)


def parse_group(raw: Mapping[str, Any]) -> Group:
    return Group(
        bytes=int(raw["bytes"]),
        count=int(raw["count"]),
        shape=tuple(raw["shape"]),
        dtype=str(raw["dtype"]),
        role=raw["role"],
        operation=str(raw["operation"]),
        module=raw["module"],
        caller=raw["caller"],
        phase=str(raw["phase"]),
        step=int(raw["step"]),
        micro_batch=raw["micro_batch"],
    )
