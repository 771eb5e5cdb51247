"""Captures over the API: uploaded in pieces, refused where they are not what they say, downloaded byte for byte."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.accounts.tokens import create_token
from plumbline_web.api.upload_store import CHUNK_BYTES, MOST_OPEN, SILENCE_S
from plumbline_web.artefacts.models import Artefact
from plumbline_web.artefacts.store import locate
from plumbline_web.validations.models import Capture
from tests.web.factories import make_capture, make_validation

pytestmark = pytest.mark.django_db

UPLOADS = "/api/v1/captures/uploads"
TENSORS = "step00001-rank00000.safetensors"


@pytest.fixture(autouse=True)
def data(settings: Any, tmp_path: Path) -> Path:
    settings.DATA = tmp_path
    return tmp_path


@pytest.fixture
def user() -> User:
    return User.objects.create(username="anna", role=Role.SUBMITTER)


@pytest.fixture
def headers(user: User) -> dict[str, str]:
    return bearer(user)


def bearer(user: User) -> dict[str, str]:
    _, secret = create_token(user, name="push", scopes=["read", "upload"], days=1)
    return {"Authorization": f"Bearer {secret}"}


def safetensors(values: bytes = struct.pack("<4f", 1, 2, 3, 4), **header: Any) -> bytes:
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, len(values)]} | header
    text = json.dumps({"loss": entry}).encode()
    return struct.pack("<Q", len(text)) + text + values


def manifest(**changes: Any) -> bytes:
    tensor = {
        "step": 1, "rank": 0, "micro_batch": 0, "kind": "loss", "name": "loss", "source_name": "loss", "field": None,
        "dtype": "torch.float32", "global_shape": [4], "slice": [[0, 4]], "placement": {}, "file": TENSORS,
        "representations": {"full": "loss"},
        "stats": {"count": 4, "mean": 2.5, "rms": 2.7, "norm": 5.4, "min": 1, "max": 4, "nonfinite": 0},
    }  # fmt: skip
    document = {
        "format": "plumbline-capture", "version": 1, "recorder": {}, "command": [], "exit_code": 0, "world_size": 0,
        "missing": [], "environment": {"packages": {"trl": "1.0", "transformers": "5.0"}}, "ranks": [], "files": [],
        "tensors": [tensor],
    } | changes  # fmt: skip
    return json.dumps(document).encode()


def announce(client: Client, headers: dict[str, str], files: dict[str, bytes], **changes: Any) -> Any:
    described = [
        {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()} | changes
        for name, content in files.items()
    ]
    return client.post(UPLOADS, json.dumps({"files": described}), content_type="application/json", headers=headers)


def send(client: Client, headers: dict[str, str], upload: str, number: int, content: bytes, *, offset: int = 0) -> Any:
    address = f"{UPLOADS}/{upload}/files/{number}?offset={offset}"
    return client.put(address, content, content_type="application/octet-stream", headers=headers)


def complete(client: Client, headers: dict[str, str], upload: str) -> Any:
    return client.post(f"{UPLOADS}/{upload}/complete", headers=headers)


def push(client: Client, headers: dict[str, str], files: dict[str, bytes]) -> Any:
    upload = announce(client, headers, files).json()["id"]
    for number, content in enumerate(files.values()):
        send(client, headers, upload, number, content)
    return complete(client, headers, upload)


def whole() -> dict[str, bytes]:
    return {"manifest.json": manifest(), TENSORS: safetensors()}


def test_a_file_that_is_not_the_recorded_one_makes_no_capture(
    client: Client, user: User, headers: dict[str, str]
) -> None:
    tensors = safetensors()
    entry = {"path": TENSORS, "rank": 0, "step": 1, "bytes": len(tensors)}
    recorded = entry | {"sha256": hashlib.sha256(tensors).hexdigest()}
    other = entry | {"sha256": hashlib.sha256(tensors[:-1]).hexdigest()}
    refused = push(client, headers, {"manifest.json": manifest(files=[other]), TENSORS: tensors})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == (
        f"This is no capture that can be read: {TENSORS}: is not what was recorded (its sha256 differs from the "
        "manifest's); copy the capture again."
    )
    assert push(client, headers, {"manifest.json": manifest(files=[recorded]), TENSORS: tensors}).status_code == 201


def test_a_step_whose_model_and_optimizer_could_not_be_recorded_becomes_a_capture(
    client: Client, user: User, headers: dict[str, str]
) -> None:
    step = {
        "step": 1, "model": None, "scalars": {}, "trainable": [], "frozen": [], "micro_batches": [], "clips": [],
        "optimizer": None, "rng": None,
    }  # fmt: skip
    files = {"manifest.json": manifest(ranks=[{"rank": 0, "steps": [step]}]), TENSORS: safetensors()}
    response = push(client, headers, files)
    assert (response.status_code, response.json()["steps"]) == (201, [1])


def test_an_upload_in_pieces_becomes_a_capture(client: Client, user: User, headers: dict[str, str]) -> None:
    files = whole()
    upload = announce(client, headers, files).json()
    assert [(file["name"], file["received"]) for file in upload["files"]] == [("manifest.json", 0), (TENSORS, 0)]
    send(client, headers, upload["id"], 0, files["manifest.json"])
    for start in range(0, len(files[TENSORS]), 50):
        send(client, headers, upload["id"], 1, files[TENSORS][start : start + 50], offset=start)
    done = complete(client, headers, upload["id"])
    assert done.status_code == 201
    capture = done.json()
    assert (capture["framework"], capture["tensors"], capture["uploaded_by"]) == ("trl", 1, "anna")
    assert capture["size"] == sum(map(len, files.values()))
    assert {file["name"]: file["sha256"] for file in capture["files"]} == {
        name: hashlib.sha256(content).hexdigest() for name, content in files.items()
    }


def test_completing_twice_makes_one_capture(client: Client, headers: dict[str, str], data: Path) -> None:
    files = whole()
    upload = announce(client, headers, files).json()["id"]
    for number, content in enumerate(files.values()):
        send(client, headers, upload, number, content)
    first, second = complete(client, headers, upload), complete(client, headers, upload)
    assert [first.status_code, second.status_code] == [201, 200]
    assert first.json() == second.json()
    assert Capture.objects.count() == 1
    assert send(client, headers, upload, 0, b"x").status_code == 409
    assert not (data / "uploads" / upload / "content").exists()


def test_an_upload_goes_on_where_it_broke_off(client: Client, headers: dict[str, str]) -> None:
    files = whole()
    upload = announce(client, headers, files).json()["id"]
    send(client, headers, upload, 1, files[TENSORS][:40])
    repeated = send(client, headers, upload, 1, files[TENSORS][:40])
    assert (repeated.status_code, repeated.json()["error"]["code"]) == (409, "wrong_offset")
    assert repeated.json()["error"]["fields"] == {"offset": "40"}
    state = client.get(f"{UPLOADS}/{upload}", headers=headers).json()
    assert state["files"][1]["received"] == 40
    early = complete(client, headers, upload)
    assert (early.status_code, early.json()["error"]["code"]) == (409, "incomplete")
    send(client, headers, upload, 1, files[TENSORS][40:], offset=40)
    send(client, headers, upload, 0, files["manifest.json"])
    assert complete(client, headers, upload).status_code == 201


@pytest.mark.parametrize(
    "name",
    [
        "../manifest.json",
        "/etc/passwd",
        "a/b.safetensors",
        "x.pkl",
        "..",
        "",
        "a\0.safetensors",
        ".hidden.safetensors",
        "ä.safetensors",
        "manifest.json/",
        "x" * 200 + ".safetensors",
        "MANIFEST.JSON",
    ],
)
def test_a_name_that_is_no_plain_one_is_refused(client: Client, headers: dict[str, str], data: Path, name: str) -> None:
    response = announce(client, headers, {"manifest.json": manifest(), name: b""})
    assert (response.status_code, list(response.json()["error"]["fields"])) == (400, ["files.1.name"])
    assert not (data / "uploads").exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"size": -1}, "size"),
        ({"size": True}, "size"),
        ({"size": "1"}, "size"),
        ({"sha256": "A" * 64}, "sha256"),
        ({"sha256": None}, "sha256"),
        ({"name": 3}, "name"),
    ],
)
def test_a_wrong_announcement_names_its_entry(
    client: Client, headers: dict[str, str], change: dict[str, Any], field: str
) -> None:
    response = announce(client, headers, {"manifest.json": manifest()}, **change)
    assert (response.status_code, list(response.json()["error"]["fields"])) == (400, [f"files.0.{field}"])


def test_a_directory_without_a_manifest_is_no_capture(client: Client, headers: dict[str, str]) -> None:
    response = announce(client, headers, {TENSORS: safetensors()})
    assert "has no manifest.json" in response.json()["error"]["fields"]["files"]


def test_too_many_bytes_are_refused_before_they_come(client: Client, headers: dict[str, str]) -> None:
    response = announce(client, headers, {TENSORS: b""} | {"manifest.json": b""}, size=5 << 30)
    assert response.status_code == 400  # such a manifest
    large = [{"name": name, "size": size, "sha256": "0" * 64} for name, size in
             (("manifest.json", 10), ("a.safetensors", 9 << 30))]  # fmt: skip
    response = client.post(UPLOADS, json.dumps({"files": large}), content_type="application/json", headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "too_large")


def test_a_chunk_beyond_what_was_announced_is_refused(client: Client, headers: dict[str, str], data: Path) -> None:
    upload = announce(client, headers, whole()).json()["id"]
    response = send(client, headers, upload, 1, safetensors() + b"more")
    assert response.status_code == 413
    assert (data / "uploads" / upload / "content" / TENSORS).stat().st_size == 0
    assert send(client, headers, upload, 1, b"x" * (CHUNK_BYTES + 1)).status_code == 413
    assert send(client, headers, upload, 2, b"x").status_code == 404


def test_bytes_that_are_not_the_announced_ones_make_no_capture(client: Client, headers: dict[str, str]) -> None:
    files = whole()
    upload = announce(client, headers, files).json()["id"]
    send(client, headers, upload, 0, files["manifest.json"])
    send(client, headers, upload, 1, files[TENSORS][:-1] + b"\xff")
    response = complete(client, headers, upload)
    assert (response.status_code, list(response.json()["error"]["fields"])) == (400, ["files.1.sha256"])
    assert not Capture.objects.exists()
    assert not Artefact.objects.exists()


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({TENSORS: b"\x80\x04pickle"}, "no safetensors file"),
        ({TENSORS: b"\xff" * 32}, "no safetensors file"),
        ({TENSORS: struct.pack("<Q", 4) + b"null"}, "no valid safetensors header"),
        ({TENSORS: safetensors(data_offsets=[0, 1 << 40])}, "offsets that do not fit"),
        ({"manifest.json": b"{}"}, "capture"),
        ({"manifest.json": b"[" * 100_000}, "capture"),
        ({"manifest.json": manifest(version=99)}, "99"),
        ({"manifest.json": manifest(tensors=[{"file": "../../etc/passwd"}])}, "capture"),
        ({"manifest.json": manifest(ranks=None)}, "capture"),
    ],
)
def test_what_cannot_be_read_as_a_capture_is_refused(
    client: Client, headers: dict[str, str], data: Path, files: dict[str, bytes], sentence: str
) -> None:
    response = push(client, headers, whole() | files)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert sentence in message
    assert str(data) not in message
    assert not Capture.objects.exists()


def test_an_upload_is_its_owners_alone(client: Client, headers: dict[str, str]) -> None:
    upload = announce(client, headers, whole()).json()["id"]
    stranger = bearer(User.objects.create(username="ben", role=Role.ADMINISTRATOR))
    assert client.get(f"{UPLOADS}/{upload}", headers=stranger).status_code == 404
    assert send(client, stranger, upload, 0, b"x").status_code == 404
    assert client.delete(f"{UPLOADS}/{upload}", headers=stranger).status_code == 404
    assert client.delete(f"{UPLOADS}/{upload}", headers=headers).status_code == 204
    assert client.get(f"{UPLOADS}/{upload}", headers=headers).status_code == 404


def test_one_has_a_bounded_number_of_uploads_and_silent_ones_go(
    client: Client, headers: dict[str, str], data: Path
) -> None:
    uploads = [announce(client, headers, whole()).json()["id"] for _ in range(MOST_OPEN)]
    assert announce(client, headers, whole()).status_code == 409
    old = (data / "uploads" / uploads[0]).stat().st_mtime - SILENCE_S - 60
    for path in ((data / "uploads" / uploads[0]), *(data / "uploads" / uploads[0]).rglob("*")):
        os.utime(path, (old, old))
    assert announce(client, headers, whole()).status_code == 201
    assert client.get(f"{UPLOADS}/{uploads[0]}", headers=headers).status_code == 404


def test_a_download_is_what_was_uploaded(client: Client, headers: dict[str, str]) -> None:
    files = whole()
    capture = push(client, headers, files).json()["id"]
    for name, content in files.items():
        response = client.get(f"/api/v1/captures/{capture}/files/{name}", headers=headers)
        assert response.getvalue() == content
        assert response.headers["ETag"] == f'"{hashlib.sha256(content).hexdigest()}"'
    response = client.get(f"/api/v1/captures/{capture}/archive", headers=headers)
    body = response.getvalue()
    assert len(body) == int(response.headers["Content-Length"])
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        found = {member.name: archive.extractfile(member) for member in archive}
        assert {name: file.read() for name, file in found.items() if file} == {
            f"capture-{capture}/{name}": content for name, content in files.items()
        }
    assert client.get(f"/api/v1/captures/{capture}/files/..%2fmanifest.json", headers=headers).status_code == 404


def test_a_file_that_is_gone_from_the_disk_is_said_before_the_first_byte(
    client: Client, headers: dict[str, str]
) -> None:
    capture = push(client, headers, whole()).json()
    locate(capture["files"][1]["sha256"]).unlink()
    for address in (f"files/{capture['files'][1]['name']}", "archive"):
        response = client.get(f"/api/v1/captures/{capture['id']}/{address}", headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "missing_artefact")
        assert "is missing or changed on disk" in response.json()["error"]["message"]


def test_captures_are_listed_with_their_validations(
    client: Client, user: User, headers: dict[str, str], django_assert_max_num_queries: Any
) -> None:
    validation = make_validation(owner=user, state="queued")
    recorded = [make_capture(run) for run in validation.runs.all()]
    uploaded = push(client, headers, whole()).json()["id"]
    with django_assert_max_num_queries(5):
        rows = client.get("/api/v1/captures?limit=10", headers=headers).json()["rows"]
    assert [row["id"] for row in rows] == [uploaded, *(capture.pk for capture in reversed(recorded))]
    assert [row["validations"] for row in rows] == [[], [validation.number], [validation.number]]


def test_a_token_without_the_scope_uploads_nothing(client: Client, user: User) -> None:
    _, secret = create_token(user, name="reader", scopes=["read"], days=1)
    assert announce(client, {"Authorization": f"Bearer {secret}"}, whole()).status_code == 403
