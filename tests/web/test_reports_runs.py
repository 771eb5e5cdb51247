"""A report's script in real environments: a stand-in package in a faulty and in a mended release."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from playwright.sync_api import expect

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.catalog.models import Framework
from plumbline_web.reports.domain import draft_report, edit
from plumbline_web.reports.enums import ReportState, RunState, UpstreamState
from plumbline_web.reports.following import run_in_releases
from plumbline_web.reports.models import Report, ScriptRun
from plumbline_web.reports.running import run_script
from plumbline_web.reports.sending import mark_sent
from plumbline_web.validations.work.perform import perform
from tests.web.browsing import CHROMIUM, find_serious, open_browser
from tests.web.factories import make_problem, make_user
from tests.web.running import empty_queues
from tests.web.test_reports import form_of
from workers.environments.store import DIRECTORY, Built, Store
from workers.frameworks.interpreter import VARIABLE
from workers.scripts import run_script as run_file

SCRIPT = """
import os, sys
try:
    import lossy
except ImportError as error:
    print(f"not judged: {error}")
    sys.exit(2)
values = [1.0, 2.0, 4.0]
expected, observed = sum(values) / 3, lossy.mean(values)
print(f"expected: {expected:.6f}")
print(f"observed: {observed:.6f}")
print("secrets:", sorted(name for name in os.environ if "PLUMBLINE_SECRET" in name or "DATABASE" in name))
sys.exit(int(abs(observed - expected) > 1e-6))
"""
LIMITS: dict[str, Any] = {
    "time_limit_s": 60.0,
    "memory_limit_bytes": None,
    "on_line": lambda line: None,
    "cancelled": lambda: False,
}
FAULTY, MENDED = "def mean(values): return sum(values) / (len(values) + 1)\n", "def mean(v): return sum(v) / len(v)\n"


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two virtual environments: `lossy` 1.0, whose mean is wrong, and 1.1, whose mean is right."""
    folder = tmp_path_factory.mktemp("environments")
    store = Store(folder)
    for number, code in (("1.0", FAULTY), ("1.1", MENDED)):
        key = f"lossy-{number}"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(store.directory(key))], check=True)
        packages = next(store.directory(key).glob("lib/python*/site-packages"))
        (packages / "lossy.py").write_text(code)
        info = packages / f"lossy-{number}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: lossy\nVersion: {number}\n")
        store.complete(Built(key, (f"lossy=={number}",), "3.11.7", (f"lossy=={number}",), "2026-11-30T12:00:00", 1))
        store.name(f"lossy{number}", key=key)
    return folder


@pytest.fixture
def chief(environments: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Any, db: None) -> User:
    monkeypatch.setenv(DIRECTORY, str(environments))
    monkeypatch.delenv(VARIABLE, raising=False)  # the tests' own, which takes seconds to ask
    settings.DATA = tmp_path
    empty_queues()
    return make_user(Role.ADMINISTRATOR, username="ada-chief")


@pytest.fixture
def report(chief: User) -> Report:
    Framework.objects.create(name="trl", title="TRL", package="lossy")
    problem = make_problem(framework="trl", fixed_in="")
    report = draft_report(by=chief, finding=None, problem=problem)
    return edit(report, form_of(report, script=SCRIPT), version=1, by=chief)


def work(report: Report) -> ScriptRun:
    """What a worker does with the job of the report's last run."""
    run = report.runs.order_by("-pk")[0]
    perform(run.jobs.get().pk, worker="w", host="h")
    return ScriptRun.objects.get(pk=run.pk)


@pytest.mark.django_db(transaction=True)
def test_a_script_exits_1_on_the_faulty_release_and_0_on_the_mended_one(report: Report, chief: User) -> None:
    run_script(report, environment="lossy1.0", by=chief)
    run = work(report)
    assert (run.state, run.exit_code, run.shows) == (RunState.ENDED, 1, True)
    assert run.output == "expected: 2.333333\nobserved: 1.750000\nsecrets: []\n"
    assert run.packages["lossy"] == "1.0"
    assert run.jobs.get().log is not None
    report = Report.objects.get(pk=report.pk)
    assert (report.state, report.verified_by) == (ReportState.VERIFIED, run)

    mark_sent(report, url="https://github.com/o/n/issues/7", by=chief)
    assert run_in_releases() == 0  # nobody claims a fix
    Report.objects.update(upstream_state=UpstreamState.CLOSED)
    assert run_in_releases() == 1
    run = work(report)
    assert (run.environment, run.asked_by, run.exit_code, run.shows) == ("lossy1.1", None, 0, False)
    assert Report.objects.get(pk=report.pk).state == ReportState.CLOSED
    assert run_in_releases() == 0  # every release was tried

    run_script(report, environment="lossy1.0", by=chief)
    assert work(report).exit_code == 1
    assert Report.objects.get(pk=report.pk).state == ReportState.SENT


@pytest.mark.django_db(transaction=True)
def test_a_script_that_breaks_or_whose_environment_is_gone_shows_nothing(report: Report, chief: User) -> None:
    broken = edit(report, form_of(report, script="raise KeyError('expected observed')\n"), version=2, by=chief)
    run_script(broken, environment="lossy1.0", by=chief)
    run = work(broken)
    assert (run.exit_code, run.shows) == (1, None)
    assert run.verdict.startswith("the script broke (KeyError: 'expected observed'")
    run_script(broken, environment="lossy1.0", by=chief)
    Store().forget("lossy1.0")
    try:
        run = work(broken)
    finally:
        Store().name("lossy1.0", key="lossy-1.0")
    assert (run.state, run.shows) == (RunState.FAILED, None)
    assert "there is no environment 'lossy1.0'" in run.verdict
    assert Report.objects.get(pk=report.pk).state == ReportState.DRAFT


def test_a_script_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    started = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    script = f"import subprocess, sys, time\n{started}\ntime.sleep(60)\n"
    end, log = run_file(script, python=sys.executable, directory=tmp_path, **{**LIMITS, "time_limit_s": 1.0})
    assert end.ending == "timed_out"
    assert end.elapsed_s < 15
    assert log.read_bytes() == b""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
@pytest.mark.django_db(transaction=True)
def test_from_a_problem_to_an_exported_report_whose_script_tells_the_releases_apart(
    chief: User, live_server: Any, client: Client, tmp_path: Path
) -> None:
    problem = make_problem(framework="trl")
    client.force_login(chief)
    cookie = {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}
    with open_browser() as browser:
        context = browser.new_context(base_url=live_server.url)
        context.add_cookies([cookie])
        page = context.new_page()
        page.goto(f"/problems/P-{problem.pk}/")
        page.get_by_role("link", name="Report upstream").click()
        page.get_by_role("button", name="Begin the report").click()
        expect(page.locator(".note")).to_contain_text("has no reproducer")
        page.get_by_role("link", name="Edit", exact=True).click()
        expect(page.get_by_label("reproduce.py")).to_have_value(re.compile("def compute_expected"))
        page.get_by_label("reproduce.py").fill(SCRIPT)
        assert find_serious(page) == []
        page.get_by_role("button", name="Save").click()
        page.get_by_label("Environment").select_option("lossy1.0")
        page.get_by_role("button", name="Run the script").click()
        assert work(Report.objects.get()).shows
        connection.close()  # the browser's loop has one of its own, which nobody else would close
        page.reload()
        expect(page.locator(".verdict-line")).to_contain_text("verified")
        issue = page.get_by_role("link", name="Open pre-filled issue").get_attribute("href")
        assert issue is not None
        assert issue.startswith("https://github.com/huggingface/trl/issues/new?title=")
        assert find_serious(page) == []
        with page.expect_download() as download:
            page.get_by_role("link", name="ZIP").click()
        download.value.save_as(tmp_path / "report.zip")
        context.close()
    with zipfile.ZipFile(tmp_path / "report.zip") as archive:
        exported = archive.read("reproduce.py").decode()
    for name, code in (("lossy1.0", 1), ("lossy1.1", 0)):
        python = str(Store().find(name).python)
        end, _ = run_file(exported, python=python, directory=tmp_path / name, **LIMITS)
        assert end.exit_code == code
