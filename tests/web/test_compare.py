"""Validations beside each other: curves and their differences, verdicts, tensors, settings."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import numpy as np
import pytest
from django.http import QueryDict
from django.test import Client

from checks.captures.log import LogRecord
from plumbline_web.accounts.models import User
from plumbline_web.curves.compared import draw_curves, draw_differences, read_sources
from plumbline_web.curves.domain import store_curves
from plumbline_web.curves.selection import MOST_TRACES, Selection, read_selection, rearrange
from plumbline_web.curves.settings_table import list_settings
from plumbline_web.curves.verdicts import VerdictCell, list_maps, list_verdicts
from plumbline_web.validations.enums import RunRole
from plumbline_web.validations.models import Validation
from tests.web.factories import make_user, make_validation


def log(validation: Validation, losses: list[float], *, role: str = RunRole.RUN, tokens: int | None = None) -> None:
    run = validation.validation_runs.get(role=role).run
    store_curves(
        run,
        [
            LogRecord(step, loss, 1.0, 1e-3, tokens=None if tokens is None else float(tokens * step))
            for step, loss in enumerate(losses, start=1)
        ],
    )


@pytest.fixture
def user(db: None) -> User:
    return make_user()


@pytest.fixture
def reader(client: Client, user: User) -> Client:
    client.force_login(user)
    return client


@pytest.fixture
def pair(user: User) -> tuple[Validation, Validation]:
    first, second = make_validation(owner=user), make_validation(owner=user, settings={"lr": 2e-3})
    log(first, [3.0, 2.0, 1.0], tokens=100)
    log(second, [3.5, math.nan, 1.25], tokens=50)
    return first, second


def selected(*validations: Validation, **changes: Any) -> Selection:
    return Selection(validations=tuple(validation.pk for validation in validations), **changes)


def sources_of(selection: Selection) -> Any:
    return read_sources(selection, visible=selection.validations)


# ---- the address ----


def test_validations_are_given_by_number_in_any_usual_form() -> None:
    selection = read_selection(QueryDict("v=3&v=V-1,v-2&v=3&v=+7%3B8"))
    assert selection.validations == (3, 1, 2, 7, 8)
    assert selection.errors == ()


def test_what_is_as_usual_stays_out_of_the_address() -> None:
    assert selected().query() == ""
    asked = "v=2&v=1&x=tokens&scale=symlog&kind=update&smoothing=0.9&tolerance=0.1&runs=all&settings=all"
    selection = read_selection(QueryDict(asked))
    assert selection.errors == ()
    assert read_selection(QueryDict(selection.query())) == selection
    assert sorted(selection.query().split("&")) == sorted(asked.split("&"))


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("v=seven", "v: 'seven' is no validation; give numbers such as V-12"),
        ("v=-4", "v: '-4' is no validation; give numbers such as V-12"),
        ("v=9999999999999999999", "v: '9999999999999999999' is no validation; give numbers such as V-12"),
        ("x=banana", "x: 'banana' is none of its values; use step, tokens, samples, seconds"),
        ("smoothing=1", "smoothing: '1' is out of bounds; give a number from 0 to 0.999"),
        ("tolerance=nan", "tolerance: 'nan' is out of bounds; give a number from 0 to 1e+06"),
    ],
)
def test_what_an_address_says_wrongly_is_named(query: str, error: str) -> None:
    assert read_selection(QueryDict(query)).errors == (error,)


def test_more_validations_than_can_be_compared_are_named() -> None:
    selection = read_selection(QueryDict("v=" + ",".join(map(str, range(1, 150)))))
    assert len(selection.validations) == 100
    assert selection.errors == ("v: 149 validations are too many; compare at most 100 at once",)


def test_a_validation_is_put_first_or_taken_out() -> None:
    selection = Selection(validations=(1, 2, 3))
    assert rearrange(selection, QueryDict("first=3")).validations == (3, 1, 2)
    assert rearrange(selection, QueryDict("without=2")).validations == (1, 3)
    assert rearrange(selection, QueryDict("first=9")) is selection


# ---- curves ----


def test_curves_are_drawn_as_they_were_logged(pair: tuple[Validation, Validation]) -> None:
    chart = draw_curves(sources_of(selected(*pair)), "loss", selected(*pair))
    first, second, lost = chart.traces
    assert (first.name, first.x, first.y) == (pair[0].number, [1.0, 2.0, 3.0], [3.0, 2.0, 1.0])
    assert (second.y[0], second.y[2]) == (3.5, 1.25)
    assert (lost.style, lost.x) == ("nonfinite", [2.0])
    assert chart.note == f"{pair[0].number}: 3 points; {pair[1].number}: 3 points; 1 not finite"


def test_the_raw_curve_stays_behind_the_smoothed_one(pair: tuple[Validation, Validation]) -> None:
    selection = selected(pair[0], smoothing=0.5)
    raw, smoothed = draw_curves(sources_of(selection), "loss", selection).traces
    assert (raw.style, raw.y) == ("faint", [3.0, 2.0, 1.0])
    assert smoothed.style == "line"
    assert smoothed.y == pytest.approx([3.0, (0.25 * 3 + 0.5 * 2) / 0.75, (0.125 * 3 + 0.25 * 2 + 0.5) / 0.875])


def test_curves_lie_along_tokens_and_who_counted_none_is_named(pair: tuple[Validation, Validation]) -> None:
    third = make_validation()
    log(third, [1.0, 1.0])
    selection = selected(*pair, third, x="tokens")
    chart = draw_curves(sources_of(selection), "loss", selection)
    assert list(chart.traces[0].x) == [100.0, 200.0, 300.0]
    assert list(chart.traces[1].x) == [50.0, 100.0, 150.0]
    assert f"{third.number} logged no tokens seen and cannot be drawn along it" in chart.note


def test_what_has_no_place_on_a_logarithmic_axis_is_counted(user: User) -> None:
    validation = make_validation(owner=user)
    log(validation, [1.0, 0.0, -2.0])
    selection = selected(validation, scale="log")
    note = draw_curves(sources_of(selection), "loss", selection).note
    assert "2 points are 0 or less and have no place on a logarithmic axis; symlog shows them" in note


def test_the_difference_is_taken_in_float64_before_points_are_left_out(user: User) -> None:
    first, second = make_validation(owner=user), make_validation(owner=user)
    losses = np.random.default_rng(0).uniform(1, 2, 5_000)
    other = losses + 1e-12
    other[3_210] += 1e-6
    log(first, losses.tolist())
    log(second, other.tolist())
    selection = selected(first, second, tolerance=0.1)
    chart = draw_differences(sources_of(selection), "loss", selection)
    upper, lower, difference = chart.traces
    assert len(difference.y) <= 2_000
    assert max(difference.y) == other[3_210] - losses[3_210]
    assert (upper.style, lower.style) == ("band", "band")
    assert max(upper.y) == pytest.approx(0.1 * losses.max())
    assert list(lower.y) == [-edge for edge in upper.y]
    assert "of 5,000 points, extremes kept" in chart.note


def test_a_difference_needs_two(pair: tuple[Validation, Validation]) -> None:
    selection = selected(pair[0])
    assert draw_differences(sources_of(selection), "loss", selection).empty == (
        "A difference needs the curves of two runs."
    )


def test_twenty_curves_are_drawn_until_more_are_asked_for(user: User) -> None:
    validations = [make_validation(owner=user, verdicts=[]) for _ in range(MOST_TRACES + 2)]
    for validation in validations:
        log(validation, [1.0])
    selection = selected(*validations)
    chart = draw_curves(sources_of(selection), "loss", selection)
    assert len(chart.traces) == 20
    assert chart.more == "2 more curves are not drawn; ask for them with “all curves”."
    every = selected(*validations, all_traces=True)
    assert len(draw_curves(sources_of(every), "loss", every).traces) == 22


def test_other_runs_of_a_validation_come_when_asked_for(pair: tuple[Validation, Validation]) -> None:
    log(pair[0], [2.5], role=RunRole.MERGED)
    assert [source.label for source in sources_of(selected(pair[0]))] == [pair[0].number]
    every = sources_of(selected(pair[0], all_runs=True))
    assert [source.label for source in every] == [pair[0].number, f"{pair[0].number} run on merged rows"]


# ---- verdicts, tensors, settings ----


def test_verdicts_stand_beside_each_other_in_reading_order(pair: tuple[Validation, Validation]) -> None:
    rows = list_verdicts(pair)
    assert [row.check for row in rows][:3] == ["run.completes", "step.settings", "step.loss"]
    gradients = next(row for row in rows if row.check == "step.gradients")
    assert [cell.status for cell in gradients.cells if cell] == ["fail", "fail"]


def test_colour_and_verdict_agree_at_the_threshold() -> None:
    assert VerdictCell(1, "fail", "", 0.5).shade == "heat-p1"
    assert VerdictCell(1, "pass", "", 1.0).shade == "heat-n1"
    assert VerdictCell(1, "inconclusive", "", 3.0).shade == "heat-empty"


def test_tensors_of_all_are_drawn_on_one_scale(pair: tuple[Validation, Validation]) -> None:
    lacking = make_validation(verdicts=[])
    maps = list_maps((*pair, lacking), "gradient")
    assert [each.grid.wrong for each in maps] == [25, 25, 0]
    assert maps[2].why_none.startswith("step.gradients was not asked for")


def test_only_the_settings_that_differ_are_shown_until_all_are_asked_for(
    reader: Client, pair: tuple[Validation, Validation]
) -> None:
    differing = [(s.group, s.name, s.values) for s in list_settings(pair) if s.differs]
    assert differing == [("run spec", "lr", ("0.001", "0.002"))]
    address = f"/compare/?v={pair[0].pk}&v={pair[1].pk}"
    short, whole = (reader.get(address + more).content.decode() for more in ("", "&settings=all"))
    assert '<th scope="row">lr</th>' in short
    assert '<th scope="row">weight_decay</th>' not in short
    assert '<th scope="row">weight_decay</th>' in whole


def test_no_path_of_the_installation_is_shown(pair: tuple[Validation, Validation]) -> None:
    pair[0].spec = {**pair[0].spec, "model": "/srv/secret/model", "data": "/srv/secret/data"}
    assert not any("/srv" in (value or "") for setting in list_settings(pair) for value in setting.values)


# ---- pages ----


def test_the_page_names_what_there_is_not(reader: Client, pair: tuple[Validation, Validation]) -> None:
    page = reader.get(f"/compare/?v={pair[0].pk}&v=V-999999&v=x").content.decode()
    assert "v: there is no V-999999; choose one from the list" in page
    assert "v: &#x27;x&#x27; is no validation; give numbers such as V-12" in page
    assert " style=" not in page


def test_an_empty_comparison_offers_the_latest(reader: Client, pair: tuple[Validation, Validation]) -> None:
    page = reader.get("/compare/").content.decode()
    assert page.count('<input type="checkbox" name="v"') == 2


def test_the_buttons_of_a_chip_give_a_clean_address(reader: Client, pair: tuple[Validation, Validation]) -> None:
    first, second = (validation.pk for validation in pair)
    response = reader.get(f"/compare/?v={first}&v={second}&v=&scale=log&first={second}")
    assert response["Location"] == f"/compare/?v={second}&v={first}&scale=log"


@pytest.mark.parametrize("count", [1, 20])
def test_the_page_takes_few_queries_however_much_is_compared(
    reader: Client, user: User, count: int, django_assert_max_num_queries: Any
) -> None:
    validations = [make_validation(owner=user) for _ in range(count)]
    for validation in validations:
        log(validation, [1.0, 2.0])
    with django_assert_max_num_queries(12):
        page = reader.get("/compare/?" + "&".join(f"v={validation.pk}" for validation in validations))
    assert page.content.decode().count('class="chip"') == count


def test_the_data_of_a_chart_has_null_for_what_json_does_not_know(
    reader: Client, pair: tuple[Validation, Validation]
) -> None:
    document = reader.get(f"/compare/loss.json?v={pair[1].pk}").json()
    assert document["traces"][0]["y"] == [3.5, None, 1.25]
    difference = reader.get(f"/compare/loss/difference.json?v={pair[0].pk}&v={pair[1].pk}").json()
    assert difference["traces"][2]["y"] == [0.5, None, 0.25]
    assert reader.get("/compare/other.json").status_code == 404


def test_the_export_has_every_point_with_every_digit(reader: Client, user: User) -> None:
    validation = make_validation(owner=user)
    losses = [*np.random.default_rng(1).uniform(1, 2, 5_000).tolist(), math.nan, math.inf]
    log(validation, losses)
    response = reader.get(f"/compare.csv?v={validation.pk}")
    rows = [row for row in csv.DictReader(io.StringIO(response.content.decode())) if row["quantity"] == "loss"]
    assert [float(row["value"]) for row in rows[:5_000]] == losses[:5_000]
    assert [row["value"] for row in rows[5_000:]] == ["nan", "inf"]
    curve = reader.get(f"/compare.json?v={validation.pk}").json()["curves"][0]
    assert (curve["run"], curve["quantity"]) == (validation.number, "loss")
    assert curve["steps"] == list(range(1, 5_003))
    assert curve["values"] == [*losses[:5_000], "nan", "inf"]


@pytest.mark.parametrize("address", ["/compare/", "/compare/loss.json", "/compare.csv"])
def test_a_stranger_is_asked_to_sign_in(client: Client, db: None, address: str) -> None:
    assert client.get(address)["Location"].startswith("/sign-in/")
