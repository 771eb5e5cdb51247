"""The list of validations: rows, order, pages, and what is done to several at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from plumbline_web.accounts.enums import Role
from plumbline_web.validations.enums import State
from plumbline_web.validations.models import Validation
from plumbline_web.validations.seed import seed
from tests.web import factories
from tests.web.pages import MOST_QUERIES, numbers_of, sign_in, text_of

pytestmark = pytest.mark.django_db


def test_an_empty_list_teaches() -> None:
    text = text_of(sign_in().get("/validations/"))
    assert "No validation has been submitted yet." in text
    assert "plumbline validate" in text


def test_a_row_has_the_verdict_its_counts_and_what_was_validated() -> None:
    owner = factories.make_user(username="petra")
    validation = factories.make_validation(owner=owner, framework="trl", profile=factories.make_profile())
    text = text_of(sign_in(Role.VIEWER).get("/validations/"))
    assert (
        f"V-{validation.pk} ▲ fail ▲ 3 fail ● 5 pass ○ 1 skipped trl 1.16.0 qwen3 nightly v1 petra 2 h ago 44.0 s"
        in text
    )


def test_whoever_is_not_signed_in_is_led_to_the_sign_in() -> None:
    response = Client().get("/validations/?verdict=fail")
    assert (response.status_code, response["Location"]) == (302, "/sign-in/?next=/validations/%3Fverdict%3Dfail")


def test_defaults_are_left_out_of_the_address() -> None:
    client = sign_in()
    response = client.get("/validations/?text=&framework=trl&sort=newest&page=1&who=")
    assert (response.status_code, response["Location"]) == (302, "/validations/?framework=trl")
    assert client.get("/validations/?sort=newest")["Location"] == "/validations/"


def test_a_filter_that_cannot_be_read_gives_no_row_and_says_why_beside_the_field() -> None:
    factories.make_validation()
    response = sign_in().get("/validations/?since=yesterday&verdict=perhaps")
    assert response.status_code == 400
    assert numbers_of(response) == []
    assert "'yesterday' is no date; write it as 2026-11-29 or 2026-11-29T17:00" in text_of(response)


def test_orders() -> None:
    now = timezone.now()
    slow = factories.make_validation(created_at=now - timedelta(hours=3), duration_s=90)
    quick = factories.make_validation(created_at=now - timedelta(hours=2), duration_s=10)
    passed = factories.make_validation(verdicts=factories.passing_verdicts(), created_at=now, duration_s=30)
    client = sign_in()

    def order(name: str) -> list[int]:
        return numbers_of(client.get(f"/validations/?sort={name}", follow=True))

    assert order("newest") == [passed.pk, quick.pk, slow.pk]
    assert order("oldest") == [slow.pk, quick.pk, passed.pk]
    assert order("slowest") == [slow.pk, passed.pk, quick.pk]
    assert order("fastest") == [quick.pk, passed.pk, slow.pk]
    assert order("worst") == [quick.pk, slow.pk, passed.pk]


def test_pages_follow_each_other_without_overlap_and_keep_the_filter() -> None:
    seed(170)
    client = sign_in()
    pages = [client.get(f"/validations/?queue=cpu&page={number}", follow=True) for number in (1, 2, 3)]
    shown = [number for page in pages for number in numbers_of(page)]
    wanted = Validation.objects.filter(queue="cpu").order_by("-created_at", "-id").values_list("pk", flat=True)
    assert shown == list(wanted)
    assert 'rel="next" href="?queue=cpu&amp;page=2"' in pages[0].content.decode()
    assert 'rel="prev" href="?queue=cpu"' in pages[1].content.decode()
    assert f"51–100 of {len(shown)}" in text_of(pages[1])


def test_a_page_beyond_the_last_is_the_last_and_one_that_is_no_number_the_first() -> None:
    seed(60)
    client = sign_in()
    assert client.get("/validations/?page=99999999999999999999").context["page"].number == 1
    assert client.get("/validations/?page=77").context["page"].number == 2
    assert client.get("/validations/?page=x").context["page"].number == 1


@pytest.mark.parametrize("count", [1, 1000])
def test_queries_stay_bounded(count: int, django_assert_max_num_queries: Callable[..., Any]) -> None:
    seed(count)
    client = sign_in()
    for address in (
        "/validations/",
        "/validations/?text=trl+qwen3&profile=nightly@1&who=ana&check=step.loss&status=fail",
    ):
        with django_assert_max_num_queries(MOST_QUERIES):
            client.get(address)


class TestCancelMany:
    def test_the_count_is_shown_first_and_nothing_is_done(self) -> None:
        owner = factories.make_user()
        mine = [factories.make_validation(owner=owner, state=State.QUEUED) for _ in range(2)]
        theirs = factories.make_validation(state=State.RUNNING)
        done = factories.make_validation(owner=owner)
        chosen = {"v": [validation.pk for validation in (*mine, theirs, done)]}
        response = sign_in(owner).post("/validations/cancel/", chosen)
        text = text_of(response)
        assert "Cancel 2 validations?" in text
        assert "1 of the chosen ones ended already" in text
        assert "1 belongs to other people" in text
        assert set(Validation.objects.values_list("state", flat=True)) == {"queued", "running", "done"}

    def test_confirmed_it_cancels_those_and_no_others(self) -> None:
        owner = factories.make_user()
        mine = factories.make_validation(owner=owner, state=State.QUEUED)
        theirs = factories.make_validation(state=State.QUEUED)
        chosen = {"v": [mine.pk, theirs.pk], "confirmed": "1"}
        response = sign_in(owner).post("/validations/cancel/", chosen, follow=True)
        assert "1 validation cancelled." in text_of(response)
        mine.refresh_from_db()
        theirs.refresh_from_db()
        assert (mine.state, theirs.state) == ("cancelled", "queued")

    def test_all_that_match_is_exactly_the_filtered_set(self) -> None:
        wanted = [factories.make_validation(state=State.QUEUED, model="tiny:llama") for _ in range(3)]
        factories.make_validation(state=State.QUEUED, model="tiny:qwen3")
        response = sign_in(Role.TRIAGER).post("/validations/cancel/?model=tiny:llama", {"all": "1"})
        assert [row.pk for row in response.context["changeable"]] == [row.pk for row in wanted]

    def test_a_filter_that_cannot_be_read_chooses_nothing(self) -> None:
        factories.make_validation(state=State.QUEUED)
        response = sign_in(Role.TRIAGER).post("/validations/cancel/?since=never", {"all": "1"})
        assert "None of the chosen ones is under way" in text_of(response)

    def test_a_viewer_cancels_none(self) -> None:
        validation = factories.make_validation(state=State.QUEUED)
        sign_in(Role.VIEWER).post("/validations/cancel/", {"v": [validation.pk], "confirmed": "1"})
        validation.refresh_from_db()
        assert validation.state == "queued"
