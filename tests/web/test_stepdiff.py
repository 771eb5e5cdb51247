"""The step page: what it computes from verdict documents, and what a reader gets."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from plumbline_web.validations.stepdiff.charts import draw_forward, draw_scale, draw_tokens
from plumbline_web.validations.stepdiff.documents import in_thresholds, read_documents, read_number
from plumbline_web.validations.stepdiff.heat import shade
from plumbline_web.validations.stepdiff.page import StepPage
from plumbline_web.validations.stepdiff.state import StepState
from plumbline_web.validations.stepdiff.tensors import (
    find_question,
    list_mismatches,
    list_steps,
    list_tensors,
    say_why_none,
)
from plumbline_web.validations.stepdiff.tokens import find_worst_row, read_row
from tests.web.factories import failing_verdicts

PACKED = Path(__file__).with_name("packed_result.json")
QUERY = "model.layers.0.self_attn.q_proj.weight"
GRADIENT = find_question("gradient")


def packed_verdicts() -> list[dict[str, Any]]:
    """Verdicts of a real packed run whose positions did not restart: its attention is the first wrong module."""
    verdicts: list[dict[str, Any]] = json.loads(PACKED.read_text())["verdicts"]
    return verdicts


def test_numbers_that_json_does_not_know_are_numbers_again() -> None:
    assert math.isnan(read_number("nan"))
    assert (read_number("inf"), read_number("-inf"), read_number(2)) == (math.inf, -math.inf, 2.0)
    assert math.isnan(read_number(None))
    assert math.isnan(read_number("much"))


def test_an_error_over_a_threshold_of_nothing_is_infinite_unless_it_is_nothing_too() -> None:
    assert in_thresholds(3.0, 2.0) == 1.5
    assert in_thresholds(0.0, 0.0) == 0.0
    assert in_thresholds(1.0, 0.0) == math.inf
    assert math.isnan(in_thresholds(math.nan, 0.0))


def test_gradients_are_listed_without_what_is_no_tensor() -> None:
    judged = read_documents(failing_verdicts())["step.gradients"]
    tensors = list_tensors(judged, GRADIENT)
    assert len(tensors) == 25
    assert tensors[0].name == "model.embed_tokens.weight"
    assert tensors[0].scale == pytest.approx(0.9970238304639589)
    assert not any(each.holds for each in tensors)
    assert all(each.ratio > 1.0 for each in tensors)


def test_blocks_and_ratios_come_from_the_evidence() -> None:
    judged = read_documents(packed_verdicts())["step.gradients"]
    by_name = {each.name: each for each in list_tensors(judged, GRADIENT)}
    query = by_name[QUERY]
    assert (query.block_kind, query.block_count, len(query.blocks)) == ("head", 4, 4)
    assert query.ratio == pytest.approx(judged.evidence["ratios"][QUERY])
    worst = max(query.blocks, key=lambda block: block.ratio)
    assert str(worst.index) == query.block
    assert query.ratio == pytest.approx(max(query.value / query.threshold, worst.ratio), rel=1e-6)
    embedding = by_name["model.embed_tokens.weight"]
    assert (embedding.block_kind, embedding.block_count, len(embedding.blocks)) == ("vocabulary row", 512, 16)


def test_a_tensor_that_fails_by_a_block_alone_is_not_drawn_as_right() -> None:
    verdict = failing_verdicts()[4] | {"evidence": {}}
    verdict["measurements"] = [
        {"name": QUERY, "value": 1e-6, "threshold": 1e-5, "holds": False, "unit": "relative error", "block": "3"}
    ]
    (found,) = list_tensors(read_documents([verdict])["step.gradients"], GRADIENT)
    assert found.ratio == 1.0
    assert shade(found.ratio, holds=found.holds) == "heat-p1"


def test_a_gradient_that_is_absent_is_infinitely_wrong() -> None:
    verdict = failing_verdicts()[4] | {"measurements": [], "evidence": {"absent": [QUERY]}}
    (found,) = list_tensors(read_documents([verdict])["step.gradients"], GRADIENT)
    assert (found.name, found.part, found.ratio, found.holds) == (QUERY, "absent", math.inf, False)


def test_an_update_is_shown_by_the_worst_of_itself_and_its_moments() -> None:
    judged = read_documents(failing_verdicts())["step.update"]
    question = find_question("update")
    assert list_steps(judged) == (1, 3)
    tensors = list_tensors(judged, question)
    assert len(tensors) == 25
    assert {each.step for each in tensors} == {3}
    for each in tensors:
        mine = [m for m in judged.measurements if m.name.endswith(f"{each.name} (step 3)")]
        assert len(mine) == 3
        assert each.ratio == max(m.ratio for m in mine)
    assert tensors[0].scale == pytest.approx(1.0000000046107176)
    assert list_tensors(judged, question, step=1)[0].scale is None


def test_settings_that_are_not_the_asked_ones_are_said_in_words() -> None:
    verdict = failing_verdicts()[1]
    verdict["evidence"]["scalars"] = [
        ["model.layers.0.self_attn", "scaling", 0.25, 0.2525],
        ["model.rotary_emb", "inv_freq", [1.0, 0.5, 0.25, 0.125, 0.0625], [1.0]],
    ]
    assert list_mismatches(read_documents([verdict])["step.settings"]) == (
        "scaling of model.layers.0.self_attn is 0.2525, asked 0.25",
        "inv_freq of model.rotary_emb is [1.0], asked [1.0, 0.5, 0.25, 0.125, … 5 in all]",
    )


def test_why_there_are_no_tensors_is_said() -> None:
    documents = read_documents(failing_verdicts())
    assert say_why_none(None, GRADIENT).startswith("step.gradients was not asked for; clone this validation")
    skipped = documents["data.packing"]
    assert say_why_none(skipped, GRADIENT) == f"step.gradients was skipped: {skipped.sentence}."


def page_of(verdicts: list[dict[str, Any]], **state: Any) -> StepPage:
    return StepPage(read_documents(verdicts), StepState(**state))


def test_the_page_is_headed_by_the_gradients_and_opens_where_something_is_wrong() -> None:
    page = page_of(failing_verdicts())
    assert page.leading is not None
    assert page.leading.sentence.startswith("every gradient is 0.997× the reference, cosine 1.000")
    assert page.question.key == "gradient"
    assert page.floors == pytest.approx(0.125)
    healthy = [verdict for verdict in failing_verdicts() if verdict["status"] == "pass"]
    assert page_of(healthy).leading is None
    broken = [dict(verdict) for verdict in healthy]
    update = next(verdict for verdict in broken if verdict["check"] == "step.update")
    update["status"] = "fail"
    assert page_of(broken).question.key == "update"


def test_the_worst_row_is_shown_unasked_and_any_other_when_asked() -> None:
    documents = read_documents(packed_verdicts())
    worst = find_worst_row(documents["step.loss"])
    page = page_of(packed_verdicts())
    assert page.tokens is not None
    assert (page.tokens.micro, page.tokens.row) == worst
    other = page_of(packed_verdicts(), micro=0, row=0).tokens
    assert other is not None
    assert (other.micro, other.row) == (0, 0)
    beyond = page_of(packed_verdicts(), micro=99, row=0).tokens
    assert beyond is not None
    assert (beyond.micro, beyond.row) == worst


def test_a_row_has_its_documents_its_mask_and_what_is_beyond_the_threshold() -> None:
    documents = read_documents(packed_verdicts())
    row = read_row(documents["step.loss"], documents["data.packing"], micro=1, row=0)
    assert row is not None
    assert [(d.start, d.stop) for d in row.documents] == [(0, 67), (67, 128), (128, 198), (198, 256)]
    assert row.documents[0].error is not None
    assert row.threshold is not None
    assert row.documents[0].error <= row.threshold
    assert all(d.error is not None and d.error > 0.1 for d in row.documents[1:])
    assert list(row.masked_spans()) == [(66, 67), (127, 128), (197, 198), (255, 256)]
    assert {token.document for token in row.tokens if token.difference and abs(token.difference) > row.threshold} == {
        1,
        2,
        3,
    }
    token = row.tokens[100]
    assert token.framework is not None
    assert token.reference is not None
    assert token.difference == token.framework - token.reference


def test_the_token_chart_draws_documents_mask_and_threshold() -> None:
    documents = read_documents(packed_verdicts())
    row = read_row(documents["step.loss"], documents["data.packing"], micro=1, row=0)
    assert row is not None
    chart = draw_tokens(row)
    assert [rule.at for rule in chart.rules] == [-0.5, 66.5, 127.5, 197.5]
    assert (chart.spans[0].start, chart.spans[0].stop) == (65.5, 66.5)
    assert {level.at for level in chart.levels} == {row.threshold, -(row.threshold or 0), row.floor, -(row.floor or 0)}
    assert len(chart.traces[0].x) == row.counted == 252
    assert len(chart.traces[1].x) == row.wrong
    assert chart.note == "252 points; 252 of 256 positions count; 4 documents; shaded: not counted"


def test_a_long_row_is_sampled_with_its_spike_and_says_so() -> None:
    length = 30_000
    batch = {
        "input_ids": [[1] * length],
        "counted": [[True] * length],
        "documents": [[0, 0, length]],
        "reference": [[2.0] * length],
        "framework": [[2.0] * 12_345 + [9.0] + [2.0] * (length - 12_346)],
    }
    verdict = failing_verdicts()[2] | {"evidence": {"tokens": [batch]}}
    row = read_row(read_documents([verdict])["step.loss"], None, micro=0, row=0)
    assert row is not None
    chart = draw_tokens(row)
    assert len(chart.traces[0].x) <= 2_000
    assert 7.0 in chart.traces[0].y
    assert "of 30,000 points, extremes kept" in chart.note


def test_a_mask_that_is_not_the_asked_one_is_counted() -> None:
    batch = {
        "input_ids": [[5, 6, 7]],
        "counted": [[True, False, False]],
        "asked": [[True, True, False]],
        "documents": [[0, 0, 3]],
        "reference": None,
        "framework": None,
    }
    verdict = failing_verdicts()[2] | {"evidence": {"tokens": [batch]}, "measurements": []}
    row = read_row(read_documents([verdict])["step.loss"], None, micro=0, row=0)
    assert row is not None
    assert (row.misread, row.counted, row.wrong) == (1, 1, 0)
    assert draw_tokens(row).empty.startswith("The loss counts 1 position of this row otherwise than the labels ask")


def test_the_forward_marks_the_first_module_that_is_wrong_by_itself() -> None:
    page = page_of(packed_verdicts())
    assert page.forward.first is not None
    assert page.forward.first.path == "model.layers.0.self_attn"
    assert len(page.forward.modules) == 33
    chart = draw_forward(page.forward)
    assert [(rule.kind, rule.text) for rule in chart.rules] == [("first", "first divergence: model.layers.0.self_attn")]
    assert chart.x.ticks == ((1.0, "layer 0"), (16.0, "layer 1"))
    assert "1 agree exactly and lie on the lower edge" in chart.note


def test_without_a_second_pass_the_page_says_why_and_how_to_get_one() -> None:
    assert "what is wrong lies behind the forward" in page_of(failing_verdicts()).forward.why
    healthy = [verdict | {"status": "pass"} for verdict in failing_verdicts()]
    assert "no second pass was run. It runs by itself when token losses differ." in page_of(healthy).forward.why
    assert "clone this validation and choose step.gradients" in page_of([]).forward.why


def test_scale_is_drawn_for_every_tensor_beside_the_reference() -> None:
    chart = draw_scale(page_of(failing_verdicts()).tensors)
    (trace,) = chart.traces
    assert trace.style == "wrong"
    assert len(trace.y) == 25
    assert max(trace.y) < 0.9971
    assert [level.at for level in chart.levels] == [1.0]
    assert draw_scale(page_of(failing_verdicts(), kind="weights").tensors).empty != ""


def test_a_tensor_is_shown_with_every_measurement_of_every_check() -> None:
    measured = {each.question.key: each.tensors for each in page_of(failing_verdicts()).measure(QUERY)}
    assert list(measured) == ["gradient", "update", "weights", "accumulation", "class"]
    assert [(t.part, t.step) for t in measured["update"]] == [
        ("", 1), ("exp_avg", 1), ("exp_avg_sq", 1), ("", 3), ("exp_avg", 3), ("exp_avg_sq", 3),
    ]  # fmt: skip
    assert page_of(failing_verdicts()).measure("no.such.tensor") == ()
