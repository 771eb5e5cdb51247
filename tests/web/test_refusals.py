"""What nobody types by mistake, and programs send: every page and route answers with a sentence, and none breaks."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from checks.errors import BadRequest
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.logs import HideSecrets
from plumbline_web.accounts.models import User
from plumbline_web.settings import LOGGING
from plumbline_web.validations.models import Capture, Validation
from plumbline_web.validations.planning import resolve
from plumbline_web.validations.roots import MOST_ENTRIES, explain_refusal
from plumbline_web.validations.submission import InvalidSubmission, read_submission
from tests.web import factories
from tests.web.pages import sign_in, text_of
from tests.web.test_api_captures import TENSORS, announce, bearer, complete, manifest, push, safetensors, send, whole

pytestmark = pytest.mark.django_db

ASKED: dict[str, Any] = {"framework": "transformers", "model": "tiny:qwen3", "data": "gsm8k_sample"}
API = "/api/v1/validations"
CIRCLE = "cannot be followed: its links lead in a circle; correct the link"
SURROGATE = "holds half a character (a lone surrogate), which no file name has; remove it"


@pytest.fixture
def root(tmp_path: Path, settings: Settings) -> Path:
    directory = tmp_path / "models"
    directory.mkdir()
    settings.ROOTS = [directory]
    return directory


@pytest.fixture
def data(tmp_path: Path, settings: Settings) -> Path:
    settings.DATA = tmp_path
    return tmp_path


@pytest.fixture
def administrator() -> Client:
    return sign_in(Role.ADMINISTRATOR)


def api_fields(client: Client, **changes: Any) -> dict[str, str]:
    response = client.post(API, json.dumps(ASKED | changes), content_type="application/json")
    assert response.status_code == 400
    fields: dict[str, str] = response.json()["error"]["fields"]
    return fields


@pytest.mark.parametrize("name", ["model", "data"])
def test_links_in_a_circle_and_endless_names_are_errors_of_their_field(
    administrator: Client, root: Path, name: str
) -> None:
    (root / "loop").symlink_to("loop")
    for path, sentence in ((root / "loop", CIRCLE), (root / ("x" * 300), "cannot be read (File name too long)")):
        assert sentence in api_fields(administrator, **{name: str(path)})[name]
        for address in ("/validations/new/", "/validations/new/preview/"):
            page = administrator.post(address, ASKED | {name: str(path), "checks": "step.loss", "key": "k"})
            assert page.status_code == (400 if address.endswith("new/") else 200)
            assert sentence in text_of(page)
    assert not Validation.objects.exists()


def test_a_profile_and_a_schedule_refuse_a_path_that_leads_in_a_circle(administrator: Client, root: Path) -> None:
    (root / "loop").symlink_to("loop")
    made = administrator.post("/schedules/profiles/new/", {"name": "p", "dataset": str(root / "loop")})
    profile = factories.make_profile()
    scheduled = administrator.post(
        "/schedules/new/",
        {
            "profile": profile.pk,
            "framework": "transformers",
            "model": str(root / "loop"),
            "trigger": "nightly",
            "hour": 2,
        },
    )
    for page in (made, scheduled):
        assert page.status_code == 400
        assert CIRCLE in text_of(page)


def test_half_a_character_is_refused_in_every_field(administrator: Client) -> None:
    half = "a\ud800"
    for name in ("framework", "model", "data", "inject", "queue"):
        assert api_fields(administrator, **{name: half})[name].startswith((SURROGATE, "'' is none"))
    assert api_fields(administrator, checks=[half]) == {"checks": SURROGATE}
    assert api_fields(administrator, settings={"lora_targets": half}) == {"settings.lora_targets": SURROGATE}
    token = administrator.post(
        "/api/v1/tokens", json.dumps({"name": half, "scopes": ["read"], "days": 1}), content_type="application/json"
    )
    assert (token.status_code, list(token.json()["error"]["fields"])) == (400, ["name"])


def test_links_inside_a_directory_may_not_lead_out_of_the_roots(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.json").write_text("{}")
    for place in ("direct", "nested/train", "linked"):
        (root / place).mkdir(parents=True)
    (root / "direct" / "config.json").symlink_to(outside / "config.json")
    (root / "nested" / "train" / "state.json").symlink_to(outside / "config.json")
    (root / "linked" / "train").symlink_to(root / "nested" / "train")
    found = explain_refusal(str(root / "direct"), [root])
    assert found.startswith(f"config.json in {root}/direct is a link that leads out of the allowed directories; copy")
    assert "train/state.json in" in explain_refusal(str(root / "nested"), [root])
    assert "train/state.json in" in explain_refusal(str(root / "linked"), [root])
    assert explain_refusal(str(root / "direct"), [root, outside]) == ""


def test_links_that_stay_and_what_is_not_there_are_left_to_the_reader(root: Path) -> None:
    (root / "blobs").mkdir()
    (root / "snapshot").mkdir()
    (root / "blobs" / "1").write_text("{}")
    (root / "snapshot" / "config.json").symlink_to("../blobs/1")
    assert explain_refusal(str(root / "snapshot"), [root]) == ""
    assert explain_refusal(str(root / "nothing"), [root]) == ""
    (root / "snapshot" / "loop").symlink_to("loop")
    assert "loop in" in explain_refusal(str(root / "snapshot"), [root])


def test_a_directory_of_too_many_entries_is_refused_rather_than_half_looked_at(root: Path) -> None:
    for number in range(MOST_ENTRIES):
        (root / f"{number}").touch()
    assert explain_refusal(str(root), [root]) == ""
    (root / "more").touch()
    assert "holds more than 1,000 files and directories" in explain_refusal(str(root), [root])


def test_the_last_day_of_the_calendar_is_a_day(administrator: Client) -> None:
    validation = factories.make_validation(runs=False)
    for day in ("9999-12-31", "9999-12-31T23:59:59.999999", "9999-12-31T00:00+23:00"):
        assert administrator.get("/validations/", {"until": day}).status_code == 200
        assert administrator.get("/validations/", {"since": day}).status_code == 200
        lines: Any = administrator.get("/validations.csv", {"until": day})
        assert b"".join(lines.streaming_content).decode().count("\n") == 2
        rows = administrator.get(API, {"until": day}).json()["rows"]
        assert [row["id"] for row in rows] == [validation.number]
    assert administrator.get("/validations/", {"until": "9999-12-31T23:59-23:00"}).status_code == 400


def test_null_characters_in_hidden_fields_and_addresses_are_refused(administrator: Client) -> None:
    validation = factories.make_validation(runs=False)
    for hidden in ({"key": "a\0"}, {"profile": "\0@1"}):
        assert administrator.post("/validations/new/", ASKED | hidden).status_code == 400
    assert administrator.get("/validations/new/?profile=%00@1").status_code == 400
    assert administrator.get(f"/validations/{validation.number}/checks/%00/").status_code == 404
    assert administrator.get("/api/v1/captures/1/files/%00").status_code == 404
    assert administrator.get("/?profile=%00@1").status_code == 200
    assert administrator.get(f"/?profile=a@{'9' * 5000}").status_code == 200
    assert Validation.objects.count() == 1


def test_an_unknown_filter_gives_no_row(administrator: Client) -> None:
    factories.make_validation(runs=False)
    page = administrator.get("/validations/?zzz=1")
    assert page.status_code == 400
    assert "zzz : there is no such filter; the filters are text, framework" in text_of(page)
    assert 'name="v"' not in page.content.decode()
    for form in ("csv", "json"):
        answer = administrator.get(f"/validations.{form}?zzz=1")
        assert answer.status_code == 400
        assert answer.content.decode().startswith("zzz: there is no such filter; the filters are text, framework")
        assert administrator.get(f"/validations.{form}?page=2").status_code == 200


@pytest.mark.parametrize("form", ["csv", "json"])
def test_curves_of_what_is_no_validation_are_not_exported(administrator: Client, form: str) -> None:
    for query, sentence in (
        ("v=x", "v: 'x' is no validation; give numbers such as V-12\n"),
        ("v=987654321", "v: there is no V-987654321; choose one from the list\n"),
        ("", "v: is missing; give numbers of validations, such as ?v=12\n"),
    ):
        answer = administrator.get(f"/compare.{form}?{query}")
        assert (answer.status_code, answer.content.decode()) == (400, sentence)


TENSOR = json.loads(manifest())["tensors"][0]


def with_number(text: str, **names: Any) -> bytes:
    """A manifest with a number that Python would not write."""
    return manifest(**names).replace(b'"NUMBER"', text.encode())


@pytest.mark.parametrize(
    ("content", "field"),
    [
        *((with_number(number, ranks=[{"rank": 0, "steps": [{"step": "NUMBER"}]}]), "ranks.0.steps.0.step")
          for number in (str(2**40), "1e300", "1" + "0" * 400, "-1", "1e400", "true")),
        (with_number("1" + "0" * 30, ranks=[{"rank": "NUMBER", "steps": []}]), "ranks.0.rank"),
        (with_number("1" + "0" * 30, tensors=[TENSOR | {"rank": "NUMBER"}]), "tensors.0.rank"),
        (with_number("1e400", tensors=[TENSOR | {"global_shape": ["NUMBER"]}]), "tensors.0.global_shape"),
        (manifest(environment={"packages": 7}), "environment.packages"),
        (manifest(environment={"packages": ["trl"]}), "environment.packages"),
        (manifest(environment=[1]), "environment"),
        (manifest(ranks=[3]), "ranks.0"),
        (manifest(tensors={}), "tensors"),
    ],
)  # fmt: skip
def test_a_wrong_field_of_a_manifest_is_named(client: Client, data: Path, content: bytes, field: str) -> None:
    headers = bearer(User.objects.create(username="anna", role=Role.SUBMITTER))
    response = push(client, headers, {"manifest.json": content, TENSORS: safetensors()})
    assert response.status_code == 400
    error = response.json()["error"]
    assert list(error["fields"]) == [f"manifest.json: {field}"]
    assert "argument" not in str(error)
    assert not Capture.objects.exists()


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({TENSORS: safetensors(shape=["INF"]).replace(b'"INF"', b"1e400")}, f"{TENSORS}: has a header whose shape is"),
        ({"manifest.json": manifest(ranks=[{"rank": 0, "steps": [{"step": 1}]}])}, "lacks the field 'model'"),
        ({"manifest.json": manifest(files=[{"path": 5, "bytes": 1}])}, "manifest.json does not have the fields"),
    ],
)
def test_what_the_interpreter_says_of_a_wrong_capture_stays_inside(
    client: Client, data: Path, files: dict[str, bytes], sentence: str
) -> None:
    headers = bearer(User.objects.create(username="anna", role=Role.SUBMITTER))
    content = whole() | files
    if TENSORS in files:  # its header lost two characters; the length before it must say so
        head = len(content[TENSORS]) - 8 - 16
        content[TENSORS] = head.to_bytes(8, "little") + content[TENSORS][8:]
    response = push(client, headers, content)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert sentence in message
    assert "argument" not in message


def full(*_args: object, **_kwargs: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_507_at_every_step_of_an_upload(
    client: Client, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = bearer(User.objects.create(username="anna", role=Role.SUBMITTER))
    files = whole()
    upload = announce(client, headers, files).json()["id"]
    for number, content in enumerate(files.values()):
        send(client, headers, upload, number, content)
    answers = []
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        answers.append(complete(client, headers, upload))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", full)
        answers.append(send(client, headers, upload, 0, b"x"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "touch", full)
        answers.append(announce(client, headers, files))
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
        assert answer.json()["error"]["message"].startswith("Insufficient storage: the server's disk is full")
    assert [path.name for path in (data / "uploads").iterdir() if path.is_dir()] == [upload]
    assert complete(client, headers, upload).status_code == 201


def test_a_full_disk_is_507_on_the_form_and_in_the_api(
    administrator: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Path, "mkdir", full)
    page = administrator.post("/validations/new/", ASKED | {"checks": "step.loss", "key": "k"})
    assert (page.status_code, "Insufficient storage" in text_of(page)) == (507, True)
    answer = administrator.post(API, json.dumps(ASKED), content_type="application/json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")


def test_what_is_wrong_in_a_file_is_an_error_of_the_field_that_names_it(root: Path) -> None:
    (root / "qwen").mkdir()
    (root / "qwen" / "config.json").write_text("{")
    (root / "rows.txt").write_text("x")
    broken = str(root / "qwen")
    for model in (broken, f"{broken}/config.json"):
        with pytest.raises(InvalidSubmission) as caught:
            resolve(read_submission(ASKED | {"model": model}))
        assert list(caught.value.errors) == ["model"]
        assert caught.value.errors["model"].startswith("config.json: is not JSON (")
        assert isinstance(caught.value.__cause__, BadRequest)


@pytest.mark.parametrize(
    "line",
    [("%s: %s", "Gone", "/sign-in/s3cr-et/"), ("Forbidden (%s): %s", "CSRF cookie not set.", "/sign-in/s3cr-et/")],
)
def test_the_log_never_holds_the_secret_of_a_link(line: tuple[str, ...]) -> None:
    record = logging.LogRecord("django.security.csrf", logging.WARNING, "", 0, line[0], line[1:], None)
    assert HideSecrets().filter(record)
    assert record.getMessage().endswith(": /sign-in/…/")
    handlers: Any = LOGGING["handlers"]
    assert handlers["console"]["filters"] == ["secrets"]


def test_a_refused_link_is_logged_without_its_secret(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(HideSecrets())
    assert client.get("/sign-in/s3cr-et/").status_code == 410
    assert "/sign-in/…/" in caplog.text
    assert "s3cr-et" not in caplog.text
