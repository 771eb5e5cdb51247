"""One filter for the page, the API and the exports."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from plumbline_web.validations.enums import State
from plumbline_web.validations.filters import ValidationFilter
from plumbline_web.validations.models import Validation
from tests.web import factories
from tests.web.pages import numbers_of, sign_in

pytestmark = pytest.mark.django_db

COMBINATIONS = (
    "",
    "verdict=fail",
    "framework=trl&verdict=pass",
    "model=tiny:llama&queue=gpu",
    "state=open&sort=oldest",
    "check=step.loss&status=fail",
    "check=step.loss&status=inconclusive&framework=transformers",
    "pattern=objective-scale&who=bo",
    "profile=nightly@1&since=2026-10-02",
    "profile=none&until=2026-10-03",
    "text=trl+llama",
    "text=hugging&sort=slowest",
    "status=error&sort=worst",
)


@pytest.fixture
def client() -> Client:
    """A reader before fourteen validations of all kinds, on four days."""
    ana, bo = factories.make_user(username="ana"), factories.make_user(username="bo")
    profile = factories.make_profile()
    odd = factories.verdicts_with(step_loss="inconclusive", step_update="error")
    for day in range(1, 5):
        when = datetime(2026, 10, day, 12, tzinfo=UTC)
        owner = ana if day % 2 else bo
        factories.make_validation(owner=owner, created_at=when, runs=False, duration_s=10 * day)
        factories.make_validation(
            owner=owner, created_at=when, framework="trl", model="tiny:llama", verdicts=factories.passing_verdicts(),
            runs=False, profile=profile, queue="gpu" if day > 2 else "cpu", duration_s=70 - day,
        )  # fmt: skip
        factories.make_validation(owner=owner, created_at=when, verdicts=odd, runs=False)
    factories.make_validation(owner=ana, state=State.RUNNING, runs=False)
    factories.make_validation(owner=bo, state=State.QUEUED, runs=False)
    return sign_in()


def find(**given: str) -> list[int]:
    found = ValidationFilter(given, queryset=Validation.objects.all())
    assert found.is_valid(), found.errors
    return [validation.pk for validation in found.qs]


@pytest.mark.parametrize("query", COMBINATIONS)
def test_page_api_csv_and_json_give_the_same_rows(client: Client, query: str) -> None:
    page = numbers_of(client.get(f"/validations/?{query}", follow=True))
    lines = csv.DictReader(io.StringIO(fetch(client, f"/validations.csv?{query}")))
    objects = json.loads(fetch(client, f"/validations.json?{query}"))
    api = client.get(f"/api/v1/validations?{query}").json()
    assert page
    assert [int(line["number"]) for line in lines] == page
    assert [row["number"] for row in objects] == page
    assert [row["number"] for row in rows_of(api)] == page


def fetch(client: Client, address: str) -> str:
    """A streamed file, whole."""
    response: Any = client.get(address)
    return b"".join(response.streaming_content).decode()


def rows_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a page of the API."""
    rows: list[dict[str, Any]] = answer["rows"]
    return rows


def test_check_and_status_speak_of_the_same_verdict(client: Client) -> None:
    """A validation whose other check is inconclusive does not match."""
    assert len(find(check="step.loss", status="inconclusive")) == 4
    assert find(check="step.gradients", status="inconclusive") == []
    assert len(find(status="error")) == 4


def test_a_superseded_verdict_does_not_match() -> None:
    validation = factories.make_validation()
    result = validation.results.get(check_name="step.loss")
    result.superseded_at = validation.ended_at
    result.save()
    assert find(check="step.loss", status="fail") == []
    assert find(check="step.denominator", status="fail") == [validation.pk]


def test_until_includes_the_day_and_a_time_is_exact() -> None:
    noon = factories.make_validation(created_at=datetime(2026, 10, 3, 12, tzinfo=UTC), runs=False)
    assert find(until="2026-10-03") == [noon.pk]
    assert find(until="2026-10-02") == []
    assert find(since="2026-10-03T12:00", until="2026-10-03T12:00") == [noon.pk]
    assert find(since="2026-10-03T14:00+02:00") == [noon.pk]
    assert find(since="2026-10-03T12:01") == []


@pytest.mark.parametrize("day", ["2026-13-01", "2026-02-30", "0", "2026-10-03T25:00"])
def test_a_day_of_no_calendar_is_refused(day: str) -> None:
    found = ValidationFilter({"since": day}, queryset=Validation.objects.all())
    assert not found.is_valid()
    assert list(found.qs) == []


def test_search_finds_numbers_and_words() -> None:
    trl = factories.make_validation(framework="trl", model="tiny:llama", runs=False)
    faulty = factories.make_validation(inject="wrong-loss-count", runs=False)
    assert find(text=f"v-{trl.pk}") == [trl.pk]
    assert find(text=str(faulty.pk)) == [faulty.pk]
    assert find(text="LLAMA trl") == [trl.pk]
    assert find(text="wrong-loss") == [faulty.pk]
    assert find(text="llama transformers") == []
    assert find(text="9" * 18) == []


def test_a_model_that_was_retrained_is_one_name() -> None:
    first = factories.make_validation(model="/models/a", runs=False)
    second = factories.make_validation(model="/models/a", runs=False)
    retrained = factories.make_model("/models/a")
    retrained.pk = None
    retrained.revision = "another"
    retrained.save()
    Validation.objects.filter(pk=second.pk).update(model=retrained)
    assert set(find(model="/models/a")) == {first.pk, second.pk}


def test_a_wrong_value_names_its_field_and_the_unfiltered_list_is_never_given() -> None:
    factories.make_validation(runs=False)
    found = ValidationFilter({"verdict": "perhaps", "framework": "torch"}, queryset=Validation.objects.all())
    assert set(found.errors) == {"verdict", "framework"}
    assert list(found.qs) == []
