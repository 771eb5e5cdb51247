"""One preference: a prompt with a preferred answer and a rejected one, read from one row of a file.

The forms are those of https://huggingface.co/docs/trl/dataset_formats#preference: text or conversations, with the
prompt in a column of its own, or as what both answers begin with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checks.samples.sample import RowError, Sample, read_messages

Messages = tuple[tuple[str, str], ...]

REMEDY = "give prompt, chosen and rejected, or chosen and rejected that begin with the same prompt"
_FIELDS = ("chosen", "rejected")


@dataclass(frozen=True)
class Preference:
    """One row. `chosen` and `rejected` are examples of one form, each with the whole prompt; they differ behind it.

    `index` counts from 0 in reading order; `line`: the file's line from 1, None where the file has no lines.
    `explicit`: the row has its prompt in a column of its own.
    """

    index: int
    line: int | None
    chosen: Sample
    rejected: Sample
    explicit: bool

    @property
    def sides(self) -> tuple[Sample, Sample]:
        return self.chosen, self.rejected


def read_preference(row: Mapping[str, Any], *, index: int, line: int | None) -> Preference:
    """Turn one row into a Preference; raises RowError naming the column and what was found in it."""
    for name in _FIELDS:
        if row.get(name) is None:
            listed = ", ".join(sorted(str(key) for key, value in row.items() if value is not None)) or "none"
            raise RowError(f"{name} is missing (columns found: {listed})", REMEDY)
    explicit = row.get("prompt") is not None
    _check_kinds(row, explicit=explicit)
    if isinstance(row["chosen"], str):
        prompt, answers = _split_text(row, explicit=explicit)
        chosen, rejected = (
            Sample(index=index, line=line, form="prompt_completion", prompt=prompt, completion=answer)
            for answer in answers
        )
    else:
        turns, replies = _split_messages(row, explicit=explicit)
        chosen, rejected = (
            Sample(index=index, line=line, form="messages", messages=(*turns, *reply), prompt_turns=len(turns))
            for reply in replies
        )
    return Preference(index, line, chosen, rejected, explicit)


def _check_kinds(row: Mapping[str, Any], *, explicit: bool) -> None:
    """All columns are text, or all are messages; none is empty."""
    names = ("prompt", *_FIELDS) if explicit else _FIELDS
    kinds = {}
    for name in names:
        value = row[name]
        if not isinstance(value, str | list | tuple):
            raise RowError(f"{name} is a JSON {type(value).__name__}", f"give {name} as a string or as messages")
        if not value:
            raise RowError(f"{name} is empty", f"give {name} at least one character or message, or leave the row out")
        kinds[name] = "text" if isinstance(value, str) else "messages"
    for name in names:
        if kinds[name] != kinds["chosen"]:
            found = f"{name} is {kinds[name]} and chosen is {kinds['chosen']}"
            raise RowError(found, "give all columns as text, or all as messages")


def _split_text(row: Mapping[str, Any], *, explicit: bool) -> tuple[str, tuple[str, str]]:
    chosen, rejected = str(row["chosen"]), str(row["rejected"])
    if chosen == rejected:
        raise RowError("chosen and rejected are equal", "leave the row out, it prefers nothing")
    if explicit:
        return str(row["prompt"]), (chosen, rejected)
    shared = _count_shared(chosen, rejected)
    if shared in (len(chosen), len(rejected)):
        shorter = "chosen" if shared == len(chosen) else "rejected"
        raise RowError(f"{shorter} holds no answer: the other begins with all of it", "give the prompt as a column")
    if shared and chosen[shared - 1] == " ":
        shared -= 1  # a space before the answers is theirs (trl/data_utils.py, extract_prompt)
    if shared == 0:
        raise RowError("rejected has another prompt than chosen: they begin differently", REMEDY)
    return chosen[:shared], (chosen[shared:], rejected[shared:])


def _split_messages(row: Mapping[str, Any], *, explicit: bool) -> tuple[Messages, tuple[Messages, Messages]]:
    chosen, rejected = (read_messages(row[name], name) for name in _FIELDS)
    if chosen == rejected:
        raise RowError("chosen and rejected are equal", "leave the row out, it prefers nothing")
    if explicit:
        prompt = read_messages(row["prompt"], "prompt")
        for name, answer in zip(_FIELDS, (chosen, rejected), strict=True):
            if answer[: len(prompt)] == prompt:
                raise RowError(f"{name} begins with the prompt that stands in prompt", "give each turn once")
            _check_answer(name, answer, turn=1)
        return prompt, (chosen, rejected)
    shared = _count_shared(chosen, rejected)
    if shared == 0:
        raise RowError("rejected has another prompt than chosen: their first turns differ", REMEDY)
    for name, answer in zip(_FIELDS, (chosen, rejected), strict=True):
        if shared == len(answer):
            raise RowError(f"{name} holds no answer: the other begins with all of it", "give both an answer")
        _check_answer(name, answer[shared:], turn=shared + 1)
    return chosen[:shared], (chosen[shared:], rejected[shared:])


def _check_answer(name: str, answer: Messages, *, turn: int) -> None:
    """What differs is the assistant's; where it is another's turn, the prompts differ."""
    role, content = answer[0]
    if role != "assistant":
        found = f"turn {turn} of {name}, where the answers part, is of the role {role}: the prompts differ"
        raise RowError(found, "give both the same prompt, and answers that begin with an assistant's turn")
    if len(answer) == 1 and not content:
        raise RowError(f"{name} is an empty answer", f"give {name} at least one character or leave the row out")


def _count_shared(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
