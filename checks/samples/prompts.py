"""Prompts to answer, each with an answer that is known to be good, from the data of any objective."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from checks.errors import BadRequest
from checks.samples.reading import read_preferences, read_samples
from checks.samples.sample import Sample

REMEDY = "give prompt and completion, messages that end in an assistant's turn, or preferences"


@dataclass(frozen=True)
class Prompt:
    """`text`, or `messages` (role, content) in its place; `answer`: the good one, as text. `line` as of a sample."""

    line: int | None
    text: str
    messages: tuple[tuple[str, str], ...]
    answer: str

    @property
    def known(self) -> str:
        """The prompt and the good answer in one text."""
        return "\n".join([*(content for _, content in self.messages), self.text, self.answer])


def read_prompts(path: Path | str) -> tuple[Prompt, ...]:
    """Read what comes before the last answer of every example, or the prompt and preferred answer of every preference.

    Raises BadRequest as the readers of examples and preferences do, and for an example without a prompt.
    """
    try:
        sides = tuple(one.chosen for one in read_preferences(path))
    except BadRequest as error:
        if " is missing (columns found: " not in error.found:
            raise
        sides = read_samples(path)
    return tuple(_split(sample, path) for sample in sides)


def _split(sample: Sample, path: Path | str) -> Prompt:
    where = f"data {path} row {sample.index + 1}" if sample.line is None else f"data {path} line {sample.line}"
    if sample.form == "prompt_completion":
        return Prompt(sample.line, sample.prompt, (), sample.completion)
    if sample.form == "text":
        raise BadRequest(where, "holds plain text, which has no prompt to answer", REMEDY)
    role, content = sample.messages[-1]
    if role != "assistant" or len(sample.messages) < 2:
        raise BadRequest(where, "does not end in an assistant's answer to a turn before it", REMEDY)
    return Prompt(sample.line, "", sample.messages[:-1], content)
