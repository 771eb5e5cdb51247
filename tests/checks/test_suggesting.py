"""Which names are offered for a misspelt one, and when none is."""

from __future__ import annotations

import pytest

from checks.suggesting import nearest

SETTINGS = ("batch", "beta1", "beta2", "lora_r", "lora_targets", "schedule", "seed", "seq_len", "weight_decay")


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("seqlen", ["seq_len"]),
        ("SEQ-LEN", ["seq_len"]),
        ("sede", ["seed"]),
        ("beta", ["beta1", "beta2"]),  # as near as each other: both
        ("decay", ["weight_decay"]),  # a part of a name
        ("targets", ["lora_targets"]),
        ("learning_rate_multiplier", []),
        ("banana", []),
        ("xy", []),
        ("", []),
    ],
)
def test_only_names_that_are_near_are_offered(name: str, offered: list[str]) -> None:
    assert nearest(name, SETTINGS) == offered


def test_no_more_than_asked_are_offered_and_none_of_none() -> None:
    assert nearest("block", [f"block{number}" for number in range(9)], most=2) == ["block0", "block1"]
    assert nearest("block", []) == []
