"""Reports: begun, edited, run, refused until they are shown, sent, and followed upstream."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from django.test import Client

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.jobs.models import Job
from plumbline_web.problems.models import Problem
from plumbline_web.reports.domain import Edited, Stale, draft_report, edit
from plumbline_web.reports.enums import Kind, ReportState, RunState, Tracker, UpstreamState
from plumbline_web.reports.environments import Installed
from plumbline_web.reports.following import look_upstream
from plumbline_web.reports.models import Report, ScriptRun
from plumbline_web.reports.outcomes import Ended, end_run
from plumbline_web.reports.pages import make_files
from plumbline_web.reports.running import run_script
from plumbline_web.reports.sending import find_obstacle, mark_sent, set_upstream
from plumbline_web.reports.upstream import Issue, Unreachable, fetch_state, parse_issue
from plumbline_web.timeline.models import Event, Subject
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.models import Finding
from tests.web.factories import make_problem, make_user, make_validation
from tests.web.pages import text_of
from workers.runner import ProcessEnd

pytestmark = pytest.mark.django_db

SCRIPT = "print('expected 1, observed 2')\nraise SystemExit(1)\n"
OUTPUT = "expected 1, observed 2\n"


@pytest.fixture
def triager() -> User:
    return make_user(Role.TRIAGER, username="tess-triager")


@pytest.fixture
def chief() -> User:
    return make_user(Role.ADMINISTRATOR, username="ada-chief")


@pytest.fixture
def finding() -> Finding:
    """Of step.gradients, of a run for which a script can be written."""
    return make_validation(settings={"accumulation": 4}).findings.get(check_name="step.gradients")


@pytest.fixture
def report(triager: User, finding: Finding) -> Report:
    return draft_report(by=triager, finding=finding, problem=None)


def form_of(report: Report, **changes: Any) -> Edited:
    names = ("project", "title", "body", "script")
    values = {name: getattr(report, name) for name in names}
    return Edited(**{**values, "tracker": Tracker(report.tracker), "kept": tuple(map(Kind, report.kept)), **changes})


def end(run: ScriptRun, exit_code: int, *, output: str = OUTPUT, packages: dict[str, str] | None = None) -> ScriptRun:
    """What a worker writes when the script has ended, in the finding's own environment unless it is said."""
    finding = run.report.finding
    here = finding.validation.environment if finding is not None else None
    found = packages if packages is not None else dict(here.packages) if here is not None else {"torch": "2.13.0"}
    ended = ProcessEnd(exit_code, None, "completed" if exit_code == 0 else "failed", 3.0, 1 << 20, None)
    end_run(run, Ended(ended, output, Installed("python", here.python if here else "3.11.7", found), "CPU"))
    return ScriptRun.objects.get(pk=run.pk)


def verify(report: Report, by: User) -> Report:
    """A report whose script was run and showed the fault."""
    end(run_script(report, environment="", by=by), 1)
    return Report.objects.get(pk=report.pk)


def events_of(report: Report) -> list[str]:
    return list(
        Event.objects.filter(subject=Subject.REPORT, subject_id=report.pk).order_by("pk").values_list("text", flat=True)
    )


def test_a_report_begins_with_what_the_finding_says_and_its_script(report: Report, finding: Finding) -> None:
    assert (report.state, report.tracker, report.project) == (
        *("draft", "transformers"),
        "https://github.com/huggingface/transformers",
    )
    assert finding.result.sentence[:40] in report.title
    assert "### System Info\n\n[[versions]]" in report.body
    assert "| pooled scale | 0.002976 | 1.017e-06 |" in report.body
    assert "Run on CPU, 1 process, float32. Not run: on a GPU or with several processes." in report.body
    assert report.is_generated
    assert "BATCH, ACCUMULATION = 2, 4" in report.script
    assert events_of(report) == [f"began about {finding.number}"]


def test_a_report_of_a_problem_has_its_cause_and_no_script(triager: User) -> None:
    problem = make_problem(
        framework="trl", root_cause="The mask is shifted twice.", url="https://github.com/o/n/pull/7"
    )
    report = draft_report(by=triager, finding=None, problem=problem)
    assert (report.tracker, report.script) == ("trl", "")
    assert "The mask is shifted twice." in report.body
    assert "- https://github.com/o/n/pull/7" in report.body
    assert Event.objects.filter(subject=Subject.PROBLEM, text=f"report {report.number} begun").exists()
    with pytest.raises(Refused, match="has no reproducer: write one, then run it"):
        run_script(report, environment="", by=triager)
    with pytest.raises(Refused, match="has no reproducer: a report is sent with a script"):
        mark_sent(report, url="https://github.com/o/n/issues/1", by=triager)


def test_a_report_is_refused_until_its_script_showed_the_fault(client: Client, report: Report, triager: User) -> None:
    client.force_login(triager)
    page = f"/reports/{report.number}/"
    refused = client.get(f"{page}report.zip")
    assert refused.status_code == 409
    assert f"the script of {report.number} was not run as it stands" in text_of(refused)
    assert "issues/new" not in client.get(page).content.decode()
    draft = client.get(f"{page}report.md?draft=1")
    assert draft.headers["Content-Disposition"] == f'attachment; filename="{report.number}-draft.md"'
    assert "_Draft: the fault was not shown" in draft.content.decode()
    client.post(f"{page}run/", {"environment": ""})
    run = report.runs.get()
    assert Job.objects.get(script_run=run).kind == "reproduce"
    end(run, 0)
    assert "did not show the fault: the script ran to its end and says that the result is right" in text_of(
        client.get(page)
    )
    verify(report, triager)
    content = client.get(page).content.decode()
    assert "https://github.com/huggingface/transformers/issues/new?title=" in content
    packed = client.get(f"{page}report.zip")
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        assert archive.namelist() == ["report.md", "reproduce.py", "output.txt", "plot.png", "data.csv"]
        assert archive.read("reproduce.py").decode() == report.script
        assert archive.read("output.txt").decode() == OUTPUT
        text = archive.read("report.md").decode()
    assert "Draft" not in text
    assert "- transformers 5.24.0" in text
    assert "![step.gradients: relative error](plot.png)" in text
    assert client.get(f"{page}plot.png").headers["Content-Type"] == "image/png"


def test_a_run_elsewhere_than_where_the_finding_was_made_shows_nothing(report: Report, triager: User) -> None:
    run = end(run_script(report, environment="", by=triager), 1, packages={"transformers": "4.0", "torch": "1.0"})
    assert run.shows is None
    assert "in another environment than the finding's" in run.verdict
    assert "transformers 4.0 instead of 5.24.0" in run.verdict
    assert Report.objects.get(pk=report.pk).state == ReportState.DRAFT


def test_another_script_must_show_the_fault_again(report: Report, triager: User, chief: User) -> None:
    report = verify(report, triager)
    assert report.state == ReportState.VERIFIED
    report = edit(report, form_of(report, title="shorter"), version=report.version, by=triager)
    assert report.state == ReportState.VERIFIED
    report = edit(report, form_of(report, script=SCRIPT), version=report.version, by=triager)
    assert (report.state, report.verified_by) == (ReportState.DRAFT, None)
    assert events_of(report)[-1] == "changed script; the new script was not run yet"
    with pytest.raises(Refused, match="run for administrators alone"):
        run_script(report, environment="", by=triager)
    end(run_script(report, environment="", by=chief), 1)
    # As an administrator had it run, so may a triager; a word more, and not.
    run_script(report, environment="", by=triager)
    with pytest.raises(Refused, match="is being run already"):
        run_script(report, environment="", by=chief)


def test_a_late_run_of_an_earlier_script_changes_nothing(report: Report, triager: User) -> None:
    run = run_script(report, environment="", by=triager)
    edit(report, form_of(report, script=SCRIPT), version=report.version, by=triager)
    end(run, 1)
    report = Report.objects.get(pk=report.pk)
    assert report.state == ReportState.DRAFT
    assert "a run of an earlier script ended" in events_of(report)[-1]


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("x = = 1\n", "script: line 1 is no Python"),
        ("#" * 60_001, "script: 60,002 characters"),
        ("a\0b = ", "no Python"),
    ],
)
def test_a_script_that_cannot_run_is_refused(report: Report, triager: User, script: str, sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        edit(report, form_of(report, script=script), version=report.version, by=triager)


def test_two_people_who_edit_at_once_lose_nothing(client: Client, report: Report, triager: User) -> None:
    other = make_user(Role.TRIAGER, username="otto-other")
    edit(report, form_of(report, body="Otto's text"), version=report.version, by=other)
    client.force_login(triager)
    mine = {"version": "1", "title": "t", "tracker": "transformers", "body": "Tess's text", "script": report.script}
    answer = client.post(f"/reports/{report.number}/edit/", mine)
    assert answer.status_code == 409
    content = answer.content.decode()
    assert "was changed meanwhile; nothing of yours is saved yet" in content
    assert "Otto&#x27;s text</pre>" in content
    assert "Tess&#x27;s text</textarea>" in content
    assert 'name="version" value="2"' in content
    assert client.post(f"/reports/{report.number}/edit/", {**mine, "version": "2"}).status_code == 302
    saved = Report.objects.get(pk=report.pk)
    assert saved.body == "Tess's text"
    kept = Event.objects.filter(subject=Subject.REPORT, subject_id=report.pk).order_by("pk").last()
    assert kept is not None
    assert kept.data["before"]["body"] == "Otto's text"
    with pytest.raises(Stale):
        edit(report, form_of(report), version=1, by=other)


def test_another_tracker_writes_an_untouched_text_anew_and_keeps_a_persons(report: Report, triager: User) -> None:
    moved = edit(report, form_of(report, tracker=Tracker.MS_SWIFT, project=""), version=1, by=triager)
    assert "### Bug Description" in moved.body
    assert moved.project == "https://github.com/modelscope/ms-swift"
    mine = edit(moved, form_of(moved, body="mine\r\n"), version=2, by=triager)
    again = edit(mine, form_of(mine, tracker=Tracker.TRL, project=""), version=3, by=triager)
    assert again.body == "mine\n"


def test_private_names_are_taken_out_and_listed_unless_they_are_ticked(
    client: Client, report: Report, triager: User
) -> None:
    body = "see /home/tess/run/log.txt of tess-triager <script>alert(1)</script> ![x](https://far.example/x.png)\n[[script]]"
    report = edit(report, form_of(report, body=body, script="# /home/tess/x/y\n" + SCRIPT), version=1, by=triager)
    client.force_login(triager)
    answer = client.get(f"/reports/{report.number}/")
    content = answer.content.decode()
    assert "see &lt;path&gt; of &lt;user&gt; &lt;script&gt;alert(1)&lt;/script&gt;" in content
    assert 'far.example/x.png" rel=' in content
    assert '<img src="https://far' not in content
    assert "paths: 2" in text_of(answer)
    assert "user names and e-mail addresses: 1" in text_of(answer)
    files = make_files(report)
    assert files["reproduce.py"].startswith(b"# <path>\nprint")
    report = edit(report, form_of(report, kept=(Kind.PATH, Kind.USER)), version=2, by=triager)
    assert b"see /home/tess/run/log.txt of tess-triager" in make_files(report)["report.md"]
    assert "Left in, because it was ticked: paths, user names" in text_of(client.get(f"/reports/{report.number}/"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tracker": "github"}, "Name the project"),
        ({"project": "ftp://x/y/z"}, "no address of a project"),
        ({"project": "https://github.com/only"}, "no address of a project"),
        ({"tracker": "text", "project": "https://github.com/o/n"}, "A plain text goes to no project"),
        ({"body": "x" * 60_001}, "60,001 characters, and 60,000 is the most"),
        ({"title": ""}, "This field is required"),
    ],
)
def test_a_form_that_is_wrong_says_where(
    client: Client, report: Report, triager: User, changes: dict[str, str], sentence: str
) -> None:
    client.force_login(triager)
    form = {"version": "1", "title": "t", "tracker": "trl", "body": "b", "script": "", "project": ""}
    answer = client.post(f"/reports/{report.number}/edit/", {**form, **changes})
    assert answer.status_code == 400
    assert sentence in text_of(answer)
    assert Report.objects.get(pk=report.pk).version == 1


def test_a_sent_report_keeps_its_script_and_is_closed_and_reopened_by_what_the_script_says(
    report: Report, triager: User
) -> None:
    problem = make_problem()
    Report.objects.filter(pk=report.pk).update(problem=problem)
    report = verify(report, triager)
    with pytest.raises(Refused, match="is none of an issue"):
        mark_sent(report, url="javascript:alert(1)", by=triager)
    report = mark_sent(report, url="https://github.com/o/n/issues/7", by=triager)
    assert (report.state, report.upstream_state) == (ReportState.SENT, UpstreamState.OPEN)
    with pytest.raises(Refused, match="was sent already"):
        mark_sent(report, url="https://github.com/o/n/issues/8", by=triager)
    with pytest.raises(Refused, match="another script is another report"):
        edit(report, form_of(report, script=SCRIPT), version=report.version, by=triager)
    newer = {"transformers": "6.0.0"}
    for exit_code, state in ((1, "sent"), (2, "sent"), (0, "closed"), (0, "closed"), (1, "sent")):
        end(run_script(report, environment="", by=triager), exit_code, packages=newer)
        report = Report.objects.get(pk=report.pk)
        assert report.state == state, exit_code
    told = (
        Event.objects.filter(subject=Subject.PROBLEM, subject_id=problem.pk)
        .order_by("pk")
        .values_list("text", flat=True)
    )
    assert [" ".join(text.split()[:3]).split(", where")[0] for text in told] == [
        f"{report.number} sent: https://github.com/o/n/issues/7",
        f"{report.number}: closed: mended",
        f"{report.number}: reopened: not",
    ]


@contextmanager
def github(answers: dict[str, tuple[int, object]]) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A server that answers as GitHub does; what it was asked, and with which token."""
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            status, document = answers.get(self.path, (404, {}))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(document if isinstance(document, bytes) else json.dumps(document).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def test_the_state_upstream_is_fetched_with_the_token_and_noted(report: Report, triager: User, settings: Any) -> None:
    report = verify(report, triager)
    report = mark_sent(report, url="https://github.com/o/n/pull/7", by=triager)
    assert look_upstream() == 0  # no token
    answers = {"/repos/o/n/issues/7": (200, {"state": "closed", "pull_request": {"merged_at": "2026-11-30"}})}
    with github(answers) as (api, asked):
        settings.GITHUB_API, settings.GITHUB_TOKEN = api, "a-token"
        assert look_upstream() == 0  # looked at a moment ago, by the person who sent it
        Report.objects.update(upstream_at=None)
        assert look_upstream() == 1
        assert asked == [("/repos/o/n/issues/7", "Bearer a-token")]
        assert look_upstream() == 0
    report = Report.objects.get(pk=report.pk)
    assert (report.upstream_state, report.upstream_error) == (UpstreamState.MERGED, "")
    assert events_of(report)[-1] == "upstream is merged: https://github.com/o/n/pull/7"


def test_a_github_that_does_not_answer_changes_nothing_and_says_so(
    report: Report, triager: User, settings: Any
) -> None:
    report = mark_sent(verify(report, triager), url="https://github.com/o/n/issues/7", by=triager)
    Report.objects.update(upstream_at=None)
    with github({"/repos/o/n/issues/7": (403, {})}) as (api, _):
        settings.GITHUB_API, settings.GITHUB_TOKEN = api, "a-token"
        assert look_upstream() == 1
    report = Report.objects.get(pk=report.pk)
    assert (report.upstream_state, report.upstream_error) == (UpstreamState.OPEN, "GitHub answers 403 for o/n#7")
    with pytest.raises(Unreachable, match="does not answer"):
        fetch_state(Issue("o", "n", 7), token="t", api="http://127.0.0.1:9")
    with (
        github({"/repos/o/n/issues/7": (200, b"<html>")}) as (api, _),
        pytest.raises(Unreachable, match="none of an issue"),
    ):
        fetch_state(Issue("o", "n", 7), token="t", api=api)


def test_an_issue_is_known_by_its_address() -> None:
    assert parse_issue("https://github.com/o/n.x/pull/12#issuecomment-3") == Issue("o", "n.x", 12)
    for address in ("https://github.com/o/n", "https://gitlab.com/o/n/issues/1", "https://github.com/o/n/issues/x"):
        assert parse_issue(address) is None


def test_the_list_has_every_report_by_state_in_few_queries(
    client: Client, report: Report, triager: User, django_assert_max_num_queries: Any
) -> None:
    for number in range(3):
        draft_report(by=triager, finding=None, problem=make_problem(f"problem-{number}"))
    verify(report, triager)
    client.force_login(make_user(Role.VIEWER))
    with django_assert_max_num_queries(10):
        content = text_of(client.get("/reports/"))
    assert "1–4 of 4" in content
    assert report.title[:30] in text_of(client.get("/reports/?state=verified"))
    assert "No report is in this state" in text_of(client.get("/reports/?state=closed"))


def test_a_new_report_is_begun_from_a_finding_or_a_problem(client: Client, finding: Finding, triager: User) -> None:
    client.force_login(triager)
    problem = make_problem()
    assert client.get("/reports/new/").status_code == 404
    assert client.get("/reports/new/?finding=F-0").status_code == 404
    address = f"/reports/new/?finding={finding.number}&problem=p-{problem.pk}"
    assert "Plumbline writes the reproducer" in text_of(client.get(address))
    answer = client.post(address, {"tracker": "gitlab"})
    report = Report.objects.get()
    assert answer.headers["Location"] == f"/reports/{report.number}/"
    assert (report.finding, report.problem, report.tracker) == (finding, problem, "gitlab")


def test_states_by_hand_are_for_sent_reports_alone(report: Report, triager: User) -> None:
    with pytest.raises(Refused, match="was not sent yet"):
        set_upstream(report, url="https://github.com/o/n/issues/7", state=UpstreamState.CLOSED, by=triager)
    viewer = make_user(Role.VIEWER)
    for deed in (
        lambda: draft_report(by=viewer, finding=report.finding, problem=None),
        lambda: edit(report, form_of(report), version=1, by=viewer),
        lambda: run_script(report, environment="", by=viewer),
        lambda: mark_sent(report, url="", by=viewer),
    ):
        with pytest.raises(Refused) as refused:
            deed()
        assert refused.value.code == "forbidden"
    assert find_obstacle(report)
    assert not Problem.objects.exists()
    assert report.runs.filter(state=RunState.QUEUED).count() == 0
