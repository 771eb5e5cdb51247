"""An endpoint's log-probabilities against the trainer's, and what it did with the rows before it answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from checks.material import Material
from checks.probes.answers import relative_limit
from checks.serving.questions import Question, noise_of, plan_questions
from checks.serving.served import COOLER, Served, ServedRow
from checks.tolerance import MULTIPLES, USEFUL_TOKEN_LIMIT
from checks.verdict import Measurement, Status

LARGEST_EXPONENT = 700.0
"""Beyond it exp overflows float64."""


@dataclass(frozen=True)
class EndpointResult:
    """What the check says of the endpoint alone."""

    status: Status
    sentence: str
    measurement: Measurement | None = None
    first_wrong: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Compared:
    question: Question
    apart: torch.Tensor
    """(S − 1,) signed, in nats"""

    @property
    def largest(self) -> float:
        moved = self.apart[self.question.judged].abs()
        return float(moved.nan_to_num(nan=torch.inf).max()) if moved.numel() else 0.0

    def first_beyond(self, threshold: float) -> int | None:
        wrong = self.question.judged & ~(self.apart.abs() <= threshold)
        return int(wrong.nonzero()[0, 0]) if bool(wrong.any()) else None


def judge_endpoint(material: Material, served: Served) -> EndpointResult:
    """Rendering first, for other tokens explain other numbers; then temperature; then each token."""
    if served.failure:
        return EndpointResult(Status.INCONCLUSIVE, served.failure)
    questions = {question.row: question for question in plan_questions(material, served.weights)}
    answered = [(questions[each.row], each) for each in served.rows if each.row in questions]
    if not answered:
        return EndpointResult(Status.INCONCLUSIVE, f"{served.label} answered no row that the trainer's model answered")
    for _, each in answered:
        if each.extra or (each.read_ids is not None and each.read_ids != each.row):
            return _say_tokens(served, each)
    if served.chat is not None and served.chat.read != served.chat.expected:
        return _say_chat(served)
    floor, answers = noise_of(material, tuple(question for question, _ in answered))
    threshold = MULTIPLES[material.spec.precision] * floor
    limit = relative_limit(threshold + floor, answers)
    if limit > USEFUL_TOKEN_LIMIT:
        sentence = f"a log-probability of {served.label} that is {limit:.0%} off would not be seen in this precision"
        return EndpointResult(Status.INCONCLUSIVE, f"{sentence}; use float32")
    compared = [_compare(question, each) for question, each in answered]
    return _decide(served, compared, threshold=threshold, floor=floor)


def _say_tokens(served: Served, each: ServedRow) -> EndpointResult:
    evidence = {"given": list(each.row[:20]), "read": None if each.read_ids is None else list(each.read_ids[:20])}
    if each.extra > 0:
        where = ""
        if each.read_ids is not None and each.read_ids[each.extra :] == each.row:
            where = (
                f": it puts {_list(each.read_ids[: each.extra])} before the row, as a server does that adds BOS itself"
            )
        sentence = f"{served.label} reads {each.read} tokens where {len(each.row)} were given{where}"
    elif each.extra < 0:
        sentence = f"{served.label} reads {each.read} tokens of the {len(each.row)} that were given: it cuts the row"
    else:
        pairs = zip(each.row, each.read_ids or (), strict=True)
        place = next(index for index, (one, other) in enumerate(pairs) if one != other)
        assert each.read_ids is not None
        sentence = f"{served.label} reads token {each.read_ids[place]} at position {place}, given {each.row[place]}"
    return EndpointResult(Status.FAIL, sentence, None, "tokens of the prompt", evidence)


def _say_chat(served: Served) -> EndpointResult:
    chat = served.chat
    assert chat is not None
    more = chat.read - chat.expected
    how = f", one more, as where {chat.begins_with!r} is put before a text that begins with it" if more == 1 else ""
    sentence = (
        f"{served.label} reads {chat.read} tokens of {chat.place}, whose chat template gives {chat.expected}{how}"
    )
    return EndpointResult(Status.FAIL, sentence, None, "rendering of conversations", {"chat": vars(chat)})


def _compare(question: Question, each: ServedRow) -> _Compared:
    said = torch.full_like(question.log_probs, torch.nan)
    count = min(len(each.log_probs), said.numel())
    said[:count] = torch.tensor(each.log_probs[:count], dtype=torch.float64)
    return _Compared(question, said - question.log_probs)


def _decide(served: Served, compared: list[_Compared], *, threshold: float, floor: float) -> EndpointResult:
    worst = max(compared, key=lambda each: each.largest)
    tokens = sum(int(each.question.judged.sum()) for each in compared)
    wrong = next((each for each in compared if each.first_beyond(threshold) is not None), None)
    moved = _temperature_moves(served, compared)
    measurement = Measurement(
        "endpoint against trained",
        worst.largest,
        threshold,
        wrong is None,
        floor,
        threshold + floor,
        unit="nats",
    )
    ratios = torch.cat([each.apart[each.question.judged] for each in compared]).clamp(max=LARGEST_EXPONENT).exp()
    evidence = {
        "label": served.label,
        "weights": served.weights,
        "rows": len(compared),
        "tokens": tokens,
        "importance_ratio_mean": _json(float(ratios.mean())),
        "ids_returned": all(each.read_ids is not None for each in served.rows),
        "moved_by_temperature": None if moved is None else _json(moved),
        "chat": None if served.chat is None else vars(served.chat),
    }
    of = "the trainer's" if served.weights == "trained" else "the prepared model's"
    if not tokens:
        sentence = f"no token that {served.label} answered is decided in this precision; use float32"
        return EndpointResult(Status.INCONCLUSIVE, sentence, measurement, None, evidence)
    if wrong is not None:
        place = wrong.first_beyond(threshold)
        count = sum(int((e.question.judged & ~(e.apart.abs() <= threshold)).sum()) for e in compared)
        sentence = (
            f"{served.label} departs from {of} log-probabilities first at position {place} of "
            f"{wrong.question.probe!r}, by up to {worst.largest:.3g} nats (allowed {threshold:.1g}), in {count} of "
            f"{tokens} tokens"
        )
        return EndpointResult(Status.FAIL, sentence, measurement, f"endpoint behind position {place}", evidence)
    if moved is not None and not moved <= threshold:
        sentence = (
            f"the log-probabilities of {served.label} change with the temperature of the request, by up to {moved:.3g} "
            f"nats between 1 and {COOLER:g}: the trainer's are those of temperature 1"
        )
        return EndpointResult(Status.FAIL, sentence, measurement, "temperature", evidence)
    sentence = f"{served.label} gives {tokens} tokens {of} log-probabilities, within {worst.largest:.2g} nats"
    return EndpointResult(Status.PASS, sentence, measurement, None, evidence)


def _temperature_moves(served: Served, compared: list[_Compared]) -> float | None:
    """The largest change between the two temperatures; None where the second was not answered."""
    if served.cooler is None:
        return None
    first = next(each for each in served.rows if each.row == served.cooler.row)
    judged = next(each.question.judged for each in compared if each.question.row == first.row)
    count = min(len(first.log_probs), len(served.cooler.log_probs), judged.numel())
    one, other = (torch.tensor(each.log_probs[:count], dtype=torch.float64) for each in (first, served.cooler))
    apart = (one - other).abs()[judged[:count]]
    return float(apart.nan_to_num(nan=torch.inf).max()) if apart.numel() else None


def _list(ids: tuple[int, ...]) -> str:
    return f"token {ids[0]}" if len(ids) == 1 else f"tokens {', '.join(map(str, ids))}"


def _json(value: float) -> float | str:
    return value if value == value and abs(value) != float("inf") else str(value)
