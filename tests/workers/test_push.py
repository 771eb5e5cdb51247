"""`plumbline push` against a real server: it goes on where it broke off, and has a sentence for each trouble."""

from __future__ import annotations

import hashlib
import json
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pytest_django.live_server_helper import LiveServer

from checks.errors import BadRequest, CaptureError
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.accounts.tokens import create_token
from plumbline_web.validations.models import Capture, Validation
from tests.web.factories import passing_verdicts
from tests.web.test_api_captures import TENSORS, manifest, safetensors
from tests.workers.test_client import end_with, wait_for
from workers import cli
from workers.client import Client
from workers.push.directory import hash_files, read_directory
from workers.push.sending import Sent, send_files

ASKED = ["--framework", "trl", "--model", "tiny:qwen3", "--data", "gsm8k_sample"]
EXTRA = "extra.safetensors"


@pytest.fixture(autouse=True)
def data(settings: Any, tmp_path: Path) -> Path:
    settings.DATA = tmp_path / "data"
    return tmp_path / "data"


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A small capture, with a file of several chunks beside it."""
    directory = tmp_path / "capture"
    directory.mkdir()
    tensors, files = safetensors(), [{"path": TENSORS, "rank": 0, "step": 1, "bytes": len(safetensors())}]
    (directory / TENSORS).write_bytes(tensors)
    (directory / EXTRA).write_bytes(safetensors(b"\0" * 1_000_000, dtype="U8", shape=[1_000_000]))
    (directory / "manifest.json").write_bytes(manifest(files=files))
    return directory


@pytest.fixture
def user(transactional_db: None) -> User:
    return User.objects.create(username="anna", role=Role.SUBMITTER)


@pytest.fixture
def server(live_server: LiveServer, user: User, monkeypatch: pytest.MonkeyPatch) -> LiveServer:
    monkeypatch.setenv("PLUMBLINE_URL", live_server.url)
    monkeypatch.setenv("NO_PROXY", "*")
    use_token(monkeypatch, user, "read", "upload", "submit")
    return live_server


def use_token(monkeypatch: pytest.MonkeyPatch, user: User, *scopes: str) -> str:
    secret = create_token(user, name="ci", scopes=list(scopes), days=1)[1]
    monkeypatch.setenv("PLUMBLINE_TOKEN", secret)
    return secret


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline_web.api.uploads.CHUNK_BYTES", 100_000)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = cli.main(["push", *arguments])
    return code, capsys.readouterr().err


def connect(server: LiveServer, token: str) -> Client:
    return Client(server.url, token, say=lambda text: None)


def test_a_directory_becomes_a_validation_and_the_same_command_finds_it_again(
    server: LiveServer, capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (capture / "log.json").write_text("{}")
    code, said = run(capsys, str(capture), *ASKED, "--set", "batch=1")
    validation = Validation.objects.get()
    assert code == 0
    assert "not sent, for no capture has it: log.json" in said
    assert said.endswith(f"plumbline: V-{validation.pk} at {server.url}/validations/V-{validation.pk}/\n")
    assert (validation.pushed, validation.settings) == (Capture.objects.get(), {"batch": 1})
    assert {file.name for file in Capture.objects.get().files.all()} == {"manifest.json", TENSORS, EXTRA}
    assert run(capsys, str(capture), *ASKED, "--set", "batch=1")[0] == 0
    assert Validation.objects.count() == 1
    assert run(capsys, str(capture), *ASKED, "--set", "batch=1", "--again")[0] == 0
    assert (Validation.objects.count(), Capture.objects.filter(uploaded_by__isnull=False).count()) == (2, 1)


def test_a_killed_command_goes_on_where_it_was(
    server: LiveServer, user: User, capture: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = use_token(monkeypatch, user, "read", "upload", "submit")
    files = hash_files(read_directory(capture), on_bytes=lambda name, count: None)

    class Killed(BaseException):
        pass

    def die(sent: Sent) -> None:
        if sent.name == EXTRA and sent.done > 350_000:
            raise Killed

    with connect(server, token) as client, pytest.raises(Killed):
        send_files(client, files, on_sent=die)
    assert not Capture.objects.exists()
    seen: list[int] = []
    with connect(server, token) as client:
        number = send_files(client, files, on_sent=lambda sent: seen.append(sent.done))
    before = files[0].size + 400_000
    assert [done for done in seen if files[0].size < done <= before] == [before]  # none of it was sent again
    assert seen[-1] == sum(file.size for file in files)
    assert Capture.objects.get().pk == number


def test_two_pushes_of_one_directory_at_once_make_one_capture(
    server: LiveServer, user: User, capture: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = use_token(monkeypatch, user, "read", "upload", "submit")
    files = hash_files(read_directory(capture), on_bytes=lambda name, count: None)
    numbers: list[int] = []

    def push() -> None:
        with connect(server, token) as client:
            numbers.append(send_files(client, files, on_sent=lambda sent: None))

    threads = [threading.Thread(target=push) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert numbers == [Capture.objects.get().pk] * 2


def test_a_file_that_changes_while_it_is_sent_makes_no_capture(
    server: LiveServer, user: User, capture: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = use_token(monkeypatch, user, "read", "upload", "submit")
    files = hash_files(read_directory(capture), on_bytes=lambda name, count: None)
    content = bytearray((capture / EXTRA).read_bytes())
    content[-1] ^= 1
    (capture / EXTRA).write_bytes(content)
    with connect(server, token) as client, pytest.raises(CaptureError, match="changed while it was sent") as error:
        send_files(client, files, on_sent=lambda sent: None)
    assert error.value.file.endswith(EXTRA)
    assert not Capture.objects.exists()
    assert not [path for path in (data / "uploads").iterdir() if path.is_dir()]


def test_an_upload_that_is_discarded_meanwhile_is_begun_anew(
    server: LiveServer, user: User, capture: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = use_token(monkeypatch, user, "read", "upload", "submit")
    files = hash_files(read_directory(capture), on_bytes=lambda name, count: None)
    with connect(server, token) as client:
        thrown: list[str] = []

        def discard(sent: Sent) -> None:
            if not thrown and sent.name == EXTRA and sent.done > 500_000:
                thrown.append(client.announce([file.announce() for file in files])["id"])
                client.discard_upload(thrown[0])

        assert send_files(client, files, on_sent=discard) == Capture.objects.get().pk
    assert thrown


def test_an_interrupted_command_says_that_it_goes_on(server: LiveServer, capture: Path, data: Path) -> None:
    with (capture / EXTRA).open("r+b") as file:  # sparse, and long enough to be caught at
        header = json.dumps({"x": {"dtype": "U8", "shape": [600_000_000], "data_offsets": [0, 600_000_000]}}).encode()
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 600_000_000)
    command = [sys.executable, "-m", "workers.cli", "push", str(capture), *ASKED]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    wait_for(lambda: list((data / "uploads").glob("*/content/manifest.json")))
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "left; the same command goes on where this one was" in error
    assert not Capture.objects.exists()


def test_with_wait_it_prints_the_verdicts_and_ends_with_their_code(
    server: LiveServer, capture: Path, tmp_path: Path
) -> None:
    report = tmp_path / "result.json"
    command = [sys.executable, "-m", "workers.cli", "push", str(capture), *ASKED, "--wait", "--json", str(report)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    end_with(wait_for(Validation.objects.first), passing_verdicts())
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert "step.loss" in out
    assert json.loads(report.read_text())["exit_code"] == 0


def test_a_bad_request_is_code_3_and_one_sentence(
    capture: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLUMBLINE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("PLUMBLINE_TOKEN", "plb_x")
    for arguments, sentence in (
        ([], f"framework: {capture} does not say what was run; give --framework, --model, --data."),
        ([*ASKED[:2]], f"model: {capture} does not say what was run; give --model, --data."),
        ([*ASKED, "--set", "batch=0"], "batch: 0 is out of bounds"),
        ([*ASKED, "--json", "x.json"], "json: there is a result only once it is judged; add --wait."),
        (["--framework", "My trainer", *ASKED[2:]], "framework: 'My trainer' is no name of a framework"),
        ([*ASKED[:2], "--model", "tiny:qwen33", *ASKED[4:]], "model: tiny:qwen33 is no family that Plumbline knows"),
        ([*ASKED, "--checks", "step.los"], "checks: there is no check 'step.los'; did you mean step.loss"),
    ):
        code, said = run(capsys, str(capture), *arguments)
        assert code == 3
        assert sentence in said


@pytest.mark.parametrize("names", ["", "step.loss,"])
def test_an_empty_name_of_a_check_is_refused(capture: Path, capsys: pytest.CaptureFixture[str], names: str) -> None:
    with pytest.raises(SystemExit) as ending:
        cli.main(["push", str(capture), *ASKED, "--checks", names])
    assert ending.value.code == 3
    assert f"argument --checks: {names!r} has an empty name" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_code_2(
    capture: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLUMBLINE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("PLUMBLINE_TOKEN", "plb_x")
    monkeypatch.setenv("NO_PROXY", "*")
    assert run(capsys, str(capture), *ASKED) == (
        2,
        "plumbline: PLUMBLINE_URL: http://127.0.0.1:9 did not answer (connection refused); check the address, and "
        "that it runs.\n",
    )


def test_what_the_server_refuses_is_shown_and_nothing_is_queued(
    server: LiveServer, capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(capsys, str(capture), *ASKED[:2], "--model", "/etc", *ASKED[4:])
    assert code == 3
    assert "model: /etc is not under an allowed directory" in said
    assert not Validation.objects.exists()


def test_a_token_that_may_not_submit_is_said_before_anything_is_sent(
    server: LiveServer, user: User, capture: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_token(monkeypatch, user, "read", "upload")
    code, said = run(capsys, str(capture), *ASKED)
    assert (code, Capture.objects.count()) == (3, 0)
    assert "the token has not the scope submit; make one with read, upload, submit under Account." in said
    monkeypatch.setenv("PLUMBLINE_TOKEN", "plb_" + "x" * 43)
    assert run(capsys, str(capture), *ASKED)[1].startswith("plumbline: PLUMBLINE_TOKEN: The token is unknown")
    monkeypatch.delenv("PLUMBLINE_TOKEN")
    assert "was given without a token" in run(capsys, str(capture), *ASKED)[1]
    monkeypatch.delenv("PLUMBLINE_URL")
    assert run(capsys, str(capture), *ASKED) == (
        3,
        "plumbline: PLUMBLINE_URL: is not set; set it to the server's address, such as "
        "https://plumbline.example.org.\n",
    )


def test_a_person_who_may_not_is_said_of_the_token(
    server: LiveServer, user: User, capture: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    user.role = Role.VIEWER
    user.save()
    code, shown = run(capsys, str(capture), *ASKED)
    said = "This needs the role submitter, and you are viewer; ask an administrator"
    assert (code, shown.splitlines()[-1]) == (3, f"plumbline: PLUMBLINE_TOKEN: {said}.")
    user.role = Role.SUBMITTER
    user.save()
    use_token(monkeypatch, user, "upload", "submit")
    said = "The token has the scopes submit, upload, and this needs read; make another one"
    assert run(capsys, str(capture), *ASKED) == (3, f"plumbline: PLUMBLINE_TOKEN: {said}.\n")


def test_a_pickle_is_refused_by_the_server_and_leaves_nothing(
    server: LiveServer, capture: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (capture / EXTRA).write_bytes(pickle.dumps({"weights": b"x" * 1000}))
    code, said = run(capsys, str(capture), *ASKED)
    assert code == 3
    assert f"{EXTRA}: is truncated or no safetensors file" in said
    assert not Capture.objects.exists()
    assert not [path for path in (data / "uploads").iterdir() if path.is_dir()]


def test_what_the_manifest_says_was_run_need_not_be_said_again(
    server: LiveServer, capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"framework": "trl", "model": "tiny:qwen3", "data": "gsm8k_sample", "settings": {"batch": 1, "lr": 0.5}}
    document = json.loads((capture / "manifest.json").read_text()) | {"run_spec": said}
    (capture / "manifest.json").write_text(json.dumps(document))
    assert run(capsys, str(capture), "--set", "lr=0.25", "--checks", "step.loss")[0] == 0
    validation = Validation.objects.get()
    assert (validation.framework.name, validation.settings) == ("trl", {"batch": 1, "lr": 0.25})
    assert validation.checks == ["step.loss"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda path: (path / "manifest.json").unlink(), "has no manifest.json"),
        (lambda path: (path / "manifest.json").write_text("{"), "is not the manifest of a capture"),
        (lambda path: (path / "manifest.json").write_text('{"files": 3}'), "is not the manifest of a capture"),
        (lambda path: (path / TENSORS).unlink(), "cannot be read"),
        (lambda path: (path / TENSORS).write_bytes(b"x"), "has 1 bytes where the manifest says"),
        (
            lambda path: (path / "manifest.json").write_text('{"files": [{"path": "../x.safetensors", "bytes": 1}]}'),
            "names a file that no capture has",
        ),
    ],
)
def test_a_directory_that_is_no_whole_capture_is_refused_here(capture: Path, change: Any, sentence: str) -> None:
    change(capture)
    with pytest.raises((BadRequest, CaptureError), match=sentence):
        read_directory(capture)


def test_a_file_that_was_damaged_on_its_way_is_refused_before_anything_is_sent(
    server: LiveServer, capture: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((capture / "manifest.json").read_text())
    document["files"][0]["sha256"] = hashlib.sha256((capture / TENSORS).read_bytes()).hexdigest()
    (capture / "manifest.json").write_text(json.dumps(document))
    assert run(capsys, str(capture), *ASKED)[0] == 0
    content = bytearray((capture / TENSORS).read_bytes())
    content[-1] ^= 1
    (capture / TENSORS).write_bytes(content)
    code, said = run(capsys, str(capture), *ASKED)
    assert (code, Capture.objects.count()) == (3, 1)
    assert said.endswith(
        f"plumbline: {capture / TENSORS}: is not what was recorded (its sha256 differs from the manifest's); "
        "copy the capture again.\n"
    )
    assert len([path for path in (data / "uploads").iterdir() if path.is_dir()]) == 1


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="is no directory"):
        read_directory(tmp_path / "none")


def test_the_recorder_keeps_what_the_run_is_said_to_be(tmp_path: Path) -> None:
    spec, out = tmp_path / "spec.json", tmp_path / "out"
    command = [sys.executable, "-m", "plumbline_capture", "run", "--out", str(out), "--run-spec", str(spec), "--"]
    said = {"framework": "trl", "model": "tiny:qwen3", "settings": {"batch": 1}}
    spec.write_text(json.dumps(said))
    assert subprocess.run([*command, sys.executable, "-S", "-c", "pass"], capture_output=True).returncode == 0
    assert json.loads((out / "manifest.json").read_text())["run_spec"] == said
    for wrong in ("[]", "{", '{"modle": "x"}', '{"settings": []}', '{"model": 3}'):
        spec.write_text(wrong)
        command[command.index("--out") + 1] = str(tmp_path / "none")
        refused = subprocess.run([*command, "true"], capture_output=True, text=True)
        assert (refused.returncode, "--run-spec: " in refused.stderr) == (3, True)
