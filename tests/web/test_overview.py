"""The overview: the matrix, what is new, what waits for a person, what runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import escape
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from plumbline_web.accounts.enums import Role
from plumbline_web.jobs.enums import JobState
from plumbline_web.validations.enums import FindingState, State
from plumbline_web.validations.models import Finding, Refusal
from plumbline_web.validations.overview import Slot, read_matrix, read_patterns
from tests.web import factories
from tests.web.pages import MOST_QUERIES, sign_in, text_of

pytestmark = pytest.mark.django_db


def test_an_empty_overview_says_what_belongs_there_and_offers_the_first_validation() -> None:
    page = sign_in(Role.SUBMITTER).get("/")
    assert "Nothing has been validated yet." in text_of(page)
    assert (
        '/validations/new/?framework=transformers&amp;model=tiny:qwen3&amp;data=gsm8k_sample"' in page.content.decode()
    )
    assert "Validate a tiny model" not in text_of(sign_in(Role.VIEWER).get("/"))


def test_a_cell_says_the_latest_verdict_with_word_shape_version_and_link() -> None:
    validation = factories.make_validation()
    factories.make_cell(validation)
    page = sign_in().get("/")
    cell = re.search(r'<td class="is-fail is-tinted">.*?</td>', page.content.decode(), re.DOTALL)
    assert cell is not None
    assert f'href="/validations/V-{validation.pk}/"' in cell[0]
    assert "▲" in cell[0]
    assert "5.24.0" in cell[0]


def test_a_later_inconclusive_validation_leaves_the_verdict_and_marks_it_stale() -> None:
    passed = factories.make_validation(verdicts=factories.passing_verdicts())
    later = factories.make_validation(verdicts=factories.verdicts_with(step_loss="inconclusive"))
    factories.make_cell(passed, latest=later)
    slot = read_matrix("").lines[0].slots[0]
    assert isinstance(slot, Slot)
    assert (slot.word, slot.stale) == ("pass", f"V-{later.pk} came later and is inconclusive")


def test_what_a_framework_cannot_do_is_skipped_with_the_reason_until_it_is_accepted() -> None:
    factories.make_cell(factories.make_validation())
    client = sign_in()

    def ask(**settings: object) -> Any:
        body = {"framework": "trl", "model": "tiny:qwen3", "data": "gsm8k_sample", "checks": ["step.loss"]}
        return client.post(
            "/api/v1/validations", body | {"settings": settings, "keep_refusal": True}, content_type="application/json"
        )

    assert ask(tp_size=2).status_code == 400
    assert ask(tp_size=2).status_code == 400  # kept once
    refusal = Refusal.objects.get()
    assert (refusal.framework.name, refusal.model, refusal.settings) == ("trl", "tiny:qwen3", {"tp_size": 2})
    page = client.get("/").content.decode()
    assert f'title="{escape(refusal.sentence)}"' in page
    assert "tp_size" in refusal.sentence
    with CaptureQueriesContext(connection) as queries:
        client.get("/")
    assert len(queries) <= MOST_QUERIES
    assert "tp_size" not in client.get("/?profile=nightly@1").content.decode()
    assert ask(keep=1).status_code == 400  # no setting: nothing that a framework could do
    assert Refusal.objects.count() == 1
    Refusal.objects.update(settings={})
    assert ask().status_code == 201
    assert not Refusal.objects.exists()


def test_an_old_verdict_and_one_of_an_older_version_are_stale() -> None:
    trl = factories.make_framework("trl")
    old = factories.make_validation(
        verdicts=factories.passing_verdicts(), created_at=timezone.now() - timedelta(days=15)
    )
    factories.make_cell(old)
    before = factories.make_validation(
        environment=factories.make_environment(trl, version="1.15.0"), verdicts=factories.passing_verdicts()
    )
    after = factories.make_validation(
        environment=factories.make_environment(trl, version="1.16.0"),
        verdicts=factories.passing_verdicts(),
        model="tiny:llama",
    )
    for validation in (before, after):
        factories.make_cell(validation)
    matrix = read_matrix("")
    columns = [model.name for model in matrix.models]
    words = {
        (line.framework.name, columns[place]): slot.stale
        for line in matrix.lines
        for place, slot in enumerate(line.slots)
        if isinstance(slot, Slot)
    }
    assert words == {
        ("transformers", "tiny:qwen3"): "older than 14 days",
        ("trl", "tiny:qwen3"): "a newer version is installed",
        ("trl", "tiny:llama"): "",
    }


def test_a_regression_names_last_good_and_first_bad() -> None:
    good = factories.make_validation(verdicts=factories.passing_verdicts())
    bad = factories.make_validation()
    factories.make_cell(bad, last_good=good, first_bad=bad)
    assert f"regression : good V-{good.pk} , bad V-{bad.pk}" in text_of(sign_in().get("/"))


def test_the_matrix_narrows_to_a_profile_and_to_none() -> None:
    profile = factories.make_profile()
    factories.make_cell(factories.make_validation(profile=profile, model="tiny:llama"))
    factories.make_cell(factories.make_validation(model="tiny:qwen2"))
    assert [model.name for model in read_matrix("").models] == ["tiny:llama", "tiny:qwen2"]
    assert [model.name for model in read_matrix("nightly@1").models] == ["tiny:llama"]
    assert [model.name for model in read_matrix("none").models] == ["tiny:qwen2"]
    assert read_matrix("nightly@x").lines == ()
    assert "No validation of this profile has ended." in text_of(sign_in().get("/?profile=gone@1"))


def test_a_pair_that_was_never_validated_leads_to_a_filled_form() -> None:
    factories.make_cell(factories.make_validation(framework="trl", model="tiny:llama"))
    factories.make_cell(factories.make_validation(framework="transformers", model="tiny:qwen2"))
    link = "/validations/new/?framework=trl&amp;model=tiny%3Aqwen2"
    assert link in sign_in(Role.SUBMITTER).get("/").content.decode()
    assert link not in sign_in(Role.VIEWER).get("/").content.decode()


def test_patterns_count_the_open_findings_and_the_silent_ones() -> None:
    factories.make_validation()
    Finding.objects.filter(check_name="step.loss").update(state=FindingState.DECIDED)
    Finding.objects.filter(check_name="step.gradients").update(silent=False)
    rows, total, silent = read_patterns()
    assert len(rows) == 7
    assert {row.pattern: (row.count, row.silent) for row in rows if row.count} == {"objective-scale": (2, 1)}
    assert (total, silent) == (2, 1)


def test_new_is_what_ended_since_the_visit_before() -> None:
    user = factories.make_user(Role.VIEWER)
    user.visited_at = timezone.now() - timedelta(hours=1)
    user.seen_at = timezone.now()
    user.save()
    factories.make_validation(created_at=timezone.now() - timedelta(hours=3))
    fresh = factories.make_validation(created_at=timezone.now() - timedelta(minutes=5), duration_s=60)
    page = sign_in(user).get("/")
    assert [row.pk for row in page.context["news"].rows] == [fresh.pk]
    assert "1 ended, 1 failed" in text_of(page)


def test_what_runs_is_shown_with_progress_and_followed_only_while_it_runs() -> None:
    factories.make_validation()
    client = sign_in()
    assert "hx-trigger" not in client.get("/").content.decode()
    running = factories.make_validation(state=State.RUNNING)
    factories.make_job(run=running.runs.first(), state=JobState.RUNNING, expected_s=20.0)
    page = client.get("/running/").content.decode()
    assert 'hx-get="/running/" hx-trigger="every 3s"' in page
    assert f'href="/validations/V-{running.pk}/"' in page
    assert re.search(r'<progress class="bar" max="100" value="1\d"', page)


@pytest.mark.parametrize("count", [1, 30])
def test_queries_stay_bounded(count: int, django_assert_max_num_queries: Callable[..., Any]) -> None:
    client: Client = sign_in()
    for number in range(count):
        factories.make_cell(factories.make_validation(model=f"tiny:model-{number}", runs=False))
        factories.make_validation(state=State.RUNNING)
    with django_assert_max_num_queries(MOST_QUERIES):
        client.get("/")
