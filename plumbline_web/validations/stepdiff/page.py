"""Everything that the step page shows of one validation, read once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from plumbline_web.curves.charts import Chart
from plumbline_web.validations.models import CheckResult, Validation
from plumbline_web.validations.stepdiff.charts import draw_direction, draw_forward, draw_scale, draw_tokens
from plumbline_web.validations.stepdiff.documents import FAIL, Judged, read_documents
from plumbline_web.validations.stepdiff.forward import Forward, read_forward
from plumbline_web.validations.stepdiff.grid import Grid, build_grid
from plumbline_web.validations.stepdiff.names import place
from plumbline_web.validations.stepdiff.state import StepState
from plumbline_web.validations.stepdiff.tables import Table, list_module_rows, list_tensor_rows, list_token_rows
from plumbline_web.validations.stepdiff.tensors import (
    QUESTIONS,
    Question,
    Tensor,
    choose_step,
    find_first_wrong,
    find_question,
    list_mismatches,
    list_steps,
    list_tensors,
    list_updates,
    say_why_none,
)
from plumbline_web.validations.stepdiff.tokens import TokenRow, find_worst_row, list_rows, read_row

CHECKS = (
    "step.settings",
    "step.loss",
    "step.denominator",
    "step.gradients",
    "step.update",
    "step.accumulation",
    "data.packing",
    "model.definition",
)
"""Whose verdicts the page reads, in reading order."""


@dataclass(frozen=True)
class Measurements:
    """What one check measured of a tensor."""

    question: Question
    judged: Judged
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True)
class StepPage:
    """One validation's step, as an address asks for it."""

    judgements: Mapping[str, Judged]
    state: StepState

    @cached_property
    def question(self) -> Question:
        """The one that the address asks for, else the first whose check failed."""
        if self.state.kind:
            return find_question(self.state.kind)
        return next((question for question in QUESTIONS if self._failed(question)), QUESTIONS[0])

    def _failed(self, question: Question) -> bool:
        judged = self.judgements.get(question.check)
        return judged is not None and judged.status == FAIL and bool(list_tensors(judged, question))

    @cached_property
    def judged(self) -> Judged | None:
        return self.judgements.get(self.question.check)

    @cached_property
    def base_query(self) -> str:
        """The address's query without a tensor: what a cell's link adds one to."""
        return replace(self.state, tensor="").query()

    @cached_property
    def leading(self) -> Judged | None:
        return find_first_wrong(self.judgements)

    @cached_property
    def others(self) -> tuple[Judged, ...]:
        return tuple(judged for judged in self.judgements.values() if judged is not self.leading)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        return list_steps(self.judged) if self.question.key == "update" else ()

    @cached_property
    def step(self) -> int | None:
        """The optimizer step whose tensors are shown, where there are several."""
        if self.judged is None or not self.steps:
            return None
        return self.state.step if self.state.step in self.steps else choose_step(self.judged)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return list_tensors(self.judged, self.question, step=self.step)

    @cached_property
    def grid(self) -> Grid:
        return build_grid(self.tensors)

    @cached_property
    def mismatches(self) -> tuple[str, ...]:
        """Settings that are not the asked ones, where the question is about settings."""
        return list_mismatches(self.judged)

    @property
    def why_none(self) -> str:
        return "" if self.tensors else say_why_none(self.judged, self.question)

    @cached_property
    def floors(self) -> float | None:
        """Floor ÷ threshold, where it is the same for every tensor: 1 ÷ the multiple that is allowed."""
        ratios = [t.floor / t.threshold for t in self.tensors if t.floor and t.threshold]
        return ratios[0] if ratios and max(ratios) - min(ratios) < 1e-6 else None

    @cached_property
    def token_rows(self) -> tuple[tuple[int, int], ...]:
        return list_rows(self.judgements.get("step.loss"))

    @cached_property
    def tokens(self) -> TokenRow | None:
        loss = self.judgements.get("step.loss")
        asked = (self.state.micro or 0, self.state.row or 0)
        is_asked = (self.state.micro, self.state.row) != (None, None) and asked in self.token_rows
        micro, row = asked if is_asked else find_worst_row(loss)
        return read_row(loss, self.judgements.get("data.packing"), micro=micro, row=row)

    @cached_property
    def micros(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(micro for micro, _ in self.token_rows))

    @cached_property
    def row_numbers(self) -> tuple[int, ...]:
        """Rows of the micro-batch that is shown."""
        return tuple(row for micro, row in self.token_rows if self.tokens is not None and micro == self.tokens.micro)

    @property
    def why_no_tokens(self) -> str:
        loss = self.judgements.get("step.loss")
        if loss is None:
            return "step.loss was not asked for; clone this validation and choose it."
        return f"step.loss compared no tokens: {loss.sentence}."

    @cached_property
    def forward(self) -> Forward:
        return read_forward(self.judgements)

    def choices(self) -> Iterator[tuple[Question, str, Judged | None]]:
        """Each question with the query that shows it."""
        for question in QUESTIONS:
            yield question, self.state.showing(question.key).query(), self.judgements.get(question.check)

    def measure(self, name: str) -> tuple[Measurements, ...]:
        """Every measurement of one tensor, check by check; of an update each step, of a layer's experts each one."""
        found = []
        for question in QUESTIONS:
            judged = self.judgements.get(question.check)
            if judged is None:
                continue
            if question.key == "update":
                every = [t for step in list_steps(judged) for t in list_updates(judged, step=step)]
            else:
                every = list(list_tensors(judged, question))
            tensors = tuple(tensor for tensor in every if tensor.name == name)
            if tensors:
                found.append(Measurements(question, judged, tensors))
        return tuple(found)

    def siblings(self, name: str) -> tuple[Tensor, ...]:
        """The tensors that share the cell of one: the experts of a layer that are parameters of their own."""
        where = replace(place(name), expert=None)
        found = tuple(t for t in self.tensors if replace(place(t.name), expert=None) == where)
        return found if len(found) > 1 else ()

    def chart(self, name: str) -> Chart | None:
        """A chart by its name in the address; None where there is no such chart."""
        if name == "tokens":
            return draw_tokens(self.tokens) if self.tokens is not None else None
        draw = {"scale": draw_scale, "direction": draw_direction}.get(name)
        if draw is not None:
            return draw(self.tensors)
        return draw_forward(self.forward) if name == "forward" else None

    def table(self, name: str) -> Table | None:
        """The table behind a chart; None where there is no such table."""
        if name == "tensors":
            return list_tensor_rows(self.tensors)
        if name == "tokens":
            return list_token_rows(self.tokens) if self.tokens is not None else None
        return list_module_rows(self.forward) if name == "forward" else None


def read_page(validation: Validation, state: StepState) -> StepPage:
    """Read the current verdicts of one validation, in one query."""
    documents = (
        CheckResult.objects.filter(validation=validation, superseded_at=None, check_name__in=CHECKS)
        .order_by("position")
        .values_list("document", flat=True)
    )
    return StepPage(read_documents(documents), state)
