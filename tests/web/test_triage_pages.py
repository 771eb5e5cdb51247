"""Triage as pages and API: the queue, one finding, many at once, meetings, waivers, new problems."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from plumbline_web.accounts.enums import Role, Scope
from plumbline_web.accounts.models import User
from plumbline_web.accounts.tokens import create_token
from plumbline_web.problems.models import Problem
from plumbline_web.triage import domain, suggesting
from plumbline_web.triage.models import Action, Comment, Meeting, Waiver
from plumbline_web.triage.waivers import waive
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.enums import Decision
from plumbline_web.validations.models import Finding, Validation
from tests.web.factories import make_environment, make_problem, make_user, make_validation
from tests.web.pages import MOST_QUERIES, sign_in, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def ana() -> User:
    return make_user(Role.TRIAGER, username="ana")


@pytest.fixture
def findings() -> list[Finding]:
    make_validation(runs=False)
    return list(Finding.objects.order_by("pk"))


def listed(client: Client, query: str = "") -> list[str]:
    rows = csv.DictReader(io.StringIO(client.get(f"/triage.csv{query}").getvalue().decode()))
    return [row["id"] for row in rows]


def form_of(finding: Finding, **fields: Any) -> dict[str, Any]:
    """What the form of an untouched finding sends, with `fields`."""
    finding.refresh_from_db()
    empty = dict.fromkeys(("problem", "reason", "comment", "assignee", "due", "snooze", "snooze_until"), "")
    return empty | {"version": finding.version} | fields


def test_the_queue_shows_what_needs_a_person_and_nothing_that_was_put_off(ana: User, findings: list[Finding]) -> None:
    client = sign_in(ana)
    first, second, third = findings
    assert listed(client) == [third.number, second.number, first.number]
    domain.decide([first.pk], decision=Decision.INCONCLUSIVE, by=ana)
    domain.snooze([second.pk], until=timezone.localdate() + timedelta(days=1), by=ana)
    waive(third, problem=make_problem(), until=timezone.localdate() + timedelta(days=3), reason="mended soon", by=ana)
    assert listed(client) == []
    assert "nothing waits for a person" in text_of(client.get("/triage/"))
    for standing, finding in (("decided", first), ("snoozed", second), ("waived", third)):
        assert listed(client, f"?standing={standing}") == [finding.number]
    assert len(listed(client, "?standing=all")) == 3
    Finding.objects.filter(pk=second.pk).update(snoozed_until=timezone.localdate())
    Waiver.objects.update(until=timezone.localdate())
    assert listed(client) == [third.number, second.number]


def test_what_was_snoozed_for_a_change_comes_back_with_another_environment(ana: User, findings: list[Finding]) -> None:
    client = sign_in(ana)
    domain.snooze([finding.pk for finding in findings], until=None, by=ana)
    make_validation(runs=False)
    assert len(listed(client)) == 3
    newer = make_environment(findings[0].validation.framework, version="5.25.0")
    make_validation(runs=False, environment=newer)
    assert len(listed(client)) == 12 - 3


def test_a_waiver_hides_one_failure_on_one_framework_and_is_ended(ana: User, findings: list[Finding]) -> None:
    client = sign_in(ana)
    finding, problem = findings[0], make_problem()
    make_validation(runs=False, framework="trl")
    day = timezone.localdate() + timedelta(days=7)
    address = f"/triage/{finding.number}/"
    refused = client.post(f"{address}waive/", {"problem": "", "until": day.isoformat(), "reason": "known"})
    assert refused.status_code == 400
    assert "A waiver cites its problem" in text_of(refused)
    wish = {"problem": problem.number, "until": day.isoformat(), "reason": "known"}
    assert client.post(f"{address}waive/", wish).status_code == 302
    assert finding.number not in listed(client)
    assert len(listed(client)) == 5
    again = client.post(f"{address}waive/", wish)
    assert again.status_code == 409
    assert "ana waived it until" in text_of(again)
    with pytest.raises(Refused, match="within the next year"):
        waive(finding, problem=problem, until=day + timedelta(days=400), reason="x", by=ana)
    client.post(f"/triage/waivers/{Waiver.objects.get().pk}/end/")
    assert finding.number in listed(client)


def test_the_page_of_a_finding_says_why_and_what_it_may_be(ana: User, findings: list[Finding]) -> None:
    make_problem(
        "transformers-loss-wrong-count",
        title="The loss is normalised by the wrong count of tokens",
        symptom="Every gradient is scaled: the loss is divided by a count that is not that of the trained tokens.",
    )
    with CaptureQueriesContext(
        connection,
    ) as queries:
        response = sign_in(ana).get(f"/triage/{findings[2].number}/")
    page = text_of(response)
    assert findings[2].result.sentence in page
    assert "The loss is normalised by the wrong count of tokens" in page
    assert "it sits in transformers, which the run uses" in page
    assert "never: it has not been seen to pass" in page
    assert len(queries) < 45
    viewer = text_of(sign_in(Role.VIEWER).get(f"/triage/{findings[2].number}/"))
    assert "Save" not in viewer


def test_saving_does_all_of_the_form_or_nothing(ana: User, findings: list[Finding]) -> None:
    client, finding, problem = sign_in(ana), findings[0], make_problem()
    address = f"/triage/{finding.number}/save/"
    wrong = client.post(address, form_of(finding, decision="known", comment="**seen**"))
    assert wrong.status_code == 409
    assert "names no problem" in text_of(wrong)
    assert "**seen**" in wrong.content.decode()
    assert not Comment.objects.exists()
    assert not Action.objects.exists()
    unknown = client.post(address, form_of(finding, decision="known", problem="P-999999"))
    assert (unknown.status_code, "there is no problem" in text_of(unknown)) == (400, True)
    wish = form_of(
        finding, decision="known", problem=problem.slug, comment="**seen** <script>", assignee="ana", due="2027-01-01"
    )
    assert client.post(address, wish).status_code == 302
    finding.refresh_from_db()
    assert (finding.decision, finding.assignee, str(finding.due)) == ("known", ana, "2027-01-01")
    page = client.get(f"/triage/{finding.number}/").content.decode()
    assert "<strong>seen</strong> &lt;script&gt;" in page


def test_a_stale_form_is_told_what_happened_and_keeps_what_was_typed(ana: User, findings: list[Finding]) -> None:
    finding = findings[0]
    stale = form_of(finding, decision="inconclusive", comment="mine")
    bo = make_user(Role.TRIAGER, username="bo")
    domain.decide([finding.pk], decision=Decision.NOT_A_PROBLEM, reason="one row", by=bo)
    response = sign_in(ana).post(f"/triage/{finding.number}/save/", stale)
    assert response.status_code == 409
    assert "bo decided: not a problem" in text_of(response)
    assert "mine" in response.content.decode()
    assert f'name="version" value="{finding.version + 1}"' in response.content.decode()
    assert not Comment.objects.exists()


def test_deciding_the_alike_too_decides_only_those_that_are_undecided(ana: User, findings: list[Finding]) -> None:
    make_validation(runs=False, framework="trl")
    finding = findings[0]
    alike = Finding.objects.filter(group=finding.group).exclude(pk=finding.pk).get()
    sign_in(ana).post(f"/triage/{finding.number}/save/", form_of(finding, decision="inconclusive", alike="on"))
    alike.refresh_from_db()
    assert alike.decision == "inconclusive"
    assert Action.objects.get().changes.count() == 2


def test_all_that_match_are_counted_first_then_decided_and_undone(ana: User, findings: list[Finding]) -> None:
    client = sign_in(ana)
    make_validation(runs=False, framework="trl")
    asked = client.post("/triage/bulk/?framework=transformers", {"all": "1"})
    assert "3 findings" in text_of(asked)
    newest = max(finding.pk for finding in findings)
    assert f'name="newest" value="{newest}"' in asked.content.decode()
    wish = {"all": "1", "confirmed": "1", "newest": newest, "count": "2", "decision": "inconclusive"}
    changed = client.post("/triage/bulk/?framework=transformers", wish)
    assert (changed.status_code, "3 match now" in text_of(changed)) == (409, True)
    make_validation(runs=False)  # came after the count was shown, and is not meant
    assert client.post("/triage/bulk/?framework=transformers", wish | {"count": "3"}).status_code == 302
    decided = set(Finding.objects.filter(decision="inconclusive").values_list("pk", flat=True))
    assert decided == {finding.pk for finding in findings}
    assert client.post("/triage/undo/").status_code == 302
    assert not Finding.objects.exclude(decision="").exists()


def test_nothing_chosen_in_bulk_says_so(ana: User, findings: list[Finding]) -> None:
    client = sign_in(ana)
    empty = client.post("/triage/bulk/", {"f": [findings[0].pk], "confirmed": "1", "count": "1"})
    assert "Neither a decision nor a person is chosen" in text_of(empty)
    assert "Nothing is selected" in text_of(client.post("/triage/bulk/", {}))
    given = {"f": [findings[0].pk], "confirmed": "1", "count": "1", "assignee": "ana"}
    client.post("/triage/bulk/", given)
    assert listed(client, "?assignee=ana") == [findings[0].number]
    assert listed(client, "?assignee=nobody") == [findings[2].number, findings[1].number]


def test_groups_are_split_and_joined_from_the_list(ana: User, findings: list[Finding]) -> None:
    client = sign_in(ana)
    make_validation(runs=False, framework="trl")
    finding = findings[0]
    client.post("/triage/groups/", {"f": [finding.pk], "split": "1"})
    finding.refresh_from_db()
    assert "#" in finding.group
    refused = client.post("/triage/groups/", {"f": [finding.pk], "split": "1"}, follow=True)
    assert "these are all findings of their group" in text_of(refused)
    client.post("/triage/groups/", {"f": [finding.pk, findings[1].pk], "join": "1"})
    assert Finding.objects.filter(group=finding.group).count() == 3


def test_the_pinboard_is_a_filter(ana: User, findings: list[Finding]) -> None:
    client = sign_in(ana)
    client.post(f"/triage/{findings[1].number}/pin/", {"next": "https://elsewhere.example/"})
    assert listed(client, "?pinned=yes") == [findings[1].number]
    assert listed(sign_in(Role.TRIAGER), "?pinned=yes") == []
    client.post(f"/triage/{findings[1].number}/pin/", {"off": "1"})
    assert listed(client, "?pinned=yes") == []


def test_a_suggestion_that_was_turned_down_is_not_made_again(ana: User, findings: list[Finding]) -> None:
    client, problem = sign_in(ana), make_problem()
    address = f"/triage/{findings[0].number}/"
    assert problem.title in text_of(client.get(address))
    client.post(f"{address}not/{problem.number}/", {"next": address})
    page = text_of(client.get(address))
    assert f"It is not {problem.number} {problem.title} says ana" in page
    assert "it sits in transformers, which the run uses" not in page


def test_a_new_problem_is_written_down_from_a_finding_and_is_what_those_alike_are(
    ana: User, findings: list[Finding]
) -> None:
    make_validation(runs=False, framework="trl")
    client, finding = sign_in(ana), findings[0]
    address = f"/triage/{finding.number}/problem/"
    drawn = client.get(address).content.decode()
    assert "objective-scale" in drawn
    fields = {
        "title": "Tokens are counted once too often",
        "framework": "transformers",
        "component": "loss",
        "pattern": "objective-scale",
        "stage": "loss",
        "silent": "on",
        "symptom": "the loss is too small",
        "root_cause": "an off by one",
        "status": "open",
        "provenance": "first-raised",
        "first_seen": "2026-11-30",
        "affected_spec": "Transformers >=5.24,<5.25 | seen here",
        "cpu_reproducible": "yes",
        "confidence": "high",
        "alike": "on",
        "version": finding.version,
    }
    for wrong, word in (
        ({"affected_spec": "transformers latest"}, "is no range"),
        ({"affected_spec": "transformers >=x | y"}, "no specifier of PEP 440"),
        ({"first_seen": "yesterday"}, "is no date"),
        ({"related_urls": "ftp://x"}, "begins with https://"),
    ):
        response = client.post(address, fields | wrong)
        assert (response.status_code, word in text_of(response)) == (400, True)
    assert client.post(address, fields).status_code == 302
    problem = Problem.objects.get()
    assert problem.slug == "transformers-tokens-are-counted-once-too-often"
    assert (problem.provenance, problem.url, problem.silent) == ("first-raised", "", True)
    assert problem.affected_spec == [{"package": "transformers", "specifier": "<5.25,>=5.24", "source": "seen here"}]
    assert Finding.objects.filter(decision="new").count() == 2
    page = text_of(client.get(f"/problems/{problem.number}/"))
    assert "2 findings" in page
    assert "not reported yet" in page
    client.post(address, fields | {"version": finding.version})
    assert Problem.objects.count() == 1, "a stale form writes no second problem"


def test_a_problem_is_changed_by_one_person_at_a_time_and_merged(ana: User) -> None:
    client, problem, other = sign_in(ana), make_problem(), make_problem("another", title="Another")
    drawn = client.get(f"/problems/{problem.number}/edit/")
    form = drawn.context["form"]
    fields = {name: form[name].value() or "" for name in form.fields} | {"silent": "on", "version": 1}
    fields |= {"affected_spec": "", "models": "", "related_urls": "", "caught_by": "optimizer, step"}
    assert client.post(f"/problems/{problem.number}/edit/", fields | {"fix": "count anew"}).status_code == 302
    problem.refresh_from_db()
    assert (problem.fix, problem.caught_by, problem.version) == ("count anew", ["optimizer", "step"], 2)
    stale = client.post(f"/problems/{problem.number}/edit/", fields | {"fix": "mine"})
    assert "was changed since the page was drawn" in text_of(stale)
    assert "mine" in stale.content.decode()
    for into, word in (
        ("", "no problem is named"),
        (problem.number, "with itself"),
        ("P-99999", "there is no problem"),
    ):
        refused = client.post(f"/problems/{problem.number}/merge/", {"into": into}, follow=True)
        assert word in text_of(refused)
    client.post(f"/problems/{problem.number}/merge/", {"into": other.number})
    assert f"It turned out to be {other.number}" in text_of(client.get(f"/problems/{problem.number}/"))
    assert f"{problem.title} silent is {other.number}" in text_of(client.get("/problems/"))
    client.post("/triage/undo/")
    problem.refresh_from_db()
    assert problem.merged_into is None


def test_a_meeting_goes_through_its_agenda_and_leaves_minutes(ana: User, findings: list[Finding]) -> None:
    client = sign_in(ana)
    make_validation(runs=False, framework="trl")  # alike: talked about once
    client.post("/triage/meetings/", {"title": "Monday *round*"})
    meeting = Meeting.objects.get()
    items = list(meeting.items.select_related("finding"))
    assert [(item.position, item.reason) for item in items] == [(1, "silent"), (2, "silent"), (3, "silent")]
    address = f"/triage/meetings/{meeting.pk}/"
    assert f"item 1 of 3 · new silent failure {items[0].finding.number}" in text_of(client.get(address))
    wish = form_of(items[0].finding, decision="not-a-problem", reason="one row", comment="line one\n# line two")
    assert client.post(f"{address}1/save/", wish)["Location"] == f"{address}?item=2"
    assert "item 2 of 3" in text_of(client.get(address))
    client.post(f"{address}2/save/", form_of(items[1].finding, decision="inconclusive"))
    client.post("/triage/undo/")
    client.post(f"{address}end/")
    late = client.post(f"{address}3/save/", form_of(items[2].finding, decision="inconclusive"))
    assert (late.status_code, "has ended" in text_of(late)) == (409, True)
    minutes = client.get(f"{address}minutes.md").content.decode()
    assert minutes.startswith("# Monday \\*round\\*\n")
    assert "3 items, 2 decided. Present: ana." in minutes
    assert "- **decided: not a problem, ana**" in minutes
    assert "  > # line two" in minutes
    assert "- **decided: inconclusive, ana (undone)**" in minutes
    assert "- not decided" in minutes


def test_nothing_to_meet_about_begins_no_meeting(ana: User) -> None:
    response = sign_in(ana).post("/triage/meetings/")
    assert "nothing to meet about" in text_of(response)
    assert not Meeting.objects.exists()


def test_a_filter_that_is_wrong_shows_no_row(ana: User, findings: list[Finding]) -> None:
    client = sign_in(ana)
    for query, word in (
        ("?problem=nothing", "is no problem"),
        ("?standing=lost", "not one of the available choices"),
        ("?colour=red", "there is no such filter"),
        (f"?text={'x' * 10_000}", "at most"),
    ):
        response = client.get(f"/triage/{query}")
        assert (response.status_code, word in text_of(response)) == (400, True)
        assert findings[0].number not in text_of(response)


def test_the_queue_asks_little_of_the_database(ana: User, findings: list[Finding]) -> None:
    client = sign_in(ana)
    client.get("/triage/")
    with CaptureQueriesContext(connection) as few:
        client.get("/triage/")
    for _ in range(3):
        make_validation(runs=False)
    with CaptureQueriesContext(connection) as many:
        client.get("/triage/")
    assert len(few) == len(many) <= MOST_QUERIES + 2


def test_page_api_and_exports_give_the_same_findings(ana: User, findings: list[Finding]) -> None:
    make_validation(runs=False, framework="trl", model="tiny:llama")
    client = sign_in(ana)
    api = Client(headers={"Authorization": f"Bearer {create_token(ana, name='t', scopes=[Scope.READ], days=1)[1]}"})
    for query in (
        "",
        "?framework=trl",
        "?check=step.loss",
        "?standing=all&sort=oldest",
        "?text=gradient&model=tiny:llama",
    ):
        rows: list[str] = []
        cursor = ""
        while True:
            link = "&" if query else "?"
            page = api.get(f"/api/v1/findings{query}{link}limit=2{f'&cursor={cursor}' if cursor else ''}").json()
            rows += [row["id"] for row in page["rows"]]
            cursor = page["next_cursor"]
            if not cursor:
                break
        assert rows == listed(client, query)
        drawn = [finding.number for finding in client.get(f"/triage/{query}").context["page"].rows]
        assert rows == drawn


def test_a_program_decides_and_undoes_with_a_token_of_a_triager(ana: User, findings: list[Finding]) -> None:
    finding, problem = findings[0], make_problem()
    token = create_token(ana, name="t", scopes=[Scope.READ, Scope.TRIAGE], days=1)[1]
    api = Client(headers={"Authorization": f"Bearer {token}"})
    address = f"/api/v1/findings/{finding.number}"
    seen = api.get(address).json()
    assert (seen["row_version"], seen["problems"]) == (1, [])
    assert seen["suggestions"][0]["problem"] == problem.number
    wish = {"decision": "known", "problem": problem.number, "row_version": 1}
    done = api.post(f"{address}/decision", wish, content_type="application/json").json()
    assert done["changed"] == [finding.number]
    assert api.get(address).json()["problems"] == [problem.number]
    stale = api.post(f"{address}/decision", wish | {"decision": "new"}, content_type="application/json")
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "stale")
    for wrong, field in (({"decision": "maybe"}, "decision"), ({"row_version": "1"}, "row_version"), ({}, "decision")):
        refused = api.post(f"{address}/decision", wrong, content_type="application/json")
        assert (refused.status_code, list(refused.json()["error"]["fields"])) == (400, [field])
    undone = api.post(f"/api/v1/actions/{done['action']}/undo").json()
    assert undone["changed"] == [finding.number]
    reader = create_token(ana, name="r", scopes=[Scope.READ], days=1)[1]
    refused = Client(headers={"Authorization": f"Bearer {reader}"}).post(f"/api/v1/actions/{done['action']}/undo")
    assert refused.status_code == 403


def test_evidence_that_has_come_brings_the_finding_back(ana: User, findings: list[Finding]) -> None:
    client, again = sign_in(ana), make_validation(runs=False, state="running")
    Finding.objects.filter(pk=findings[0].pk).update(state="waiting", evidence=again)
    assert findings[0].number not in listed(client)
    assert listed(client, "?standing=waiting") == [findings[0].number]
    Validation.objects.filter(pk=again.pk).update(state="done")
    assert findings[0].number in listed(client)


def test_of_a_large_catalogue_those_that_share_words_are_suggested(
    ana: User, findings: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    likely = make_problem("likely", title="Every gradient is scaled: the loss is normalised by the wrong count")
    make_problem("other", title="Rotary angles are rounded", symptom="Positions drift.", root_cause="Half precision.")
    before = text_of(sign_in(ana).get(f"/triage/{findings[2].number}/"))
    assert "Rotary angles are rounded" in before
    monkeypatch.setattr(suggesting, "MOST_MATCHED", 1)
    page = text_of(sign_in(ana).get(f"/triage/{findings[2].number}/"))
    assert likely.title in page
    assert "Rotary angles are rounded" not in page
    domain.decide([findings[2].pk], decision=Decision.KNOWN, problem=Problem.objects.get(slug="other"), by=ana)
    make_validation(runs=False, framework="trl")
    alike = Finding.objects.filter(group=findings[2].group).order_by("-pk")[0]
    assert "Rotary angles are rounded" in text_of(sign_in(ana).get(f"/triage/{alike.number}/"))
