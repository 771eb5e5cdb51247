"""The step page: what it computes from verdict documents, and what a reader gets."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from plumbline_web.accounts.models import User
from plumbline_web.validations.enums import State
from plumbline_web.validations.models import Validation
from plumbline_web.validations.stepdiff.charts import draw_forward, draw_scale, draw_tokens
from plumbline_web.validations.stepdiff.documents import in_thresholds, read_documents, read_number
from plumbline_web.validations.stepdiff.grid import build_grid
from plumbline_web.validations.stepdiff.heat import list_swatches, shade
from plumbline_web.validations.stepdiff.names import OUTSIDE, place
from plumbline_web.validations.stepdiff.page import StepPage
from plumbline_web.validations.stepdiff.state import StepState
from plumbline_web.validations.stepdiff.tensors import (
    Tensor,
    find_question,
    list_mismatches,
    list_steps,
    list_tensors,
    say_why_none,
)
from plumbline_web.validations.stepdiff.tokens import find_worst_row, read_row
from tests.web.factories import failing_verdicts, make_user, make_validation

PACKED = Path(__file__).with_name("packed_result.json")
QUERY = "model.layers.0.self_attn.q_proj.weight"
GRADIENT = find_question("gradient")


def packed_verdicts() -> list[dict[str, Any]]:
    """Verdicts of a real packed run whose positions did not restart: its attention is the first wrong module."""
    verdicts: list[dict[str, Any]] = json.loads(PACKED.read_text())["verdicts"]
    return verdicts


def tensor(name: str, ratio: float, *, holds: bool | None = None) -> Tensor:
    return Tensor(name, ratio * 1e-5, 1.25e-6, 1e-5, None, ratio, ratio <= 1.0 if holds is None else holds)


# ---- numbers, names, colours ----


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


@pytest.mark.parametrize(
    ("name", "row", "group", "short"),
    [
        ("model.embed_tokens.weight", "embed_tokens", "", OUTSIDE),
        ("model.norm.weight", "norm", "", OUTSIDE),
        ("lm_head.weight", "lm_head", "", OUTSIDE),
        ("model.layers.12.self_attn.q_proj.weight", "layers.12", "self_attn", "q_proj"),
        ("model.layers.0.self_attn.q_proj.bias", "layers.0", "self_attn", "q_proj bias"),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", "layers.0", "self_attn", "q_proj lora_A"),
        ("model.layers.0.input_layernorm.weight", "layers.0", "", "input_layernorm"),
        ("model.layers.3.mlp.experts.gate_up_proj", "layers.3", "mlp.experts", "gate_up_proj"),
        ("model.layers.3.mlp.experts.17.up_proj.weight", "layers.3", "mlp.experts", "up_proj"),
        ("model.language_model.layers.3.mlp.up_proj.weight", "language_model.layers.3", "mlp", "up_proj"),
    ],
)
def test_a_tensor_has_its_place(name: str, row: str, group: str, short: str) -> None:
    where = place(name)
    assert (where.row, where.group, where.short) == (row, group, short)


def test_the_hue_turns_where_the_threshold_lies() -> None:
    assert shade(1.0, holds=True) == "heat-n1"
    assert shade(1.0001, holds=False) == "heat-p1"
    assert shade(0.5, holds=False) == "heat-p1"
    assert (shade(0.0, holds=True), shade(1e-30, holds=True)) == ("heat-n8", "heat-n8")
    assert (shade(math.inf, holds=False), shade(1e30, holds=False)) == ("heat-p8", "heat-p8")
    assert shade(math.nan, holds=False) == "heat-nan"
    assert shade(0.125, holds=True) == "heat-n2"
    assert shade(31.0, holds=False) == "heat-p3"


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_more_error_is_never_a_weaker_colour(one: float, other: float) -> None:
    order = [swatch.shade for swatch in list_swatches()]
    low, high = sorted((one, other))
    assert order.index(shade(low, holds=low <= 1.0)) <= order.index(shade(high, holds=high <= 1.0))


def test_the_legend_says_where_each_colour_begins() -> None:
    swatches = {swatch.shade: swatch for swatch in list_swatches()}
    assert len(swatches) == 16
    assert swatches["heat-n8"].low == pytest.approx(1e-4)
    assert swatches["heat-p1"].low == 1.0
    for name, swatch in swatches.items():
        assert shade(swatch.low * 1.01, holds=swatch.low < 1.0) == name


# ---- grid ----


def test_rows_and_columns_come_in_the_order_of_the_model() -> None:
    names = [
        "model.embed_tokens.weight",
        QUERY,
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
    ]
    grid = build_grid(tensor(name, 0.1) for name in names)
    assert [row.title for row in grid.rows] == ["embed_tokens", "layers.0", "layers.1", "norm", "lm_head"]
    assert [column.title for column in grid.columns] == [OUTSIDE, "q_proj", "k_proj", "up_proj", "input_layernorm"]
    assert [(group.title, group.span) for group in grid.groups] == [("", 1), ("self_attn", 2), ("mlp", 1), ("", 1)]
    assert [cell is not None for cell in grid.rows[1].cells] == [False, True, False, True, True]
    assert (grid.wrong, grid.total) == (0, 8)


def test_the_experts_of_a_layer_share_a_cell_and_the_wrong_one_shows() -> None:
    names = [f"model.layers.0.mlp.experts.{i}.up_proj.weight" for i in range(4)]
    grid = build_grid(tensor(name, 5.0 if i == 2 else 0.2) for i, name in enumerate(names))
    cell = grid.rows[0].cells[0]
    assert cell is not None
    assert (cell.count, cell.expert, cell.tensor.name, cell.shade) == (4, 2, names[2], "heat-p2")
    assert "worst of 4 experts" in cell.hover


def test_a_cell_shows_two_digits_and_the_whole_value_on_hover() -> None:
    cell = build_grid([tensor(QUERY, 304.4)]).rows[0].cells[0]
    assert cell is not None
    assert cell.text == "3.0e-3"
    assert repr(304.4 * 1e-5) in cell.hover
    assert "304 × its threshold 1e-05" in cell.hover
    assert "noise floor 1.25e-06" in cell.hover


# ---- verdict documents ----


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


# ---- pages ----


@pytest.fixture
def failing(db: None) -> Validation:
    return make_validation()


@pytest.fixture
def reader(client: Client, db: None) -> Client:
    client.force_login(make_user())
    return client


def step_url(validation: Validation, name: str = "validation-step", *args: str) -> str:
    return reverse(name, args=[validation.pk, *args])


def test_the_page_says_it_in_words_and_draws_every_tensor(reader: Client, failing: Validation) -> None:
    page = reader.get(step_url(failing)).content.decode()
    assert "every gradient is 0.997× the reference, cosine 1.000 from embedding to head" in page
    assert f"<title>{failing.number} step fail · transformers × qwen3</title>" in page
    assert page.count('<td class="heat-p') == 25
    assert "25 of 25 tensors wrong" in page
    assert " style=" not in page
    assert "<script>" not in page


@pytest.mark.parametrize("others", [0, 1000])
def test_the_page_takes_few_queries_however_many_validations_there_are(
    reader: Client, failing: Validation, others: int, django_assert_max_num_queries: Any
) -> None:
    Validation.objects.bulk_create([_copy(failing) for _ in range(others)])
    with django_assert_max_num_queries(12):
        assert reader.get(step_url(failing), {"tensor": QUERY}).status_code == 200


def _copy(validation: Validation) -> Validation:
    copy = Validation.objects.get(pk=validation.pk)
    copy.pk = None
    return copy


def test_the_address_is_the_state(reader: Client, failing: Validation) -> None:
    page = reader.get(step_url(failing), {"kind": "update", "step": "1", "tensor": QUERY}).content.decode()
    assert "at step 1" in page
    assert f"<code>{QUERY}</code>" in page
    assert "kind=update&amp;step=1" in page
    assert StepState().query() == ""
    assert StepState(kind="update", row=0).query() == "kind=update&row=0"


@pytest.mark.parametrize("query", ["kind=nothing", "step=-1", "micro=x&row=٣", "row=99999999999", "tensor=%00"])
def test_an_address_that_says_nothing_sensible_shows_the_page(reader: Client, failing: Validation, query: str) -> None:
    assert reader.get(f"{step_url(failing)}?{query}").status_code == 200


def test_a_cell_opens_a_panel_or_without_scripts_a_page(reader: Client, failing: Validation) -> None:
    url = f"{step_url(failing, 'validation-tensor')}?name={QUERY}"
    panel = reader.get(url, headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in panel
    assert "exp_avg_sq, step 3" in panel
    whole = reader.get(url).content.decode()
    assert f"<title>{QUERY} · {failing.number}</title>" in whole
    assert reader.get(step_url(failing, "validation-tensor"), {"name": "none"}).status_code == 404


def test_a_name_from_a_capture_is_escaped(reader: Client, db: None) -> None:
    verdict = failing_verdicts()[4]
    verdict["measurements"][1]["name"] = 'model.<script>alert("x")</script>'
    page = reader.get(step_url(make_validation(verdicts=[verdict]))).content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_the_csv_has_every_tensor_with_every_digit(reader: Client, failing: Validation) -> None:
    response = reader.get(step_url(failing, "validation-step-table", "tensors"))
    assert response["Content-Disposition"] == f'attachment; filename="{failing.number}-tensors-gradient.csv"'
    rows = list(csv.DictReader(io.StringIO(response.content.decode())))
    assert len(rows) == 25
    measured = {m["name"]: m for m in failing_verdicts()[4]["measurements"]}
    for row in rows:
        assert float(row["value"]) == measured[row["tensor"]]["value"]
        assert row["holds"] == "false"


def test_the_token_csv_has_every_position(reader: Client, db: None) -> None:
    validation = make_validation(verdicts=packed_verdicts())
    response = reader.get(step_url(validation, "validation-step-table", "tokens"), {"micro": 1, "row": 0})
    rows = list(csv.DictReader(io.StringIO(response.content.decode())))
    assert [int(row["position"]) for row in rows] == list(range(256))
    assert rows[66] == {
        "position": "66", "token": rows[66]["token"], "counted": "false", "asked": "false", "document": "0",
        "framework": "", "reference": "", "difference": "",
    }  # fmt: skip


@pytest.mark.parametrize("chart", ["tokens", "forward", "scale", "direction"])
def test_each_chart_has_its_data(reader: Client, db: None, chart: str) -> None:
    validation = make_validation(verdicts=packed_verdicts())
    document = reader.get(step_url(validation, "validation-step-chart", chart)).json()
    assert document["empty"] == ""
    assert all(len(trace["x"]) == len(trace["y"]) > 0 for trace in document["traces"])


def test_there_is_no_other_chart_or_table(reader: Client, failing: Validation) -> None:
    assert reader.get(step_url(failing, "validation-step-chart", "other")).status_code == 404
    assert reader.get(step_url(failing, "validation-step-table", "other")).status_code == 404


def test_an_open_validation_says_when_there_will_be_something(reader: Client, db: None) -> None:
    page = reader.get(step_url(make_validation(state=State.RUNNING))).content.decode()
    assert "this validation is running, and its checks are judged when its framework runs have ended" in page


@pytest.mark.parametrize(
    "name", ["validation-step", "validation-tensor", "validation-step-chart", "validation-step-table"]
)
def test_a_stranger_is_asked_to_sign_in(client: Client, failing: Validation, name: str) -> None:
    args = ["tokens"] if name.endswith(("chart", "table")) else []
    response = client.get(step_url(failing, name, *args))
    assert response.status_code == 302
    assert response["Location"].startswith("/sign-in/")


def test_someone_whose_account_was_closed_sees_nothing(client: Client, failing: Validation) -> None:
    user: User = make_user()
    client.force_login(user)
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert client.get(step_url(failing)).status_code in (302, 404)


def test_there_is_no_step_of_a_validation_that_is_not_there(reader: Client, db: None) -> None:
    assert reader.get("/validations/V-999999/step/").status_code == 404
    assert reader.get("/validations/V-99999999999999999999999/step/").status_code == 404
