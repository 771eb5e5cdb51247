"""Verdicts and tensors of several validations beside each other, on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plumbline_web.validations.models import CheckResult, Validation
from plumbline_web.validations.stepdiff.documents import in_thresholds, read_documents
from plumbline_web.validations.stepdiff.grid import Grid, build_grid
from plumbline_web.validations.stepdiff.heat import shade
from plumbline_web.validations.stepdiff.tensors import find_question, list_tensors, say_why_none


@dataclass(frozen=True)
class VerdictCell:
    """One check's verdict on one validation; `ratio` is its leading measurement in thresholds."""

    validation: int
    status: str
    sentence: str
    ratio: float | None

    @property
    def shade(self) -> str:
        if self.ratio is None or self.status not in ("pass", "fail"):
            return "heat-empty"
        # a failure by something else than its leading number is a failure all the same
        return shade(self.ratio, holds=self.status == "pass")


@dataclass(frozen=True)
class VerdictRow:
    check: str
    cells: tuple[VerdictCell | None, ...]


@dataclass(frozen=True)
class TensorMap:
    """One validation's heatmap; without tensors, `why_none` says why."""

    validation: Validation
    grid: Grid
    why_none: str


def list_verdicts(validations: Sequence[Validation]) -> tuple[VerdictRow, ...]:
    """Check × validation, in reading order, in one query."""
    numbers = [validation.pk for validation in validations]
    rows = CheckResult.objects.filter(validation__in=numbers, superseded_at=None).order_by("position")
    cells: dict[str, dict[int, VerdictCell]] = {}
    for pk, check, status, sentence, value, threshold in rows.values_list(
        "validation", "check_name", "status", "sentence", "value", "threshold"
    ):
        ratio = None if value is None or threshold is None else in_thresholds(value, threshold)
        cells.setdefault(check, {})[pk] = VerdictCell(pk, status, sentence, ratio)
    return tuple(VerdictRow(check, tuple(of_check.get(pk) for pk in numbers)) for check, of_check in cells.items())


def list_maps(validations: Sequence[Validation], kind: str) -> tuple[TensorMap, ...]:
    """The heatmap of each validation, in one query."""
    question = find_question(kind)
    documents = dict(
        CheckResult.objects.filter(
            validation__in=[validation.pk for validation in validations],
            superseded_at=None,
            check_name=question.check,
        ).values_list("validation", "document")
    )
    found = []
    for validation in validations:
        document = documents.get(validation.pk)
        judged = read_documents([document])[question.check] if document else None
        tensors = list_tensors(judged, question)
        found.append(TensorMap(validation, build_grid(tensors), "" if tensors else say_why_none(judged, question)))
    return tuple(found)
