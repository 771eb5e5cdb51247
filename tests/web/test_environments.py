"""The page of environments: what is there, what is asked for, and who may ask."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from django.urls import reverse

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.errors import Refused
from plumbline_web.accounts.models import User
from plumbline_web.environments import domain
from plumbline_web.environments.enums import Verb
from plumbline_web.environments.models import Wish
from plumbline_web.environments.reading import list_half_built, list_unused
from plumbline_web.environments.work import choose_environment
from plumbline_web.jobs.domain import Lease, take, write_line
from plumbline_web.jobs.enums import JobState, Kind
from plumbline_web.jobs.models import Job
from plumbline_web.timeline.models import Event
from plumbline_web.validations.ending import end_failed
from plumbline_web.validations.work.perform import perform
from tests.web import factories
from tests.web.pages import MOST_QUERIES, sign_in, text_of
from workers.environments import job as driver
from workers.environments.store import Built, Store

pytestmark = pytest.mark.django_db
LIST = "/environments/"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("PLUMBLINE_ENVIRONMENTS", str(tmp_path / "environments"))
    return Store()


@pytest.fixture
def administrator() -> User:
    return factories.make_user(Role.ADMINISTRATOR)


def add_built(store: Store, name: str, *, key: str = "0123456789ab") -> None:
    folder = store.directory(key)
    (folder / "bin").mkdir(parents=True)
    built = Built(
        key, ("trl==1.16.0", "torch==2.13.0"), "3.11.7", ("torch==2.13.0", "trl==1.16.0"), "now", 1_250_000_000
    )
    store.complete(built)
    store.touch(key)
    store.name(name, key=key)


def ask(administrator: User, **changes: object) -> Wish:
    given = {"framework": "trl==1.16.0", "others": (), "name": "", "python": "", **changes}
    return domain.create(str(given.pop("framework")), by=administrator, **given)  # type: ignore[arg-type]


def test_the_page_says_what_is_there(store: Store) -> None:
    add_built(store, "new")
    store.name("theirs", python=Path(sys.executable))
    store.name("boxed", image="lab/trl:1")
    store.name("lost", key="ffffffffffff")
    (store.directory("eeeeeeeeeeee")).mkdir(parents=True)
    text = text_of(sign_in(Role.ADMINISTRATOR).get(LIST))
    assert "new trl==1.16.0, torch==2.13.0 whole 3.11.7 2 1.25 GB" in text
    assert f"theirs {sys.executable}, not built here whole" in text
    assert "boxed container lab/trl:1 whole" in text
    assert "lost – lost is gone or half built" in text
    assert "begun and not ended: eeeeeeeeeeee" in text
    assert list_half_built(store) == ("eeeeeeeeeeee",)


def test_an_empty_page_teaches(store: Store) -> None:
    text = text_of(sign_in(Role.ADMINISTRATOR).get(LIST))
    assert "No environments yet. Build one below, or with plumbline env create trl==1.16.0" in text
    assert "Nothing yet. Builds, checks and removals are listed here" in text


def test_the_form_asks_for_a_build_once(store: Store) -> None:
    client = sign_in(Role.ADMINISTRATOR)
    given = {
        "framework": "trl==1.16.0",
        "others": " transformers==5.24.0\n\ntorch==2.13.0",
        "name": "",
        "python": "3.11",
    }
    for _ in range(2):
        assert client.post(LIST, given).status_code == 302
    wish = Wish.objects.get()
    assert (wish.verb, wish.name) == (Verb.CREATE, "trl-1.16.0+transformers-5.24.0+torch-2.13.0")
    assert (wish.others, wish.python) == (["transformers==5.24.0", "torch==2.13.0"], "3.11")
    assert list(Job.objects.values_list("kind", "queue", "state", "wish")) == [
        ("environment", "cpu", "queued", wish.pk)
    ]
    assert [event.text for event in Event.objects.filter(subject="environment")] == [
        "build asked for: trl==1.16.0 with transformers==5.24.0 with torch==2.13.0"
    ]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"framework": "trl"}, "'trl' is not one release; name it as trl==VERSION."),
        ({"framework": "trl==1.16.0", "others": "===x"}, "'===x' is not a requirement"),
        (
            {"framework": "trl @ https://x.example/t.whl"},
            "An address is no release; name what is on the package index.",
        ),
        ({"framework": "trl==1.16.0", "name": "../x"}, "'../x' is not a name; use letters, digits"),
        ({"framework": "trl==1.16.0", "python": "three"}, "'three' is no version of Python; write it as 3.11."),
        ({"framework": ""}, "This field is required."),
    ],
)
def test_what_is_no_environment_is_said_beside_its_field(changes: dict[str, str], sentence: str, store: Store) -> None:
    answer = sign_in(Role.ADMINISTRATOR).post(LIST, {"others": "", "name": "", "python": "", **changes})
    assert answer.status_code in (200, 400)
    assert sentence in text_of(answer)
    assert not Wish.objects.exists()


@pytest.mark.parametrize("role", [Role.VIEWER, Role.SUBMITTER, Role.TRIAGER])
def test_nobody_else_changes_any(role: Role, store: Store, administrator: User) -> None:
    user = factories.make_user(role)
    wish = ask(administrator)
    acts = (
        lambda: ask(user),
        lambda: domain.check("new", by=user),
        lambda: domain.remove("new", by=user),
        lambda: domain.evict(9, by=user),
        lambda: domain.cancel(wish, by=user),
    )
    for act in acts:
        with pytest.raises(Refused, match="Only an administrator changes environments"):
            act()
    assert sign_in(role).get(f"/jobs/{wish.jobs.get().pk}/log/").status_code == 404


def test_removing_is_asked_about_first_and_then_a_job(store: Store) -> None:
    add_built(store, "new")
    client = sign_in(Role.ADMINISTRATOR)
    assert "Remove new? trl==1.16.0, torch==2.13.0, 1.25 GB, last used" in text_of(
        client.get("/environments/new/remove/")
    )
    assert not Wish.objects.exists()
    client.post("/environments/new/remove/")
    client.post("/environments/new/check/")
    assert list(Wish.objects.order_by("pk").values_list("verb", "name")) == [("remove", "new"), ("check", "new")]
    gone = client.post("/environments/old/remove/", follow=True)
    assert "There is no environment old any more; look again." in text_of(gone)
    assert Wish.objects.count() == 2


def test_what_an_eviction_takes_is_shown_before_it_is_asked_for(store: Store) -> None:
    add_built(store, "new")
    add_built(store, "old", key="aaaaaaaaaaaa")
    month_ago = store.last_used("aaaaaaaaaaaa") - 30 * 86400
    os.utime(store.directory("aaaaaaaaaaaa") / "used", (month_ago, month_ago))
    assert list_unused(store, days=20) == ("old",)
    client = sign_in(Role.ADMINISTRATOR)
    text = text_of(client.get("/environments/evict/?days=20"))
    assert "No run has used these for so long; they would go: old Remove them" in text
    assert "nothing would go" in text_of(client.get("/environments/evict/?days=40"))
    assert "Ensure this value is greater than or equal to" in text_of(client.get("/environments/evict/?days=0"))
    client.post("/environments/evict/", {"days": "20"})
    assert list(Wish.objects.values_list("verb", "days")) == [("evict", 20.0)]


def test_progress_and_the_end_of_the_log_are_shown_and_it_can_be_cancelled(store: Store, administrator: User) -> None:
    wish = ask(administrator)
    lease = take(wish.jobs.get().pk, worker="w", host="h")
    assert lease is not None
    write_line(lease, 0, "\n".join(f"line {number}" for number in range(30)))
    Job.objects.update(detail="installing: 120 MB, Collecting torch")
    client = sign_in(Role.ADMINISTRATOR)
    live = client.get("/environments/live/")
    text = text_of(live)
    assert "installing: 120 MB, Collecting torch" in text
    assert "line 29" in text
    assert "line 15" not in text
    assert "<html" not in live.content.decode()
    client.post(f"/environments/wishes/{wish.pk}/cancel/")
    assert Job.objects.get().cancel_asked
    Job.objects.update(state=JobState.CANCELLED)
    answer = client.post(f"/environments/wishes/{wish.pk}/cancel/", follow=True)
    assert "It has ended; there is nothing to cancel." in text_of(answer)


def test_more_rows_take_no_more_queries(
    store: Store, administrator: User, django_assert_max_num_queries: object
) -> None:
    client = sign_in(Role.ADMINISTRATOR)
    for name in ("a", "b", "c"):
        ask(administrator, name=name)
    with django_assert_max_num_queries(MOST_QUERIES):  # type: ignore[operator]
        client.get(LIST)


@pytest.mark.django_db(transaction=True)
def test_a_job_does_it_and_keeps_what_was_said(
    store: Store, administrator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLUMBLINE_SECRET_KEY", "hidden")
    store.name("theirs", python=Path(sys.executable))
    wish = domain.check("theirs", by=administrator)
    perform(wish.jobs.get().pk, worker="w", host="h")
    wish.refresh_from_db()
    assert wish.said == "theirs: runs"
    assert wish.jobs.get().state == JobState.DONE
    failing = ask(administrator, framework="no-such-distribution==1.0", python="3.2")
    perform(failing.jobs.get().pk, worker="w", host="h")
    failing.refresh_from_db()
    assert failing.said == "there is no python3.2 on the path; install it, or leave --python out"
    assert (failing.jobs.get().state, failing.jobs.get().error) == (JobState.FAILED, failing.said)
    said = text_of(sign_in(Role.ADMINISTRATOR).get(LIST))
    assert "check theirs done" in said
    assert "failed" in said


def test_a_job_whose_worker_died_too_often_ends_and_nothing_waits_for_it(store: Store, administrator: User) -> None:
    job = ask(administrator).jobs.get()
    lease = take(job.pk, worker="w", host="h")
    assert isinstance(lease, Lease)
    job.refresh_from_db()
    end_failed(job, "its worker died 3 times while it ran")
    assert (job.kind, job.state) == (Kind.ENVIRONMENT, JobState.FAILED)


def test_a_build_sees_what_pip_needs_and_no_secret() -> None:
    given = {"PATH": "/bin", "PIP_INDEX_URL": "u", "HTTPS_PROXY": "p", "PLUMBLINE_SECRET_KEY": "s", "DATABASE_URL": "d"}
    seen = choose_environment({**given, "PLUMBLINE_ENVIRONMENTS": "e", "HF_TOKEN": "t"})
    assert set(seen) == {"PATH", "PIP_INDEX_URL", "HTTPS_PROXY", "PLUMBLINE_ENVIRONMENTS", "PYTHONUNBUFFERED"}


def test_the_driver_removes_evicts_and_refuses(store: Store, tmp_path: Path) -> None:
    add_built(store, "new")
    add_built(store, "old", key="aaaaaaaaaaaa")
    files = [str(tmp_path / name) for name in ("wish.json", "said.json")]

    def run(**wish: object) -> tuple[int, str]:
        Path(files[0]).write_text(json.dumps(wish))
        return driver.main(*files), json.loads(Path(files[1]).read_text())

    deleted = "(trl==1.16.0, torch==2.13.0): deleted, 0 MB\n0 MB freed"
    assert run(verb="remove", name="old") == (0, f"old: forgotten\naaaaaaaaaaaa {deleted}")
    assert store.list_names() == ("new",)
    assert run(verb="evict", days=0.0) == (0, f"new: forgotten, not used for 0 days\n0123456789ab {deleted}")
    code, said = run(verb="create", framework="trl")
    assert (code, said) == (3, "'trl' is not one release; name it as trl==VERSION")
    assert reverse("environment-check", args=["a+b"]) == "/environments/a+b/check/"
