"""One training example, in the forms that frameworks share, read from one row of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Form = Literal["messages", "prompt_completion", "text"]
Columns = Literal["messages", "prompt/completion", "text", "question/answer"]

COLUMN_SETS: Mapping[Columns, tuple[str, ...]] = {
    "messages": ("messages",),
    "prompt/completion": ("prompt", "completion"),
    "question/answer": ("question", "answer"),
    "text": ("text",),
}
"""in the order in which a row with several is read: the richer form first"""
REMEDY = "give messages (role, content), prompt and completion, text, or question and answer"


@dataclass(frozen=True)
class Sample:
    """One example; of `messages`, `prompt` + `completion` and `text`, those of its `form` are set.

    `index` counts from 0 in reading order. `line` is the file's line from 1, or None where the file has no lines.
    `columns` are those it was read from: GSM8K's `question` and `answer` become two messages.
    """

    index: int
    line: int | None
    form: Form
    messages: tuple[tuple[str, str], ...] = ()
    """(role, content) a turn"""
    prompt_turns: int = 0
    """of a preference's example: so many of `messages`, the first, are its prompt, and none of them is learned"""
    prompt: str = ""
    completion: str = ""
    text: str = ""


class RowError(ValueError):
    """What is wrong with one row, without the file and line that only the reader knows."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(f"{found}; {remedy}")
        self.found = found
        self.remedy = remedy


def name_columns(row: Mapping[str, Any]) -> Columns:
    """Say which columns a row is read from; raises RowError where it has none of the known sets."""
    for columns, names in COLUMN_SETS.items():
        if all(row.get(name) is not None for name in names):
            return columns
    listed = ", ".join(sorted(map(str, row))) or "none"
    if row.get("chosen") is not None and row.get("rejected") is not None:
        raise RowError(f"it is a preference (columns found: {listed})", "set objective=dpo, or " + REMEDY)
    raise RowError(f"no usable column (columns found: {listed})", REMEDY)


def read_row(row: Mapping[str, Any], *, index: int, line: int | None) -> Sample:
    """Turn one row into a Sample; raises RowError naming the column and the type that was found."""
    columns = name_columns(row)
    if columns == "messages":
        return Sample(index=index, line=line, form="messages", messages=read_messages(row["messages"], "messages"))
    first, *rest = (_read_text(row, name) for name in COLUMN_SETS[columns])
    if columns == "text":
        return Sample(index=index, line=line, form="text", text=first)
    if columns == "prompt/completion":
        return Sample(index=index, line=line, form="prompt_completion", prompt=first, completion=rest[0])
    return Sample(index=index, line=line, form="messages", messages=(("user", first), ("assistant", rest[0])))


def _read_text(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise RowError(f"{name} is {_describe(value)}", f"give {name} as a string")
    # An empty prompt is a legitimate unconditional sample; the text that is trained on may not be empty.
    if not value and name != "prompt":
        raise RowError(f"{name} is empty", f"give {name} at least one character or leave the row out")
    return value


def read_messages(value: Any, column: str) -> tuple[tuple[str, str], ...]:
    """(role, content) of each turn in a column; raises RowError naming the column, or the message and its key."""
    if not isinstance(value, list | tuple):
        raise RowError(f"{column} is {_describe(value)}", f"give {column} as a list of {{role, content}}")
    if not value:
        raise RowError(f"{column} is an empty list", "give at least one message or leave the row out")
    inside = "" if column == "messages" else f" of {column}"
    return tuple(_read_message(message, f"{number}{inside}") for number, message in enumerate(value, start=1))


def _read_message(message: Any, name: str) -> tuple[str, str]:
    if not isinstance(message, Mapping):
        raise RowError(f"message {name} is {_describe(message)}", "give each message as {role, content}")
    for key in ("role", "content"):
        if key not in message:
            raise RowError(f"message {name} has no {key}", "give each message as {role, content}")
        if not isinstance(message[key], str):
            found = f"{key} of message {name} is {_describe(message[key])}"
            raise RowError(found, f"give {key} as a string")
    if not message["role"]:
        raise RowError(f"role of message {name} is empty", "give a role such as user or assistant")
    return message["role"], message["content"]


def _describe(value: Any) -> str:
    names = {"NoneType": "null", "dict": "an object", "list": "a list", "str": "a string", "bool": "a boolean"}
    return names.get(type(value).__name__, "a number" if isinstance(value, int | float) else type(value).__name__)
