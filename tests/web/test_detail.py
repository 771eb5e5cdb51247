"""The page of one validation, what follows it live, one verdict's evidence, and what is done to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.test import Client, RequestFactory

from plumbline_web.accounts.enums import Role
from plumbline_web.artefacts.store import locate, store_text
from plumbline_web.jobs.enums import JobState, Kind
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from plumbline_web.validations.enums import RunRole, RunState, State
from plumbline_web.validations.evidence import read_evidence
from plumbline_web.validations.models import Validation
from plumbline_web.validations.progress import NEARLY, read_progress
from plumbline_web.validations.views.errors import bad_request
from tests.web import factories
from tests.web.pages import MOST_QUERIES, sign_in, text_of

pytestmark = pytest.mark.django_db


def title_of(response: Any) -> str:
    found = re.search(r"<title>(.*?)</title>", response.content.decode(), re.DOTALL)
    return found[1].strip() if found else ""


def test_the_head_says_verdict_worst_sentence_counts_and_who() -> None:
    owner = factories.make_user(username="petra")
    validation = factories.make_validation(owner=owner)
    page = sign_in(Role.VIEWER).get(f"/validations/V-{validation.pk}/")
    assert title_of(page) == f"V-{validation.pk} fail · transformers × qwen3"
    text = text_of(page)
    assert (
        f"V-{validation.pk} transformers 5.24.0 × qwen3 ▲ fail ▲ 3 fail ● 5 pass ○ 1 skipped step.loss : every token's"
        in text
    )
    assert "by petra, 2 h ago , took 44.0 s, on CPU" in text


def test_every_check_has_its_row_with_numbers_and_the_way_to_its_evidence() -> None:
    validation = factories.make_validation()
    page = sign_in().get(f"/validations/V-{validation.pk}/")
    html = page.content.decode()
    for verdict in factories.failing_verdicts():
        assert f'href="/validations/V-{validation.pk}/checks/{verdict["check"]}/"' in html
    text = text_of(page)
    assert "0.9970× what they should be objective and update scale silent first wrong: loss denominator" in text
    assert '<span title="0.002985' in html


def test_settings_that_differ_and_digests_are_shown() -> None:
    validation = factories.make_validation(settings={"batch": 4, "packing": True})
    capture = factories.make_capture(validation.runs.order_by("pk")[0])
    text = text_of(sign_in().get(f"/validations/V-{validation.pk}/"))
    assert "batch 4 default 2 packing true default false" in text
    assert capture.digest[:12] in text
    assert f"step 1: {factories.digest_of(f'{capture.run_id} 1')[:12]} 5.10 s" in text


def test_the_timeline_tells_who_did_what() -> None:
    owner = factories.make_user(username="petra")
    validation = factories.make_validation(owner=owner)
    record(Subject.VALIDATION, validation, "step.loss changed from fail to pass")
    text = text_of(sign_in().get(f"/validations/V-{validation.pk}/"))
    assert "Plumbline step.loss changed from fail to pass just now petra submitted" in text


def test_what_may_be_done_depends_on_role_and_state() -> None:
    owner = factories.make_user()
    running, done = factories.make_validation(owner=owner, state=State.RUNNING), factories.make_validation(owner=owner)

    def offered(client: Client, validation: Validation) -> set[str]:
        html = client.get(f"/validations/V-{validation.pk}/").content.decode()
        return {name for name in ("cancel", "retry", "rejudge") if f"V-{validation.pk}/{name}/" in html}

    assert offered(sign_in(owner), running) == {"cancel"}
    assert offered(sign_in(owner), done) == {"retry", "rejudge"}
    assert offered(sign_in(Role.TRIAGER), running) == {"cancel"}
    for stranger in (Role.SUBMITTER, Role.VIEWER):
        assert offered(sign_in(stranger), running) == offered(sign_in(stranger), done) == set()


class TestLive:
    def test_it_shows_each_part_with_elapsed_and_remaining(self) -> None:
        validation = factories.make_validation(state=State.RUNNING)
        run, merged = validation.runs.order_by("pk")
        factories.make_job(run=run, phase="framework run", detail="step 2 of 3", expected_s=20.0)
        factories.make_job(run=merged, state=JobState.QUEUED)
        page = sign_in().get(f"/validations/V-{validation.pk}/live/?version={validation.version}")
        text = text_of(page)
        assert re.search(r"framework run ▷ running 8\.\d\d s about 1[12]\.\d s framework run: step 2 of 3", text)
        assert "run on merged rows ◌ queued – – a free worker" in text
        assert "float64 reference ○ waiting – – the parts before it" in text
        assert 'hx-trigger="every 1s"' in page.content.decode()

    def test_a_change_of_state_replaces_the_body_once_and_is_announced(self) -> None:
        validation = factories.make_validation()
        page = sign_in().get(f"/validations/V-{validation.pk}/live/?version={validation.version - 1}")
        assert (page["HX-Retarget"], page["HX-Reswap"]) == ("#detail", "outerHTML")
        html = page.content.decode()
        assert title_of(page) == f"V-{validation.pk} fail · transformers × qwen3"
        assert 'id="announce" hx-swap-oob="true"' in html
        assert f"V-{validation.pk} is now fail." in html
        assert "hx-trigger" not in html

    def test_an_open_page_follows_and_an_ended_one_does_not(self) -> None:
        client = sign_in()
        running, done = factories.make_validation(state=State.RUNNING), factories.make_validation()
        assert "hx-trigger" in client.get(f"/validations/V-{running.pk}/").content.decode()
        assert "hx-trigger" not in client.get(f"/validations/V-{done.pk}/").content.decode()

    def test_checks_that_wait_and_those_that_are_skipped_are_listed_before_there_are_verdicts(self) -> None:
        validation = factories.make_validation(state=State.RUNNING)
        text = text_of(sign_in().get(f"/validations/V-{validation.pk}/"))
        assert "step.loss ○ waiting waits for what is recorded" in text
        assert "data.packing ○ skipped the run does not pack (packing=false)" in text


class TestProgress:
    def test_the_fraction_grows_with_the_parts_and_is_whole_only_at_the_end(self) -> None:
        validation = factories.make_validation(state=State.RUNNING)
        run, merged = validation.runs.order_by("pk")
        factories.make_job(run=run, state=JobState.DONE, expected_s=20.0)
        factories.make_job(run=merged, expected_s=2.0)  # it has run for eight seconds
        found = read_progress([validation])[validation.pk]
        assert [task.state for task in found.tasks] == ["done", "running", "waiting", "waiting"]
        assert found.tasks[1].fraction == NEARLY
        assert found.tasks[1].remaining_s is None
        assert found.fraction == pytest.approx((20 + 2 * NEARLY) / (20 + 2 + 5 + 1))

    def test_a_stored_capture_takes_no_time_and_of_a_repeated_job_the_last_counts(self) -> None:
        first = factories.make_validation()
        stored = first.runs.order_by("pk")[0]
        factories.make_job(run=stored, state=JobState.DONE)
        second = factories.make_validation(state=State.RUNNING, runs=False)
        factories.make_run(second, run=stored, reused=True)
        merged = factories.make_run(second, state=RunState.RUNNING, role=RunRole.MERGED)
        factories.make_job(run=merged, state=JobState.CANCELLED)
        factories.make_job(run=merged, state=JobState.RUNNING)
        found = read_progress([second])[second.pk]
        assert [task.state for task in found.tasks][:2] == ["reused", "running"]
        assert found.tasks[0].weight_s == 0.0

    def test_the_remaining_time_is_unknown_where_one_part_never_ran_before(self) -> None:
        validation = factories.make_validation(state=State.RUNNING)
        for run in validation.runs.all():
            factories.make_job(run=run, expected_s=20.0)
        assert read_progress([validation])[validation.pk].remaining_s is None


class TestLog:
    def test_pieces_come_once_and_say_where_the_next_begins(self) -> None:
        validation = factories.make_validation(state=State.RUNNING)
        job = factories.make_job(run=validation.runs.order_by("pk")[0], lines=["first", "second\nthird"])
        client = sign_in(Role.VIEWER)
        response = client.get(f"/jobs/{job.pk}/log/?after=0")
        assert response.content.decode() == "first\nsecond\nthird\n"
        assert (response["Plumbline-Next"], response["Plumbline-Open"]) == ("2", "1")
        assert response["Content-Type"] == "text/plain; charset=utf-8"
        later = client.get(f"/jobs/{job.pk}/log/?after=2")
        assert (later.content, later["Plumbline-Next"]) == (b"", "2")

    def test_lines_of_an_earlier_attempt_are_not_mixed_in(self) -> None:
        validation = factories.make_validation(state=State.RUNNING)
        job = factories.make_job(run=validation.runs.order_by("pk")[0], lines=["of the first attempt"])
        job.token += 1
        job.save()
        response = sign_in().get(f"/jobs/{job.pk}/log/?after=0")
        assert (response.content, response["Plumbline-Token"]) == (b"", str(job.token))

    def test_an_ended_job_gives_the_stored_log_and_says_when_it_is_gone(self) -> None:
        validation = factories.make_validation()
        log = store_text("everything that was printed\n")
        job = factories.make_job(run=validation.runs.order_by("pk")[0], state=JobState.DONE, log=log)
        client = sign_in()
        response: Any = client.get(f"/jobs/{job.pk}/log/")
        assert b"".join(response.streaming_content) == b"everything that was printed\n"
        locate(log.digest).unlink()
        gone = client.get(f"/jobs/{job.pk}/log/")
        assert gone.status_code == 410
        assert log.digest[:12] in gone.content.decode()

    def test_a_job_of_nobody_is_not_found(self) -> None:
        assert sign_in().get("/jobs/999999/log/").status_code == 404


class TestCheckPage:
    def test_it_has_every_measurement_what_does_not_hold_first(self) -> None:
        validation = factories.make_validation()
        page = sign_in().get(f"/validations/V-{validation.pk}/checks/step.loss/")
        assert title_of(page) == f"step.loss fail · V-{validation.pk}"
        text = text_of(page)
        assert "1 beyond the threshold of 2" in text
        assert "objective ▲ no 2.98e-03 9.23e-07 3.23e+03 1.15e-07 1.04e-06 relative error" in text
        assert text.index("objective ▲ no") < text.index("largest token error ● yes")
        assert "the loss from its definition, on the reference model in float64" in text
        assert "None: framework and reference have no code in common." in text

    def test_numbers_of_tensors_stand_side_by_side_in_the_order_of_the_model(self) -> None:
        validation = factories.make_validation()
        evidence = read_evidence(validation.results.get(check_name="step.gradients"))
        (table,) = evidence.tables
        assert table.title == "cosines and scales"
        measured = [each["name"] for each in evidence.result.document["measurements"]]
        assert [name for name, _ in table.rows] == [name for name in measured if name != "pooled scale"]

    def test_numbers_that_json_does_not_know_are_shown(self) -> None:
        verdict = factories.failing_verdicts()[2]
        verdict["measurements"][0] |= {"value": "nan", "holds": False}
        verdict["measurements"][1] |= {"value": "inf", "threshold": 0.0}
        validation = factories.make_validation(verdicts=[verdict | {"detection_limits": {"head": "inf"}}])
        text = text_of(sign_in().get(f"/validations/V-{validation.pk}/checks/step.loss/"))
        assert "largest token error ▲ no nan" in text
        assert "objective ▲ no inf 0 beyond" in text

    def test_shared_code_is_named(self) -> None:
        verdict = factories.passing_verdicts()[2] | {"shared_code": ["transformers.Qwen3ForCausalLM"]}
        validation = factories.make_validation(verdicts=[verdict])
        text = text_of(sign_in().get(f"/validations/V-{validation.pk}/checks/step.loss/"))
        assert "The check is blind to faults in it. transformers.Qwen3ForCausalLM" in text

    def test_a_replaced_verdict_is_kept_and_says_so(self) -> None:
        validation = factories.make_validation()
        old = validation.results.get(check_name="step.loss")
        old.superseded_at = validation.ended_at
        old.save()
        factories.add_results(validation, [factories.passing_verdicts()[2]])
        client = sign_in()
        current = client.get(f"/validations/V-{validation.pk}/checks/step.loss/")
        assert "Earlier verdicts: fail" in text_of(current)
        assert f"?result={old.pk}" in current.content.decode()
        earlier = text_of(client.get(f"/validations/V-{validation.pk}/checks/step.loss/?result={old.pk}"))
        assert "A later judgement replaced this verdict" in earlier

    @pytest.mark.parametrize("name", ["step.nothing", "data.mask"])
    def test_a_check_that_was_not_judged_is_not_found(self, name: str) -> None:
        validation = factories.make_validation()
        assert sign_in().get(f"/validations/V-{validation.pk}/checks/{name}/").status_code == 404


class TestActions:
    def test_cancel_ends_it_and_a_second_one_is_no_harm(self) -> None:
        owner = factories.make_user()
        validation = factories.make_validation(owner=owner, state=State.QUEUED)
        client = sign_in(owner)
        for _ in range(2):
            response = client.post(f"/validations/V-{validation.pk}/cancel/", follow=True)
            assert f"V-{validation.pk} is cancelled" in text_of(response)
        validation.refresh_from_db()
        assert validation.state == State.CANCELLED

    def test_a_stale_form_is_refused_with_what_happened(self) -> None:
        owner = factories.make_user()
        validation = factories.make_validation(owner=owner)
        response = sign_in(owner).post(f"/validations/V-{validation.pk}/cancel/", {"version": validation.version - 1})
        assert response.status_code == 409
        text = text_of(response)
        assert "has changed since the page was drawn" in text
        assert "Nothing has been changed." in text
        assert f"V-{validation.pk} is now ▲ fail ." in text

    def test_what_has_ended_cannot_be_cancelled(self) -> None:
        owner = factories.make_user()
        validation = factories.make_validation(owner=owner)
        response = sign_in(owner).post(f"/validations/V-{validation.pk}/cancel/")
        assert response.status_code == 409
        assert "has ended; there is nothing to cancel" in text_of(response)

    @pytest.mark.parametrize("action", ["cancel", "retry", "rejudge"])
    def test_a_stranger_and_a_viewer_are_refused(self, action: str) -> None:
        validation = factories.make_validation(state=State.QUEUED if action == "cancel" else State.DONE)
        for stranger in (Role.SUBMITTER, Role.VIEWER):
            response = sign_in(stranger).post(f"/validations/V-{validation.pk}/{action}/")
            assert response.status_code == 403
            assert "only its owner or a triager may change it" in text_of(response)

    def test_retry_asks_the_same_again_with_fresh_captures(self) -> None:
        owner = factories.make_user()
        validation = factories.make_validation(owner=owner, settings={"batch": 4})
        response = sign_in(owner).post(f"/validations/V-{validation.pk}/retry/", follow=True)
        again = Validation.objects.exclude(pk=validation.pk).get()
        assert (again.cloned_from, again.settings, again.fresh) == (validation, {"batch": 4}, True)
        assert f"{again.number} repeats {validation.number} with fresh captures." in text_of(response)

    def test_judging_again_without_the_files_is_refused_by_name(self) -> None:
        owner = factories.make_user()
        validation = factories.make_validation(owner=owner)
        factories.make_capture(validation.runs.order_by("pk")[0])
        response = sign_in(owner).post(f"/validations/V-{validation.pk}/rejudge/")
        assert response.status_code == 409
        assert "manifest.json" in text_of(response)

    @pytest.mark.parametrize("action", ["cancel", "retry", "rejudge"])
    def test_reading_does_nothing(self, action: str) -> None:
        validation = factories.make_validation()
        assert sign_in().get(f"/validations/V-{validation.pk}/{action}/").status_code == 405


def test_the_result_is_the_document_of_the_command_line() -> None:
    validation = factories.make_validation()
    response = sign_in().get(f"/validations/V-{validation.pk}/result.json")
    assert response["Content-Disposition"] == f'attachment; filename="V-{validation.pk}.json"'
    document = response.json()
    assert (document["schema"], document["exit_code"]) == ("plumbline-result", 1)
    assert document["verdicts"] == factories.failing_verdicts()


def test_a_request_that_is_too_large_is_told_the_limit_and_the_way_round_it() -> None:
    response = bad_request(RequestFactory().post("/validations/new/"), RequestDataTooBig())
    assert response.status_code == 413
    assert "The form holds more than 2.5 MB, the most that is read" in text_of(response)
    assert bad_request(RequestFactory().get("/"), SuspiciousOperation("x")).status_code == 400


def test_error_pages_say_what_happened() -> None:
    client = sign_in()
    missing = client.get("/validations/V-999999/")
    assert missing.status_code == 404
    assert "There is no page at this address" in text_of(missing)
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(factories.make_user())
    forged = strict.post("/validations/new/", {})
    assert forged.status_code == 403
    assert "The form was too old" in text_of(forged)
    assert "Overview" in missing.content.decode()


@pytest.mark.parametrize("count", [1, 20])
def test_queries_stay_bounded(count: int, django_assert_max_num_queries: Callable[..., Any]) -> None:
    validation = factories.make_validation(profile=factories.make_profile())
    for run in validation.runs.all():
        factories.make_capture(run)
        factories.make_job(run=run, state=JobState.DONE)
    running = factories.make_validation(state=State.RUNNING, cloned_from=validation)
    for run in running.runs.all():
        for number in range(count):
            factories.make_job(run=run, state=JobState.CANCELLED if number else JobState.RUNNING, lines=["x"])
    factories.make_job(validation=running, kind=Kind.JUDGE, state=JobState.QUEUED)
    for number in range(count):
        record(Subject.VALIDATION, validation, f"event {number}", actor=validation.owner)
    client = sign_in()
    for address in (
        f"/validations/V-{validation.pk}/",
        f"/validations/V-{running.pk}/",
        f"/validations/V-{running.pk}/live/?version=1",
        f"/validations/V-{validation.pk}/checks/step.update/",
    ):
        with django_assert_max_num_queries(MOST_QUERIES):
            assert client.get(address).status_code == 200
