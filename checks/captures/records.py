"""The manifest's per-step records as frozen values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from checks.errors import CaptureError, NotRecorded


@dataclass(frozen=True)
class Missing:
    """Something that the recorder could not record, and why."""

    rank: int | None
    step: int | None
    what: str
    why: str


@dataclass(frozen=True)
class CrossEntropyCall:
    """One call of the loss kernel: how it reduced, how many targets it counted, and how far it smoothed them."""

    reduction: str
    ignore_index: int
    dtype: str
    counted: int
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class MicroBatchRecord:
    """One forward and backward: the loss that the model returned, and the scalar that was back-propagated."""

    index: int
    model_loss: float | None
    backward: float | None
    backward_dtype: str | None
    num_items_in_batch: float | None
    loss_source: str | None
    cross_entropy: tuple[CrossEntropyCall, ...]
    loss_scale: float | None = None
    """what a scaler multiplied the scalar by; `backward` is given without it"""
    divided_by: float | None = None
    """what the framework divides the gradients by after the backward; `backward` is given divided by it"""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """the scalar arguments of the model's forward"""


@dataclass(frozen=True)
class ClipRecord:
    """One call of gradient clipping, after `after_backward` backward passes of the step."""

    after_backward: int
    max_norm: float
    norm_type: float
    total_norm: float
    factor: float
    factor_error: float | None


@dataclass(frozen=True)
class ParameterGroup:
    """An optimizer group: its settings in force and the canonical names of its parameters."""

    settings: Mapping[str, Any]
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class OptimizerRecord:
    name: str
    groups: tuple[ParameterGroup, ...]
    without_gradient: tuple[str, ...]

    def group_of(self, parameter: str) -> ParameterGroup | None:
        """The group that holds the parameter, None when the optimizer does not know it."""
        return next((group for group in self.groups if parameter in group.parameters), None)


@dataclass(frozen=True)
class ModelRecord:
    """The model as it ran: class, attention, dtypes (`torch.float32` style strings)."""

    name: str
    training: bool
    attention: str | None
    parameter_dtypes: Mapping[str, int]
    autocast: str | None
    compute_dtype: str | None
    gradient_checkpointing: bool


@dataclass(frozen=True)
class StepRecord:
    """Everything scalar that was recorded of one optimizer step on one rank; `missing`: the notes that concern it."""

    step: int
    recorded_model: ModelRecord | None
    scalars: Mapping[str, Mapping[str, Any]]
    trainable: tuple[str, ...]
    frozen: tuple[str, ...]
    micro_batches: tuple[MicroBatchRecord, ...]
    clips: tuple[ClipRecord, ...]
    recorded_optimizer: OptimizerRecord | None
    rng: Mapping[str, str | None] = field(default_factory=dict)
    """generator → SHA-256 of its state when the first forward begins, None where it is not in use"""
    missing: tuple[Missing, ...] = ()

    @property
    def model(self) -> ModelRecord:
        """Raises NotRecorded where it is null."""
        if self.recorded_model is None:
            raise self._lacks("model")
        return self.recorded_model

    @property
    def optimizer(self) -> OptimizerRecord:
        """Raises NotRecorded where it is null."""
        if self.recorded_optimizer is None:
            raise self._lacks("optimizer")
        return self.recorded_optimizer

    def _lacks(self, what: str) -> NotRecorded:
        why = next((note.why for note in self.missing if note.what == what), "the manifest does not say why")
        return NotRecorded(f"the {what} of step {self.step} was not recorded ({why})")


def parse_step(raw: Mapping[str, Any], *, file: str, missing: tuple[Missing, ...] = ()) -> StepRecord:
    """Read one step record of a manifest; `model` and `optimizer` are null where they could not be recorded.

    Raises:
        CaptureError: a field is missing or of the wrong kind.
    """
    try:
        return StepRecord(
            step=int(raw["step"]),
            recorded_model=None if raw["model"] is None else _model(raw["model"]),
            scalars=raw["scalars"],
            trainable=tuple(raw["trainable"]),
            frozen=tuple(raw["frozen"]),
            micro_batches=tuple(_micro_batch(micro) for micro in raw["micro_batches"]),
            clips=tuple(_clip(clip) for clip in raw["clips"]),
            recorded_optimizer=None if raw["optimizer"] is None else _optimizer(raw["optimizer"]),
            rng=raw.get("rng") or {},
            missing=missing,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        found = f"has a step record without a valid {error}"
        raise CaptureError(file, found, "record the capture again") from error


def parse_missing(raw: Iterable[Mapping[str, Any]]) -> tuple[Missing, ...]:
    return tuple(Missing(m.get("rank"), m.get("step"), str(m["what"]), str(m["why"])) for m in raw)


def _model(raw: Mapping[str, Any]) -> ModelRecord:
    return ModelRecord(
        name=str(raw["class"]),
        training=bool(raw["training"]),
        attention=raw.get("attention"),
        parameter_dtypes=raw["parameter_dtypes"],
        autocast=raw.get("autocast"),
        compute_dtype=raw.get("compute_dtype"),
        gradient_checkpointing=bool(raw.get("gradient_checkpointing", False)),
    )


def _micro_batch(raw: Mapping[str, Any]) -> MicroBatchRecord:
    return MicroBatchRecord(
        index=int(raw["index"]),
        model_loss=_number(raw.get("model_loss")),
        backward=_divide(
            _without_scale(_number(raw.get("backward")), _number(raw.get("loss_scale"))), _number(raw.get("divided_by"))
        ),
        backward_dtype=raw.get("backward_dtype"),
        num_items_in_batch=_number(raw.get("num_items_in_batch")),
        loss_source=raw.get("loss_source"),
        loss_scale=_number(raw.get("loss_scale")),
        divided_by=_number(raw.get("divided_by")),
        arguments=raw.get("arguments", {}),
        cross_entropy=tuple(
            CrossEntropyCall(
                str(c["reduction"]),
                int(c["ignore_index"]),
                str(c["dtype"]),
                int(c["counted"]),
                float(c.get("label_smoothing", 0.0)),
            )
            for c in raw.get("cross_entropy", ())
        ),
    )


def _without_scale(scalar: float | None, scale: float | None) -> float | None:
    """A back-propagated scalar without its loss scale, a power of two unless somebody set another."""
    return scalar if scalar is None or not scale else scalar / scale


def _divide(scalar: float | None, divisor: float | None) -> float | None:
    """A back-propagated scalar as the gradients have it once the framework has divided them."""
    return scalar if scalar is None or not divisor else scalar / divisor


def _number(value: float | str | None) -> float | None:
    """A recorded number; strict JSON has no NaN or infinity, so the recorder writes "nan", "inf" and "-inf"."""
    return None if value is None else float(value)


def _number_or_nan(value: float | str | None) -> float:
    """A norm that is spread over ranks is not read by the recorder, which would need communication, and is null."""
    return math.nan if value is None else float(value)


def _clip(raw: Mapping[str, Any]) -> ClipRecord:
    return ClipRecord(
        after_backward=int(raw["after_backward"]),
        max_norm=float(raw["max_norm"]),
        norm_type=float(raw["norm_type"]),
        total_norm=_number_or_nan(raw["total_norm"]),
        factor=_number_or_nan(raw["factor"]),
        factor_error=_number(raw.get("factor_error")),
    )


def _optimizer(raw: Mapping[str, Any]) -> OptimizerRecord:
    groups = tuple(ParameterGroup(g["settings"], tuple(g["parameters"])) for g in raw["groups"])
    return OptimizerRecord(str(raw["class"]), groups, tuple(raw["without_gradient"]))
