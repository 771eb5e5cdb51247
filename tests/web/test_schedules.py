"""Schedules: every night and on a new release, once each, and a sentence where nothing could be submitted."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from typing import Any

import pytest
from django.test import Client

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.errors import Refused
from plumbline_web.accounts.models import User
from plumbline_web.catalog.domain import create_profile, create_schedule, disable, enable
from plumbline_web.catalog.enums import Trigger
from plumbline_web.catalog.models import Environment, Profile, Schedule
from plumbline_web.catalog.releases import IndexUnreachable, find_newest_release, is_newer
from plumbline_web.catalog.repeating import is_due, run_nightly, run_now, run_releases
from plumbline_web.catalog.tasks import run_schedules
from plumbline_web.timeline.models import Event, Subject
from plumbline_web.validations.models import Validation
from plumbline_web.validations.submission import InvalidSubmission

pytestmark = pytest.mark.django_db

AT_TWO = datetime(2026, 11, 29, 2, 3, tzinfo=UTC)
INSTALLED = version("transformers")


@pytest.fixture
def chief() -> User:
    return User.objects.create(username="chief", role=Role.ADMINISTRATOR)


@pytest.fixture
def profile(chief: User) -> Profile:
    settings = {"steps": 1, "batch": 1}
    return create_profile("quick", data="gsm8k_sample", checks=["step.loss"], settings=settings, by=chief)[0]


def schedule(profile: Profile, chief: User, trigger: Trigger = Trigger.NIGHTLY, **changes: Any) -> Schedule:
    made = create_schedule(profile, framework="transformers", model="tiny:qwen3", trigger=trigger, hour=2, by=chief)
    Schedule.objects.filter(pk=made.pk).update(**changes)
    made.refresh_from_db()
    return made


class Index(BaseHTTPRequestHandler):
    """A package index; `answer` is its status and document."""

    status = 200
    body = b"{}"
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""


@pytest.fixture
def index(settings: Any) -> Iterator[Any]:
    handler: Any = type("Handler", (Index,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings.PACKAGE_INDEX = f"http://127.0.0.1:{server.server_port}/pypi"
        yield handler
        server.shutdown()


def releases(*versions: str, **yanked: bool) -> bytes:
    return json.dumps({"releases": {each: [{"yanked": yanked.get("yanked", False)}] for each in versions}}).encode()


def events(of: Schedule) -> list[str]:
    found = Event.objects.filter(subject=Subject.SCHEDULE, subject_id=of.pk).order_by("pk")
    return list(found.values_list("text", flat=True))


def test_a_profile_with_other_content_is_its_next_version(chief: User) -> None:
    first, made = create_profile("nightly", data="gsm8k_sample", checks=None, settings={"steps": 1}, by=chief)
    same, again = create_profile("nightly", data="gsm8k_sample", checks=None, settings={"steps": 1}, by=chief)
    other, _ = create_profile("nightly", data="gsm8k_sample", checks=None, settings={"steps": 2}, by=chief)
    assert [str(first), str(same), str(other)] == ["nightly v1", "nightly v1", "nightly v2"]
    assert [made, again] == [True, False]


def test_a_schedule_that_could_not_run_is_refused_when_it_is_made(profile: Profile, chief: User) -> None:
    for model in ("tiny:nothing", "/etc"):
        with pytest.raises(InvalidSubmission) as refused:
            create_schedule(profile, framework="trl", model=model, trigger=Trigger.NIGHTLY, hour=2, by=chief)
        assert list(refused.value.errors) == ["model"]
    with pytest.raises(Refused, match="24 is no hour"):
        create_schedule(profile, framework="trl", model="tiny:qwen3", trigger=Trigger.NIGHTLY, hour=24, by=chief)
    schedule(profile, chief)
    with pytest.raises(Refused, match="quick v1 runs every night on transformers and tiny:qwen3 already"):
        schedule(profile, chief)
    assert Schedule.objects.count() == 1


@pytest.mark.parametrize(
    ("last", "now", "due"),
    [
        (None, AT_TWO, True),
        (None, AT_TWO.replace(hour=1), False),
        (None, AT_TWO.replace(hour=15), False),  # made in the afternoon: tonight
        (AT_TWO - timedelta(days=1), AT_TWO, True),
        (AT_TWO, AT_TWO + timedelta(minutes=50), False),
        (AT_TWO - timedelta(days=1), AT_TWO.replace(hour=9), True),  # the server was down at two
        (AT_TWO - timedelta(days=1), AT_TWO.replace(hour=15), False),  # too late to make up for it
        (AT_TWO, AT_TWO.replace(hour=1) + timedelta(days=1), False),
    ],
)
def test_the_hour_decides_what_is_due(last: datetime | None, now: datetime, due: bool) -> None:
    assert is_due(Schedule(hour=2, last_run_at=last), now) is due


def test_the_night_submits_once_with_a_fresh_run(profile: Profile, chief: User) -> None:
    made = schedule(profile, chief)
    (validation,) = run_nightly(AT_TWO)
    assert run_nightly(AT_TWO) == []
    Schedule.objects.update(last_run_at=AT_TWO - timedelta(days=1))  # another beat that had read the row before
    assert run_nightly(AT_TWO + timedelta(minutes=20)) == []
    assert (validation.schedule, validation.profile, validation.owner) == (made, profile, chief)
    assert (validation.fresh, validation.checks, validation.settings) == (True, ["step.loss"], {"steps": 1, "batch": 1})
    assert len(run_nightly(AT_TWO + timedelta(days=1))) == 1
    assert Validation.objects.count() == 2


def test_a_disabled_schedule_rests(profile: Profile, chief: User) -> None:
    made = schedule(profile, chief)
    disable(made, by=chief)
    assert run_nightly(AT_TWO) == []
    enable(made, by=chief)
    enable(made, by=chief)
    assert len(run_nightly(AT_TWO)) == 1
    assert events(made) == ["made", "disabled", "enabled"]


def test_one_that_cannot_submit_says_why_and_stops_no_other(profile: Profile, chief: User) -> None:
    leaver = User.objects.create(username="leaver", role=Role.ADMINISTRATOR)
    gone = schedule(profile, leaver)
    User.objects.filter(pk=leaver.pk).update(role=Role.VIEWER)
    moved = create_schedule(profile, framework="trl", model="tiny:qwen3", trigger=Trigger.NIGHTLY, hour=2, by=chief)
    Schedule.objects.filter(pk=moved.pk).update(model="/no/such/model")
    create_schedule(profile, framework="trl", model="tiny:llama", trigger=Trigger.NIGHTLY, hour=2, by=chief)
    assert [validation.model.name for validation in run_nightly(AT_TWO)] == ["tiny:llama"]
    gone.refresh_from_db()
    moved.refresh_from_db()
    assert gone.last_error.startswith("Nothing was submitted: a viewer cannot submit validations")
    assert moved.last_error.startswith("Nothing was submitted: model: /no/such/model is not under an allowed directory")
    assert events(gone) == ["made", gone.last_error]


def test_the_newest_release_is_a_final_one_that_was_not_withdrawn(index: Any) -> None:
    index.body = json.dumps(
        {
            "releases": {
                "5.9.0": [{"yanked": False}],
                "5.10.0": [{"yanked": False}],
                "6.0.0rc1": [{"yanked": False}],
                "7.0.0": [{"yanked": True}],
                "8.0.0": [],
                "not a version": [{"yanked": False}],
            }
        }
    ).encode()
    assert find_newest_release("transformers") == "5.10.0"
    assert index.asked == ["/pypi/transformers/json"]
    index.body = releases()
    assert find_newest_release("transformers") is None
    assert [is_newer("5.10.0", than=other) for other in ("5.9.0", "5.10.0", "5.10.0.post1", "unknown")] == [
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (404, b"{}", "answered 404"),
        (503, b"", "answered 503"),
        (200, b"<html>", "no JSON"),
        (200, b"[]", "no JSON object"),
        (200, b"{}", "lists no releases"),
        (200, b"[" * 100_000, "no JSON"),
    ],
)
def test_an_index_that_gives_no_answer_is_said(index: Any, status: int, body: bytes, sentence: str) -> None:
    index.status, index.body = status, body
    with pytest.raises(IndexUnreachable, match=sentence):
        find_newest_release("transformers")


def test_a_name_that_is_no_package_is_never_asked_for(index: Any) -> None:
    with pytest.raises(IndexUnreachable, match="no package's name"):
        find_newest_release("../simple")
    assert index.asked == []


def test_an_environment_is_validated_once_and_again_when_it_changes(profile: Profile, chief: User, index: Any) -> None:
    made = schedule(profile, chief, Trigger.RELEASE)
    index.body = releases(INSTALLED)
    (first,) = run_releases(AT_TWO)
    assert run_releases(AT_TWO + timedelta(hours=1)) == []
    made.refresh_from_db()
    assert (made.last_release, made.last_error) == (INSTALLED, "")
    # What was validated is another environment now: the installed one is new.
    older = Environment.objects.create(
        framework=made.framework, version="1.0", digest="0" * 64, python="3", packages={}
    )
    Validation.objects.filter(pk=first.pk).update(environment=older, idempotency_key="of the older environment")
    (second,) = run_releases(AT_TWO + timedelta(hours=2))
    assert second.environment.version == INSTALLED
    assert index.asked == ["/pypi/transformers/json"] * 3


def test_a_release_that_is_not_installed_is_said(profile: Profile, chief: User, index: Any) -> None:
    made = schedule(profile, chief, Trigger.RELEASE)
    index.body = releases(INSTALLED)
    run_releases(AT_TWO)
    index.body = releases(INSTALLED, "99.1.0")
    assert run_releases(AT_TWO + timedelta(hours=1)) == []
    run_releases(AT_TWO + timedelta(hours=2))
    made.refresh_from_db()
    assert made.last_release == "99.1.0"
    assert made.last_error == (
        f"transformers 99.1.0 is released and {INSTALLED} is installed here; "
        "it cannot be validated until it is installed."
    )
    assert events(made) == ["made", f"transformers 99.1.0 was released; {INSTALLED} is installed"]


def test_without_an_index_the_installed_one_is_validated_all_the_same(
    profile: Profile, chief: User, settings: Any
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        settings.PACKAGE_INDEX = f"http://127.0.0.1:{free.getsockname()[1]}/pypi"
    made = schedule(profile, chief, Trigger.RELEASE, last_release="5.0.0")
    assert len(run_releases(AT_TWO)) == 1
    made.refresh_from_db()
    assert made.last_release == "5.0.0"
    assert made.last_error.startswith("Whether transformers has a new release is not known: http://127.0.0.1:")
    assert made.last_error.endswith("did not answer (ConnectError).")


def test_run_now_twice_in_a_moment_is_one_validation(profile: Profile, chief: User) -> None:
    made = schedule(profile, chief)
    with pytest.raises(Refused, match="Only an administrator"):
        run_now(made, by=User.objects.create(username="ben", role=Role.TRIAGER))
    first, second = run_now(made, by=chief), run_now(made, by=chief)
    if first != second:  # the minute turned between them
        second = run_now(made, by=chief)
    assert Validation.objects.filter(schedule=made).count() <= 2
    assert second.fresh


def test_the_beats_task_runs(profile: Profile, chief: User, index: Any) -> None:
    hour = datetime.now(UTC).hour
    schedule(profile, chief, hour=hour)
    index.body = releases(INSTALLED)
    run_schedules()
    assert Validation.objects.count() == 1


def test_the_page_makes_profiles_and_schedules(client: Client, chief: User) -> None:
    client.force_login(chief)
    page = client.get("/schedules/").content.decode()
    assert "No schedules yet" in page
    wrong = client.post(
        "/schedules/profiles/new/",
        {"name": "quick", "dataset": "/etc/passwd", "run_settings": "batch=0\nsteps=1"},
    )
    assert wrong.status_code == 400
    assert "batch: 0 is out of bounds; set it to 1 or more" in wrong.content.decode()
    client.post(
        "/schedules/profiles/new/",
        {"name": "quick", "dataset": "gsm8k_sample", "checks": "step.loss", "run_settings": "batch = 1\nsteps=1"},
    )
    profile = Profile.objects.get()
    assert (profile.checks, profile.settings) == (["step.loss"], {"batch": 1, "steps": 1})
    asked = {"profile": profile.pk, "framework": "transformers", "model": "tiny:none", "trigger": "nightly", "hour": 3}
    refused = client.post("/schedules/new/", asked)
    assert refused.status_code == 400
    assert "field-error" in refused.content.decode()
    client.post("/schedules/new/", asked | {"model": "tiny:qwen3"})
    made = Schedule.objects.get()
    assert (made.hour, made.owner) == (3, chief)
    page = client.get("/schedules/").content.decode()
    assert "every night at 03:00 UTC" in page
    started = client.post(f"/schedules/{made.pk}/run/")
    validation = Validation.objects.get()
    assert started.headers["Location"] == f"/validations/V-{validation.pk}/"
    client.post(f"/schedules/{made.pk}/disable/")
    made.refresh_from_db()
    assert not made.enabled


def test_a_viewer_reads_the_page_and_has_no_buttons(
    client: Client, profile: Profile, chief: User, django_assert_max_num_queries: Any
) -> None:
    made = schedule(profile, chief, last_error="<b>why</b>")
    client.force_login(User.objects.create(username="vera"))
    with django_assert_max_num_queries(7):
        page = client.get("/schedules/").content.decode()
    assert "&lt;b&gt;why&lt;/b&gt;" in page
    assert "Run now" not in page
    for number in range(20):
        Schedule.objects.create(
            profile=profile, framework=made.framework, model=f"m{number}", trigger="nightly", owner=chief
        )
    with django_assert_max_num_queries(7):
        client.get("/schedules/")
