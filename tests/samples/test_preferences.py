"""Reading preferences in every form, and refusing rows that prefer nothing, by line and column."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from checks.errors import BadRequest
from checks.samples import PREFERENCES, Preference, Sample, read_preferences, read_samples

ASK = [{"role": "user", "content": "Hi?"}]
GOOD, BAD = [{"role": "assistant", "content": "Hello."}], [{"role": "assistant", "content": "No."}]
TURN = (("user", "Hi?"),)


def jsonl(directory: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path = directory / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def talk(answer: str) -> Sample:
    return Sample(0, 1, "messages", messages=(*TURN, ("assistant", answer)), prompt_turns=1)


def text(prompt: str, completion: str) -> Sample:
    return Sample(0, 1, "prompt_completion", prompt=prompt, completion=completion)


@pytest.mark.parametrize(
    ("row", "chosen", "rejected", "explicit"),
    [
        ({"prompt": ASK, "chosen": GOOD, "rejected": BAD}, talk("Hello."), talk("No."), True),
        ({"chosen": ASK + GOOD, "rejected": ASK + BAD}, talk("Hello."), talk("No."), False),
        ({"prompt": None, "chosen": ASK + GOOD, "rejected": ASK + BAD}, talk("Hello."), talk("No."), False),
        ({"prompt": "One", "chosen": " two", "rejected": " six"}, text("One", " two"), text("One", " six"), True),
        # The space before the answers is theirs.
        ({"chosen": "One two", "rejected": "One six"}, text("One", " two"), text("One", " six"), False),
        ({"chosen": "One: two", "rejected": "One: three"}, text("One: t", "wo"), text("One: t", "hree"), False),
    ],
)
def test_a_row_is_read_with_its_prompt_in_both(
    tmp_path: Path, row: dict[str, Any], chosen: Sample, rejected: Sample, explicit: bool
) -> None:
    assert read_preferences(jsonl(tmp_path, [row])) == (Preference(0, 1, chosen, rejected, explicit),)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ASK, "chosen": GOOD}, "rejected is missing (columns found: chosen, prompt); give prompt, chosen"),
    ({"rejected": "a"}, "chosen is missing (columns found: rejected); give prompt, chosen and rejected"),
    ({"prompt": "", "chosen": "a", "rejected": "b"}, "prompt is empty; give prompt at least one character"),
    ({"prompt": "p", "chosen": "", "rejected": "b"}, "chosen is empty; give chosen at least one character"),
    ({"prompt": "p", "chosen": "a", "rejected": ""}, "rejected is empty; give rejected at least one character"),
    ({"prompt": [], "chosen": GOOD, "rejected": BAD}, "prompt is empty; give prompt at least one character"),
    ({"prompt": "p", "chosen": "a", "rejected": "a"}, "chosen and rejected are equal; leave the row out"),
    ({"chosen": ASK + GOOD, "rejected": ASK + GOOD}, "chosen and rejected are equal; leave the row out"),
    ({"prompt": "p", "chosen": GOOD, "rejected": BAD}, "prompt is text and chosen is messages; give all columns as"),
    ({"prompt": "p", "chosen": "a", "rejected": BAD}, "rejected is messages and chosen is text; give all columns as"),
    ({"prompt": "p", "chosen": 3, "rejected": "b"}, "chosen is a JSON int; give chosen as a string or as messages"),
    (
        {"prompt": ASK, "chosen": ASK + GOOD, "rejected": ASK + BAD},
        "chosen begins with the prompt that stands in prompt; give each turn once",
    ),
    (
        {"prompt": ASK, "chosen": GOOD, "rejected": [{"role": "user", "content": "x"}]},
        "turn 1 of rejected, where the answers part, is of the role user: the prompts differ; give both the same",
    ),
    (
        {"chosen": ASK + GOOD, "rejected": [{"role": "user", "content": "Ho?"}, *BAD]},
        "rejected has another prompt than chosen: their first turns differ; give prompt, chosen",
    ),
    (
        {"chosen": [*ASK, *GOOD, *ASK, *GOOD], "rejected": [*ASK, *GOOD, {"role": "user", "content": "x"}, *BAD]},
        "turn 3 of chosen, where the answers part, is of the role user: the prompts differ; give both the same",
    ),
    (
        {"chosen": ASK + GOOD, "rejected": ASK + GOOD + ASK},
        "chosen holds no answer: the other begins with all of it; give both an answer",
    ),
    ({"chosen": "abc", "rejected": "xyz"}, "rejected has another prompt than chosen: they begin differently; give"),
    ({"chosen": "abc", "rejected": "ab"}, "rejected holds no answer: the other begins with all of it; give the prompt"),
    (
        {"prompt": ASK, "chosen": GOOD, "rejected": [{"role": "assistant", "content": ""}]},
        "rejected is an empty answer; give rejected at least one character",
    ),
    (
        {"prompt": [{"role": "user"}], "chosen": GOOD, "rejected": BAD},
        "message 1 of prompt has no content; give each message as {role, content}",
    ),
]


@pytest.mark.parametrize(("row", "sentence"), WRONG, ids=[sentence[:40] for _, sentence in WRONG])
def test_a_row_that_prefers_nothing_is_refused_with_its_line_and_column(
    tmp_path: Path, row: dict[str, Any], sentence: str
) -> None:
    path = jsonl(tmp_path, [{"prompt": ASK, "chosen": GOOD, "rejected": BAD}, row])
    with pytest.raises(BadRequest) as caught:
        read_preferences(path)
    assert str(caught.value).startswith(f"data {path} line 2: {sentence}")


def test_a_file_keeps_to_one_form_and_holds_something(tmp_path: Path) -> None:
    rows = [{"prompt": ASK, "chosen": GOOD, "rejected": BAD}, {"chosen": ASK + GOOD, "rejected": ASK + BAD}]
    path = jsonl(tmp_path, rows)
    with pytest.raises(BadRequest, match="line 2: holds messages without a column prompt where the rows before hold"):
        read_preferences(path)
    path.write_text("\n")
    with pytest.raises(BadRequest, match="holds no preference; give a file with at least one row"):
        read_preferences(path)


def test_preferences_are_no_examples_for_supervised_fine_tuning() -> None:
    with pytest.raises(BadRequest, match=r"it is a preference \(columns found: .*\); set objective=dpo, or give"):
        read_samples(PREFERENCES)


def test_the_shipped_preferences_are_different_and_vary_in_turns_and_lengths() -> None:
    found = read_preferences(PREFERENCES)
    assert (
        len(found) == 48 == len({one.chosen.messages for one in found} | {one.rejected.messages for one in found}) / 2
    )
    assert {one.chosen.prompt_turns for one in found} == {1, 2, 3, 5}
    assert {role for one in found for role, _ in one.chosen.messages} == {"system", "user", "assistant"}
    longer = sum(len(one.chosen.messages[-1][1]) > len(one.rejected.messages[-1][1]) for one in found)
    assert 12 <= longer <= 36, "one length must not tell the answers apart"
