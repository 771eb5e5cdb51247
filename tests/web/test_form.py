"""The form of a new validation: what it asks, what it says of errors, what it takes, and that it is sent once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client, override_settings

from checks.document import read_paragraph
from checks.registry import CHECKS, DEFAULT_CHECKS
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.validations.enums import State
from plumbline_web.validations.fields import draw
from plumbline_web.validations.forms import SETTING, Entries, read_clone, write_value
from plumbline_web.validations.models import Validation
from plumbline_web.validations.submission import Submission, read_submission
from tests.web import factories
from tests.web.pages import MOST_QUERIES, sign_in, text_of
from workers.settings import setting_names

pytestmark = pytest.mark.django_db

FORM: dict[str, Any] = {
    "framework": "transformers",
    "model": "tiny:qwen3",
    "data": "gsm8k_sample",
    "checks": list(DEFAULT_CHECKS),
    "queue": "cpu",
    "key": "one drawn form",
}


def send(client: Client, **changes: Any) -> Any:
    return client.post("/validations/new/", {**FORM, **changes})


def field_of(response: Any, name: str) -> str:
    """The HTML of one field with its help and error."""
    found = re.search(
        rf'<div class="field[^>]*>\s*<label for="[^"]*">{name}</label>.*?</div>', response.content.decode(), re.S
    )
    assert found is not None
    return found[0]


def test_the_form_offers_every_check_and_every_setting_with_what_it_costs() -> None:
    page = sign_in().get("/validations/new/")
    html = page.content.decode()
    offered = re.findall(r'name="checks" value="([^"]+)"( checked)?', html)
    assert {name for name, _ in offered} == set(CHECKS)
    assert {name for name, checked in offered if checked} == set(DEFAULT_CHECKS)
    assert {name for name in setting_names() if f'name="settings.{name}"' in html} == set(setting_names())
    text = text_of(page)
    assert (
        "step.accumulation N micro-batches give the gradient of one batch Catches a mean of micro-batch means" in text
    )
    assert "Costs one more framework run of one step." in text
    assert 'placeholder="0.001"' in field_of(page, "lr")
    assert "0 or more and less than 1" in field_of(page, "beta1")
    assert '<option value="bf16">bf16</option>' in field_of(page, "precision")
    assert '<option value="tiny:gpt_oss">' in html


def test_a_right_form_makes_one_validation_of_its_sender() -> None:
    user = factories.make_user()
    response = send(sign_in(user), **{"settings.batch": "4", "settings.assistant_only": "false", "fresh": "true"})
    validation = Validation.objects.get()
    assert response["Location"] == f"/validations/V-{validation.pk}/"
    assert (validation.owner, validation.state, validation.checks) == (user, State.QUEUED, None)
    assert validation.settings == {"batch": 4, "assistant_only": False}
    assert validation.fresh
    assert validation.runs.count() == 2


def test_sent_twice_it_is_one_validation_and_says_so() -> None:
    client = sign_in()
    first, second = send(client), send(client)
    assert first["Location"] == second["Location"]
    assert Validation.objects.count() == 1
    assert "This form was sent twice; it is one validation" in text_of(client.get(second["Location"]))


def test_errors_stand_beside_their_fields_the_first_has_the_focus_and_nothing_typed_is_lost() -> None:
    typed = {"model": "tiny:qwen9", "settings.batch": "many", "settings.beta1": "1.5", "time_limit_s": "-1"}
    response = send(sign_in(), **typed)
    assert response.status_code == 400
    assert Validation.objects.count() == 0
    assert "is not a whole number; give a whole number, 1 or more" in field_of(response, "batch")
    assert "set it to 0 or more and less than 1" in field_of(response, "beta1")
    assert "give a number above 0" in field_of(response, "Time limit in seconds")
    for name, value in typed.items():
        assert re.search(rf'name="{re.escape(name)}"[^>]* value="{re.escape(value)}"', response.content.decode())
    focused = re.findall(r'<(?:input|select) id="([^"]+)"[^>]*autofocus', response.content.decode())
    assert focused == ["field-settings-batch"]
    assert '<a href="#field-settings-batch">batch</a>' in response.content.decode()
    assert "3 fields cannot be read; nothing was submitted." in text_of(response)


def test_an_unknown_model_is_named_with_those_that_exist() -> None:
    response = send(sign_in(), model="tiny:qwen9")
    assert "tiny:qwen3" in field_of(response, "Model").split("field-error")[1]


def test_a_path_outside_the_allowed_roots_is_refused() -> None:
    response = send(sign_in(), data="/etc/passwd")
    assert "/etc/passwd is not under an allowed directory" in field_of(response, "Data")


def test_no_check_at_all_is_an_error_and_some_are_those() -> None:
    client = sign_in()
    response = send(client, checks=[])
    assert "no check is chosen; choose one or more" in text_of(response)
    assert response.status_code == 400
    send(client, checks=["step.loss", "run.completes"])
    assert Validation.objects.get().checks == ["run.completes", "step.loss"]


def test_what_is_typed_is_shown_escaped() -> None:
    response = send(sign_in(), model="<script>alert(1)</script>")
    assert b"<script>alert(1)" not in response.content
    assert b"&lt;script&gt;alert(1)" in response.content


def test_a_viewer_sees_why_not_and_is_refused() -> None:
    client = sign_in(Role.VIEWER)
    page = client.get("/validations/new/")
    assert "You are a viewer" in text_of(page)
    assert '<button class="button button-primary" type="submit" disabled>' in page.content.decode()
    response = send(client)
    assert response.status_code == 403
    assert "a viewer cannot submit validations; ask an administrator" in text_of(response)
    assert Validation.objects.count() == 0


@override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=2_500_000)
def test_a_field_of_100_mb_is_refused_with_a_sentence() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(factories.make_user())
    client.get("/validations/new/")
    response = client.post(
        "/validations/new/", b"model=" + b"x" * 100_000_000, content_type="application/x-www-form-urlencoded"
    )
    assert response.status_code in (400, 413)  # the second where the project names our handler
    assert "larger than what is read" in text_of(response) or "The form holds more than 2.5 MB" in text_of(response)


class TestPreview:
    def ask(self, who: User | Role = Role.SUBMITTER, **changes: Any) -> str:
        response = sign_in(who).post("/validations/new/preview/", {**FORM, **changes})
        assert response.status_code == 200
        return text_of(response)

    def test_it_counts_the_runs_and_says_what_each_serves(self) -> None:
        text = self.ask()
        assert text.startswith(
            "2 framework runs framework run: 12 rows, steps 1, 3 recorded serves run.completes, environment."
        )
        assert "framework run on merged rows: 4 rows, step 1 recorded serves step.accumulation" in text
        assert "Memory about 1.1 GB" in text
        assert "Skipped: data.preference (the run does not train on preferences (objective=sft)); step.lora (no" in text
        assert "data.packing (the run does not pack (packing=false))" in text

    def test_it_says_what_is_wrong_and_stores_nothing(self) -> None:
        text = self.ask(Role.SUBMITTER, checks=[], **{"settings.batch": "0"})
        assert text.startswith("Not ready yet Checks: no check is chosen")
        assert "batch: 0 is out of bounds; set it to 1 or more" in text
        assert Validation.objects.count() == 0

    def test_an_unfinished_form_waits_and_a_viewer_gets_none(self) -> None:
        assert self.ask(model="").startswith("The framework runs, the memory and the time appear here")
        assert self.ask(Role.VIEWER) == "A preview is made for those who may submit."


class TestClone:
    def test_it_is_filled_with_what_was_asked(self) -> None:
        source = factories.make_validation(framework="trl", settings={"batch": 4, "lr": 0.0001}, inject="rmsnorm-eps")
        page = sign_in().get(f"/validations/new/?clone={source.pk}")
        assert f"Clone of {source.number}" in text_of(page)
        assert 'value="4"' in field_of(page, "batch")
        assert 'data-origin="0.0001"' in field_of(page, "lr")
        assert '<option value="rmsnorm-eps" selected>' in page.content.decode()

    def test_a_change_is_marked_when_the_form_comes_back(self) -> None:
        source = factories.make_validation(settings={"batch": 4})
        response = send(sign_in(), cloned_from=source.pk, **{"settings.batch": "8", "settings.lr": "x"})
        assert "field-changed" in field_of(response, "batch")
        assert "field-changed" not in field_of(response, "seed")

    def test_the_clone_names_its_source(self) -> None:
        source = factories.make_validation()
        send(sign_in(), cloned_from=source.pk)
        assert Validation.objects.exclude(pk=source.pk).get().cloned_from == source

    def test_a_source_that_is_gone_gives_a_plain_form(self) -> None:
        page = sign_in().get("/validations/new/?clone=99999")
        assert "New validation" in text_of(page)


class TestProfile:
    def test_the_form_is_filled_and_the_validation_counts_under_its_name(self) -> None:
        profile = factories.make_profile(settings={"batch": 3}, checks=["step.loss"])
        client = sign_in()
        page = client.get("/validations/new/?profile=nightly@1")
        assert 'value="3"' in field_of(page, "batch")
        assert re.findall(r'name="checks" value="([^"]+)" checked', page.content.decode()) == ["step.loss"]
        send(client, profile="nightly@1", checks=["step.loss"], **{"settings.batch": "3"})
        assert Validation.objects.get().profile == profile

    def test_what_differs_from_the_profile_does_not_count_under_its_name(self) -> None:
        factories.make_profile(settings={"batch": 3})
        client = sign_in()
        response = send(client, profile="nightly@1", **{"settings.batch": "2"})
        assert Validation.objects.get().profile is None
        assert "It differs from the profile nightly v1" in text_of(client.get(response["Location"]))


def test_what_was_asked_survives_the_way_through_the_form() -> None:
    asked = Submission(
        framework="trl",
        model="tiny:llama",
        data="tulu3_sample",
        checks=("run.completes", "step.loss"),
        settings={"batch": 3, "lr": 1e-05, "packing": False, "lora_targets": ("q_proj", "o_proj"), "precision": "bf16"},
        inject="rmsnorm-eps",
        full=True,
        queue="gpu",
        time_limit_s=90.0,
        memory_limit_bytes=2_500_000_000,
    )
    assert read_submission(read_clone(asked, source="7").values()) == asked


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (0.001, "0.001"), (1e-08, "1e-08"), (0.1234567, "0.1234567"), (("a", "b"), "a,b")],
)
def test_a_setting_is_written_as_a_person_types_it(value: object, text: str) -> None:
    assert write_value(value) == text


def test_every_check_says_what_it_catches_and_costs() -> None:
    for check in CHECKS.values():
        for head in ("Reference", "Catches", "Cannot see", "Cost"):
            assert read_paragraph(check.description, head), (check.name, head)


def test_an_error_of_no_drawn_field_is_in_the_summary() -> None:
    drawn = draw(Entries(), errors={SETTING + "gamma": "there is no setting 'gamma'", "checks": "none"})
    assert [(link.label, link.anchor) for link in drawn.errors] == [("Checks", "field-checks"), ("gamma", "")]


def test_queries_stay_bounded(django_assert_max_num_queries: Callable[..., Any]) -> None:
    for number in range(30):
        factories.make_model(f"/models/{number}")
        factories.make_profile(f"profile-{number}")
    client = sign_in()
    client.get("/validations/new/")  # makes the rows of the frameworks
    with django_assert_max_num_queries(MOST_QUERIES):
        client.get("/validations/new/")
