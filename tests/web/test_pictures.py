"""Pictures of a verdict's evidence: curves with their tables, tokens of rows, records."""

from __future__ import annotations

import math
from typing import Any

import pytest

from checks.plot import MOST_POINTS, Curve, Plot, to_evidence
from plumbline_web.validations.evidence import read_evidence
from plumbline_web.validations.models import CheckResult
from plumbline_web.validations.pictures import describe_records, is_picture, read_pictures, read_token_rows
from tests.web import factories
from tests.web.pages import sign_in, text_of

PLOT = Plot(
    "Error by length",
    "tokens",
    "nats",
    (Curve("error", [2.0, 3.0, 4.0], [1e-6, math.nan, 2e-6]), Curve("allowed", [2.0, 4.0], [1.0, 1.0], "threshold")),
    scale="log",
)
LABELS = {
    "place": "micro-batch 0, row 1",
    "sample": "sample 7",
    "first_difference": 12,
    "from": 11,
    "tokens": [["<b>", True, True], ["x", False, True], ["y", True, False], ["z", False, False], ["?", True, None]],
}
TEXTS = {
    "place": "micro-batch 0, row 0",
    "sample": None,
    "detail": "the first token is doubled",
    "first_difference": 1,
    "from": 0,
    "seen": ["a", "a", "b"],
    "expected": ["a", "b"],
}


def result_with(evidence: dict[str, Any]) -> CheckResult:
    validation = factories.make_validation()
    result = validation.results.get(check_name="step.loss")
    result.document = {**result.document, "evidence": evidence}
    result.save(update_fields=["document"])
    return result


def test_a_plot_becomes_a_chart_and_the_table_behind_it() -> None:
    (picture,) = read_pictures({"plots": to_evidence([PLOT])})
    assert picture.columns == ("tokens", "error", "allowed")
    assert picture.rows == ((2.0, 1e-6, 1.0), (3.0, None, None), (4.0, 2e-6, 1.0))
    assert (picture.chart.label, picture.chart.y.title, picture.chart.y.scale) == ("Error by length", "nats", "log")
    assert [trace.style for trace in picture.chart.traces] == ["line", "threshold"]


def test_a_long_curve_is_thinned() -> None:
    long = Curve("long", [float(i) for i in range(3 * MOST_POINTS)], [0.0] * 3 * MOST_POINTS)
    (plot,) = to_evidence([Plot("t", "x", "y", (long,))])
    (curve,) = plot["curves"]  # type: ignore[misc]
    assert len(curve["x"]) == len(curve["y"]) == MOST_POINTS
    assert curve["x"][:2] == [0.0, 3.0]


def test_tokens_are_shown_as_they_stand_to_what_they_should_be() -> None:
    (row,) = read_token_rows({"rows": [LABELS]})
    assert row.title == "micro-batch 0, row 1, sample 7: from token 11, first difference at 12"
    (strip,) = row.strips
    assert [token.standing for token in strip.tokens] == ["trained", "lost", "extra", "masked", "open"]
    (other,) = read_token_rows({"rows": [TEXTS]})
    assert [strip.label for strip in other.strips] == ["seen", "expected"]
    assert [token.standing for token in other.strips[0].tokens] == ["masked", "extra", "masked"]


def test_records_are_tables_and_anything_else_is_not() -> None:
    assert describe_records([{"url": 1, "b": True}, {"b": None, "url": 2}]) == (("b", "url"), (("yes", 1), (None, 2)))
    for other in ([], "text", [1], [{"a": 1}, {"b": 1}], [{"a": [1]}], {"a": 1}, None):
        assert describe_records(other) is None
    assert is_picture("plots", [])
    assert is_picture("rows", [LABELS])
    assert not is_picture("rows", [["x", 1]])


@pytest.mark.django_db
class TestPage:
    def test_the_page_draws_what_the_judge_described(self) -> None:
        result = result_with({"plots": to_evidence([PLOT]), "rows": [LABELS, TEXTS], "affecting": [{"slug": "a-b"}]})
        client = sign_in()
        page = client.get(f"/validations/V-{result.validation_id}/checks/step.loss/")
        html, text = page.content.decode(), text_of(page)
        address = f"/validations/V-{result.validation_id}/verdicts/{result.pk}/plots/0.json"
        assert f'data-chart="{address}"' in html
        assert "charts.js" in html
        assert "Table: 3 rows" in text
        assert "&lt;b&gt;" in html
        assert 'class="token is-lost" title="not trained, and should be"' in html
        assert "the first token is doubled" in text
        assert "affecting" in text
        assert client.get(address).json()["label"] == "Error by length"
        assert client.get(address.replace("/0.json", "/1.json")).status_code == 404
        assert read_evidence(result).raws == ()

    def test_a_plot_of_another_validation_is_not_found(self) -> None:
        result = result_with({"plots": to_evidence([PLOT])})
        other = factories.make_validation()
        assert sign_in().get(f"/validations/V-{other.pk}/verdicts/{result.pk}/plots/0.json").status_code == 404
