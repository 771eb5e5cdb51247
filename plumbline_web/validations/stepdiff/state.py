"""What the address of a step page says: which tensors, which row of the batch, which tensor is looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import urlencode

from django.http import QueryDict

from plumbline_web.validations.stepdiff.tensors import QUESTIONS

KINDS = tuple(question.key for question in QUESTIONS)

LONGEST_NAME = 500


@dataclass(frozen=True)
class StepState:
    """`kind` is empty and `step` None where the first wrong one is shown, `micro` and `row` None where the worst is."""

    kind: str = ""
    step: int | None = None
    micro: int | None = None
    row: int | None = None
    tensor: str = ""

    def query(self) -> str:
        """The address's query; what is as usual is left out."""
        usual = StepState()
        values = {key: getattr(self, key) for key in ("kind", "step", "micro", "row", "tensor")}
        return urlencode({key: value for key, value in values.items() if value != getattr(usual, key)})

    def showing(self, kind: str) -> StepState:
        """The same page with another question; the tensor stays."""
        return replace(self, kind=kind, step=None)


def read_state(query: QueryDict) -> StepState:
    """Read an address; what cannot be read is as usual."""
    return StepState(
        kind=kind if (kind := query.get("kind", "")) in KINDS else "",
        step=_read_count(query.get("step")),
        micro=_read_count(query.get("micro")),
        row=_read_count(query.get("row")),
        tensor=query.get("tensor", query.get("name", ""))[:LONGEST_NAME],
    )


def _read_count(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None
