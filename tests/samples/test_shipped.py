"""The sample files that ship: right, varied, and of unequal lengths."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from tokenizers import Tokenizer

from checks.models.tokenizer import train_tokenizer
from checks.samples import SAMPLE_FILES, read_samples

CALCULATION = re.compile(r"([\d.+*/-]+)=<<([\d.+*/-]+)=([\d.]+)>>([\d.]+)")


LARGE = ("gsm8k_sample", "tulu3_sample")


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in SAMPLE_FILES[name].read_text(encoding="utf-8").splitlines()]


def evaluate(expression: str) -> Fraction:
    """An expression of numbers, + − * and /, exactly."""
    total = Fraction(0)
    for sign, term in re.findall(r"([+-]?)([\d.*/]+)", expression):
        factors = re.findall(r"([*/]?)([\d.]+)", term)
        value = Fraction(1)
        for operator, number in factors:
            value = value / Fraction(number) if operator == "/" else value * Fraction(number)
        total += -value if sign == "-" else value
    return total


def test_the_evaluator_knows_precedence() -> None:
    assert evaluate("2+3*4-6/4") == Fraction(25, 2)


@pytest.mark.parametrize("row", rows("gsm8k_sample"), ids=lambda row: row["question"][:24])
def test_every_calculation_of_the_grade_school_sample_is_right(row: dict[str, str]) -> None:
    steps, final = row["answer"].rsplit("\n#### ", 1)
    found = CALCULATION.findall(steps)
    assert len(found) == steps.count("<<") > 0
    for shown, inside, result, repeated in found:
        # A sentence may end in a full stop right after its number.
        assert (shown, result) == (inside, repeated.rstrip("."))
        assert evaluate(inside) == Fraction(result)
    assert found[-1][2] == final
    assert row.keys() == {"question", "answer"}


def test_both_large_files_hold_64_different_rows() -> None:
    for name in LARGE:
        samples = read_samples(name)
        assert len(samples) == 64
        assert len({sample.messages for sample in samples}) == 64
        assert all(sample.form == "messages" for sample in samples)
        contents = [content for sample in samples for role, content in sample.messages if role != "system"]
        assert len(set(contents)) > 0.97 * len(contents)


def test_the_conversations_differ_in_shape() -> None:
    shapes = [tuple(role for role, _ in sample.messages) for sample in read_samples("tulu3_sample")]
    assert all(shape[-1] == "assistant" for shape in shapes)
    assert sum(shape[0] == "system" for shape in shapes) >= 5
    assert sum(shape.count("user") > 1 for shape in shapes) >= 8
    assert sum(shape == ("user", "assistant") for shape in shapes) >= 32
    for shape in shapes:
        turns = shape[1:] if shape[0] == "system" else shape
        assert turns == ("user", "assistant") * (len(turns) // 2)
    assert all(row.keys() == {"id", "messages", "source"} for row in rows("tulu3_sample"))
    assert len({row["id"] for row in rows("tulu3_sample")}) == 64


@pytest.mark.parametrize("name", LARGE)
def test_lengths_spread_around_the_usual_sequence_length(name: str) -> None:
    tokenizer = Tokenizer.from_str(train_tokenizer())
    lengths = [
        sum(
            len(tokenizer.encode(f"<|im_start|>{role}\n{content}<|im_end|>\n").ids) for role, content in sample.messages
        )
        for sample in read_samples(name)
    ]
    assert sum(length > 128 for length in lengths) >= 6
    assert sum(length < 90 for length in lengths) >= 12
    assert sum(length <= 128 for length in lengths) >= 32
    assert len(set(lengths)) >= 40


def test_the_conversations_with_tools_have_every_kind_of_turn() -> None:
    samples = read_samples("tools_sample")
    assert len({sample.messages for sample in samples}) == len(samples) == 24
    shapes = [tuple(role for role, _ in sample.messages) for sample in samples]
    assert {role for shape in shapes for role in shape} == {"system", "user", "assistant", "tool"}
    assert all(shape[-1] == "assistant" for shape in shapes)
    assert sum(shape.count("tool") > 1 for shape in shapes) >= 6
    assert sum("tool" in shape for shape in shapes) == 23
    for sample in samples:
        for (role, content), (following, _) in pairwise(sample.messages):
            assert (following == "tool") == (role == "assistant" and content.startswith("{")), content
        for role, content in sample.messages:
            if role == "tool" or content.startswith("{"):
                assert isinstance(json.loads(content), dict)
