"""The step page as a reader gets it: its words, its tables, its data, and who may see it."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from plumbline_web.accounts.models import User
from plumbline_web.validations.enums import State
from plumbline_web.validations.models import Validation
from plumbline_web.validations.stepdiff.state import StepState
from tests.web.factories import failing_verdicts, make_user, make_validation
from tests.web.test_stepdiff import QUERY, packed_verdicts


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
