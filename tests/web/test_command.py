"""A command line is an administrator's: whoever else gives one is refused in a sentence, wherever it is given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.jobs.models import Job
from plumbline_web.validations.domain import preview, retry, submission_of, submit
from plumbline_web.validations.enums import State
from plumbline_web.validations.forms import read_clone
from plumbline_web.validations.models import FrameworkRun, Validation
from plumbline_web.validations.planning import refuse_command
from plumbline_web.validations.submission import InvalidSubmission, Submission, read_submission
from tests.web import factories
from tests.web.pages import sign_in, text_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("_shared_cache")]

GIVEN = {"precision": "float32", "steps": "1", "command": "sh -c 'exit 3' {model}"}
ASKED = Submission("command", "tiny:qwen3", "gsm8k_sample", settings={"precision": "float32", "steps": 1})
COMMAND = replace(ASKED, settings={**ASKED.settings, "command": ("sh", "-c", "exit 3", "{model}")})
SENTENCE = "only an administrator runs a command line here, and you are "


@pytest.fixture
def administrator() -> User:
    return factories.make_user(Role.ADMINISTRATOR)


@pytest.mark.parametrize("role", [Role.SUBMITTER, Role.TRIAGER])
def test_nobody_else_submits_previews_or_repeats_one(role: Role, administrator: User) -> None:
    user = factories.make_user(role)
    for submission in (COMMAND, ASKED, replace(COMMAND, framework="trl")):
        for refused in (lambda asked: submit(asked, owner=user), lambda asked: preview(asked, user=user)):
            with pytest.raises(InvalidSubmission) as error:
                refused(submission)
            assert error.value.errors["framework"].startswith(f"{SENTENCE}{role.value}; use --local, or push")
    theirs, _ = submit(COMMAND, owner=administrator)
    Validation.objects.filter(pk=theirs.pk).update(state=State.DONE)
    if role is Role.TRIAGER:  # who may repeat what is others' own
        with pytest.raises(InvalidSubmission, match=SENTENCE):
            retry(theirs, by=user)
    assert Job.objects.count() == 1


def test_the_form_says_so_beside_the_framework() -> None:
    data = {"framework": "command", "model": "tiny:qwen3", "data": "gsm8k_sample", "checks": ["run.completes"]}
    data |= {"key": "drawn", "queue": "cpu", **{f"settings.{name}": value for name, value in GIVEN.items()}}
    answer = sign_in(Role.SUBMITTER).post("/validations/new/", data)
    assert answer.status_code == 400
    assert f"{SENTENCE}submitter" in text_of(answer)
    answer = sign_in(Role.ADMINISTRATOR).post("/validations/new/", data, follow=True)
    assert answer.status_code == 200
    assert '["sh", "-c", "exit 3", "{model}"]' in text_of(answer)


def test_a_capture_of_one_that_ran_elsewhere_is_only_data() -> None:
    refuse_command(replace(ASKED, capture=7), factories.make_user(Role.SUBMITTER))


def test_a_text_is_split_once_and_a_list_is_taken_as_it_is() -> None:
    plain = {"framework": "command", "model": "tiny:qwen3", "data": "gsm8k_sample"}
    assert read_submission({**plain, "settings": GIVEN}).settings == COMMAND.settings
    words = ["sh", "-c", "a, b", "", "it's"]
    listed = read_submission({**plain, "settings": {"command": words}})
    assert listed.settings["command"] == tuple(words)
    assert read_clone(listed, source="1").text("settings.command") == """sh -c 'a, b' '' 'it'"'"'s'"""


def test_no_capture_of_an_earlier_one_stands_for_it(administrator: User) -> None:
    first, _ = submit(COMMAND, owner=administrator)
    run = first.runs.get()
    FrameworkRun.objects.filter(pk=run.pk).update(state="ended", ending="completed")
    run.refresh_from_db()
    factories.make_capture(run)
    assert [each.reused for each in preview(COMMAND, user=administrator).runs] == [False]
    second, _ = submit(COMMAND, owner=administrator)
    assert second.runs.get() != run
    assert submission_of(second) == COMMAND
