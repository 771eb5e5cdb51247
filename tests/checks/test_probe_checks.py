"""The checks of a model's answers: healthy, broken and impossible answers each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from checks.architecture import step_causality, step_determinism, step_dropout, step_lengths, step_padding
from checks.check import Check
from checks.lifecycle import serving_cache
from checks.material import Material
from checks.probes.answers import Answer
from checks.probes.plan import (
    AGAIN,
    CACHED,
    ONCE,
    OTHER_FUTURE,
    PADDED_LEFT,
    PADDED_RIGHT,
    PAST,
    TRAINED,
    TRAINED_AGAIN,
)
from checks.verdict import Pattern, Status, Verdict

CHECKS = tuple(
    module.CHECK
    for module in (step_lengths, step_padding, step_causality, step_determinism, step_dropout, serving_cache)
)


def change(material: Material, *names: str, by: Callable[[torch.Tensor], None]) -> Material:
    """The material with other answers to the named probes: `by` edits (B, S − 1) log-probabilities in place."""
    answers = dict(material.probes)
    for name in names:
        edited = answers[name].log_probs.clone()
        by(edited)
        answers[name] = replace(answers[name], log_probs=edited)
    return replace(material, probes=answers)


def add(value: float, start: int = 0) -> Callable[[torch.Tensor], None]:
    def by(log_probs: torch.Tensor) -> None:
        log_probs[:, start:] += value

    return by


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_healthy_model_passes_and_states_a_limit(probed: Material, check: Check) -> None:
    verdict = check.judge(probed)
    assert verdict.status is Status.PASS, verdict.sentence
    assert verdict.detection_limit is not None
    assert verdict.detection_limit < 1e-3
    assert check.applies(probed.spec) is None


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_model_that_was_not_asked_is_inconclusive_with_the_reason(probed: Material, check: Check) -> None:
    verdict = check.judge(replace(probed, probes={}, no_probes="rank 0 is one of several"))
    assert (verdict.status, verdict.sentence) == (Status.INCONCLUSIVE, "rank 0 is one of several")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_an_answer_that_is_no_number_fails(probed: Material, check: Check) -> None:
    def spoil(log_probs: torch.Tensor) -> None:
        log_probs[:, 3] = torch.nan

    names = ["length 33", PADDED_RIGHT, PAST, AGAIN, TRAINED, CACHED]
    assert check.judge(change(probed, *names, by=spoil)).status is Status.FAIL


def judge_lengths(material: Material) -> Verdict:
    return step_lengths.judge(material)


def test_the_first_length_and_position_that_differ_are_named(probed: Material) -> None:
    longer = [
        name for name, answer in probed.probes.items() if name.startswith("length ") and answer.exact.shape[1] > 32
    ]
    verdict = judge_lengths(change(probed, *longer, by=add(0.01, start=32)))
    assert verdict.status is Status.FAIL
    assert verdict.pattern is Pattern.SEQUENCE_LENGTH
    assert verdict.first_wrong == "position 32 of 63"
    assert verdict.sentence.startswith(
        "from 63 tokens on (a power of two) log-probabilities differ, first at position 32"
    )
    assert "while rows of 33 tokens are right" in verdict.sentence


def test_a_model_that_is_wrong_at_every_length_is_no_matter_of_length(probed: Material) -> None:
    every = [name for name in probed.probes if name.startswith("length ")]
    verdict = judge_lengths(change(probed, *every, by=add(0.01)))
    assert verdict.pattern is Pattern.MODEL_DEFINITION
    assert verdict.first_wrong == "model"


def test_an_error_just_over_the_threshold_fails_and_just_under_it_passes(probed: Material) -> None:
    answer = probed.probes["length 33"]
    floor = float(answer.floor.max())
    healthy = replace(answer, log_probs=answer.exact.clone())
    material = replace(probed, probes={**probed.probes, "length 33": healthy})
    assert judge_lengths(change(material, "length 33", by=add(7.99 * floor))).status is Status.PASS
    assert judge_lengths(change(material, "length 33", by=add(8.01 * floor))).status is Status.FAIL


def test_answers_that_no_precision_decides_are_inconclusive(probed: Material) -> None:
    def undecided(answer: Answer) -> Answer:
        return replace(answer, exact=torch.full_like(answer.exact, torch.nan))

    material = replace(probed, probes={name: undecided(answer) for name, answer in probed.probes.items()})
    for check in (step_lengths, step_padding, step_causality, serving_cache):
        verdict = check.judge(material)
        assert verdict.status is Status.INCONCLUSIVE
        assert "float32" in verdict.sentence


def test_padding_that_moves_a_row_fails_on_its_side(probed: Material) -> None:
    def move_padded(log_probs: torch.Tensor) -> None:
        log_probs[0] += 0.01

    verdict = step_padding.judge(change(probed, PADDED_LEFT, by=move_padded))
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.SEQUENCE_LENGTH)
    assert verdict.sentence.startswith("rows padded left differ from the same rows alone, by up to 0.01 nats")
    assert verdict.first_wrong == "attention mask or positions"
    both = step_padding.judge(change(probed, PADDED_LEFT, PADDED_RIGHT, by=add(0.01)))
    assert "rows without padding too" in both.sentence
    assert both.pattern is Pattern.MODEL_DEFINITION


def test_a_future_that_moves_the_past_fails_at_its_first_position(probed: Material) -> None:
    verdict = step_causality.judge(change(probed, PAST, by=add(0.01, start=5)))
    assert verdict.status is Status.FAIL
    assert "from position 5 on" in verdict.sentence
    assert step_causality.judge(change(probed, OTHER_FUTURE, by=add(0.01, start=11))).status is Status.PASS


def test_a_second_answer_may_differ_by_noise_and_is_then_inconclusive(probed: Material) -> None:
    floor = float(probed.probes[ONCE].floor.max())
    assert step_determinism.judge(change(probed, AGAIN, by=add(floor))).status is Status.INCONCLUSIVE
    verdict = step_determinism.judge(change(probed, AGAIN, by=add(9 * floor)))
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.PRECISION)


def test_dropout_that_nobody_asked_for_fails(probed: Material) -> None:
    always = step_dropout.judge(change(probed, TRAINED_AGAIN, by=add(0.01)))
    assert always.sentence.startswith("no dropout is asked, yet training mode gives other numbers each time")
    mode = step_dropout.judge(change(probed, TRAINED, TRAINED_AGAIN, by=add(0.01)))
    assert mode.sentence.startswith("training mode differs from evaluation mode by 0.01 nats")
    assert (always.status, mode.status) == (Status.FAIL, Status.FAIL)


def test_dropout_that_was_asked_for_must_act(probed: Material, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**step_dropout.read_text_config(probed.spec.model), "attention_dropout": 0.1}
    monkeypatch.setattr(step_dropout, "read_text_config", lambda model: config)
    verdict = step_dropout.judge(probed)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "attention_dropout")
    assert verdict.sentence == "attention_dropout 0.1 is asked, but training mode gives the same numbers twice"
    acting = change(change(probed, TRAINED, by=add(0.1)), TRAINED_AGAIN, by=add(-0.1))
    assert step_dropout.judge(acting).sentence == "dropout acts as asked (attention_dropout 0.1)"


def test_every_probability_of_dropout_is_found() -> None:
    config = {"attention_dropout": 0.0, "resid_pdrop": 0.1, "dropout": True, "hidden_dropout": 0.2, "dropout_p": "no"}
    assert step_dropout.dropouts(config) == {"resid_pdrop": 0.1, "hidden_dropout": 0.2}


def test_a_cache_that_departs_is_named_by_its_position(probed: Material) -> None:
    verdict = serving_cache.judge(change(probed, CACHED, by=add(-0.02, start=32)))
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.STATE_TRANSFER)
    assert verdict.first_wrong == "cache at position 32"


def test_a_model_without_a_cache_is_inconclusive(probed: Material) -> None:
    answers = {name: answer for name, answer in probed.probes.items() if name != CACHED}
    verdict = serving_cache.judge(replace(probed, probes=answers))
    assert (verdict.status, verdict.sentence) == (Status.INCONCLUSIVE, "the row was not decoded with a cache")
