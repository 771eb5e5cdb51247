"""What people are told of, how, and when it is read."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import mail
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.errors import Refused
from plumbline_web.notifications.domain import count_unread, notify, set_preferences
from plumbline_web.notifications.enums import DeliveryState, Kind
from plumbline_web.notifications.models import Delivery, Notification
from plumbline_web.notifications.sending import attempt, list_due
from plumbline_web.reports.domain import draft_report
from plumbline_web.reports.telling import tell_upstream
from plumbline_web.timeline.models import Event, Subject
from plumbline_web.validations.models import Finding
from plumbline_web.validations.telling import tell_findings
from tests.web.factories import make_problem, make_user, make_validation
from tests.web.news import tell
from tests.web.pages import sign_in, text_of

pytestmark = pytest.mark.django_db

# In the app


def test_a_person_sees_what_is_new_and_it_is_read_once_it_was_opened() -> None:
    person, other = make_user(), make_user()
    validation = tell(person, other)
    client = sign_in(person)
    page = client.get("/notifications/")
    assert f"V-{validation.pk} step.loss fails new silent failure just now unread" in text_of(page)
    assert 'aria-label="Notifications, 1 unread"' in page.content.decode()
    notification = Notification.objects.get(person=person)
    assert client.get(f"/notifications/{notification.pk}/").headers["Location"] == "/validations/"
    assert count_unread(person, most=9) == 0
    assert count_unread(other, most=9) == 1
    assert "none unread" in text_of(client.get("/notifications/?unread=yes"))
    assert 'aria-label="Notifications"' in client.get("/notifications/").content.decode()


def test_nobody_opens_or_reads_what_is_another_persons() -> None:
    person = make_user()
    tell(person)
    stranger = sign_in()
    assert stranger.get(f"/notifications/{Notification.objects.get().pk}/").status_code == 404
    stranger.post("/notifications/read/", {"until": "999999"})
    assert count_unread(person, most=9) == 1


def test_all_that_was_shown_is_read_and_nothing_that_came_since() -> None:
    person = make_user()
    tell(person)
    shown = Notification.objects.latest("pk").pk
    tell(person)
    sign_in(person).post("/notifications/read/", {"until": str(shown)})
    assert [row.read_at is None for row in Notification.objects.order_by("pk")] == [False, True]


def test_the_same_news_is_told_once_and_who_did_it_need_not_be_told() -> None:
    person, other = make_user(), make_user()
    tell(person, key="V-1 7")
    tell(person, other, key="V-1 7")
    tell(person, key="V-1 8")
    assert [person.notifications.count(), other.notifications.count()] == [2, 1]
    tell(person, other, kind=Kind.ASSIGNMENT, by=person)
    assert [person.notifications.count(), other.notifications.count()] == [2, 2]
    with pytest.raises(IntegrityError, match="notification_told_once"), transaction.atomic():
        Notification.objects.create(person=person, kind=Kind.SILENT, key="V-1 8", text="twice", address="/")


def test_a_long_sentence_is_cut_and_an_inactive_person_told_nothing() -> None:
    person, gone = make_user(), make_user()
    gone.is_active = False
    notify(Kind.UPSTREAM, about=make_validation(), text="x" * 400, address="/", to=[person, gone])
    assert Notification.objects.get().text == "x" * 299 + "…"


def test_the_bell_costs_one_query_and_says_more_than_99() -> None:
    person = make_user()
    Notification.objects.bulk_create(
        Notification(person=person, kind=Kind.SILENT, about="V-1", text="t", address="/") for _ in range(150)
    )
    with CaptureQueriesContext(connection) as queries:
        page = sign_in(person).get("/system/")
    asked = [query["sql"] for query in queries if "notifications_notification" in query["sql"]]
    assert len(asked) == 1
    assert 'aria-label="Notifications, 99+ unread"' in page.content.decode()


# Preferences and e-mail


def test_each_kind_comes_as_the_person_wishes(settings: Any) -> None:
    settings.EMAIL_HOST = "mail.example.org"
    person = make_user()
    client = sign_in(person)
    data = {"email": "anna@example.org", "silent_in_app": "on", "silent_by_email": "on", "regression_by_email": "on"}
    assert client.post("/notifications/preferences/", data).status_code == 302
    validation = tell(person)
    tell(person, kind=Kind.REGRESSION)
    tell(person, kind=Kind.UPSTREAM)
    assert list(person.notifications.filter(in_app=True).values_list("kind", flat=True)) == ["silent"]
    assert count_unread(person, most=9) == 1
    for pk in list_due(timezone.now()):
        attempt(pk)
    first, second = mail.outbox
    assert (first.to, first.subject) == (["anna@example.org"], f"[Plumbline] new silent failure: V-{validation.pk}")
    assert "step.loss fails\n\nhttp://localhost:8000/validations/\n" in str(first.body)
    assert "regression" in second.subject
    assert set(Delivery.objects.values_list("state", flat=True)) == {"delivered"}


def test_email_without_an_address_is_refused_beside_the_field() -> None:
    person = make_user()
    page = sign_in(person).post("/notifications/preferences/", {"silent_by_email": "on"})
    assert "E-mail is ticked, and no address given; give one, or untick it." in text_of(page)
    with pytest.raises(Refused):
        set_preferences(person, email="", wishes={Kind.SILENT: (True, True)})
    assert not person.preferences.exists()


def test_where_no_email_is_sent_the_page_says_so_and_a_message_is_tried_again() -> None:
    person = make_user()
    set_preferences(person, email="anna@example.org", wishes={Kind.SILENT: (True, True)})
    assert "this installation sends no e-mail" in text_of(sign_in(person).get("/notifications/preferences/"))
    tell(person)
    attempt(Delivery.objects.get().pk)
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.attempts) == (DeliveryState.WAITING, 1)
    assert delivery.answer == "this installation sends no e-mail; its administrator sets PLUMBLINE_MAIL"
    assert mail.outbox == []


# What a validation's end tells


def test_the_end_of_a_validation_tells_its_owner_and_the_triagers_once() -> None:
    owner, triager, viewer = make_user(), make_user(Role.TRIAGER), make_user(Role.VIEWER)
    validation = make_validation(owner=owner)
    rows = list(Finding.objects.filter(validation=validation).order_by("pk"))
    Finding.objects.filter(pk=rows[0].pk).update(regressed=True)
    Finding.objects.filter(pk__in=[row.pk for row in rows]).update(silent=True)
    tell_findings(validation)
    tell_findings(validation)
    told = Notification.objects.filter(person=owner).order_by("pk")
    assert [(row.kind, row.address) for row in told] == [
        ("regression", f"/validations/V-{validation.pk}/"),
        ("silent", f"/validations/V-{validation.pk}/"),
    ]
    assert told[0].text == f"{rows[0].check_name}: had passed before and fails (transformers × qwen3)"
    assert told[1].text == (
        f"{rows[1].check_name}, {rows[2].check_name}: fail, and nothing else shows them (transformers × qwen3)"
    )
    assert [triager.notifications.count(), viewer.notifications.count()] == [2, 0]


def test_an_injected_fault_and_a_repeated_failure_are_no_news() -> None:
    injected = make_validation(inject="hf-ga-mean-of-means")
    tell_findings(injected)
    repeated = make_validation()
    Finding.objects.filter(validation=repeated).update(state="repeated")
    tell_findings(repeated)
    assert not Notification.objects.exists()


def test_a_change_upstream_tells_the_reports_owner_and_the_triagers_but_not_who_noted_it() -> None:
    owner, triager = make_user(Role.TRIAGER), make_user(Role.TRIAGER)
    problem = make_problem()
    report = draft_report(by=owner, finding=None, problem=problem)
    tell_upstream(report, "upstream is open: https://github.com/o/n/issues/7", by=None)
    tell_upstream(report, "upstream is closed: https://github.com/o/n/issues/7", by=owner)
    row = owner.notifications.get()
    assert (row.kind, row.about, row.address) == ("upstream", problem.number, f"/reports/R-{report.pk}/")
    assert row.text == f"{problem.number} upstream is open: https://github.com/o/n/issues/7"
    assert [row.text.split()[3] for row in triager.notifications.order_by("pk")] == ["open:", "closed:"]
    events = Event.objects.filter(subject=Subject.PROBLEM, subject_id=problem.pk).values_list("text", flat=True)
    assert f"{report.number}: upstream is closed: https://github.com/o/n/issues/7" in events
