"""`plumbline validate` against a server: the same report and exit codes as here, and a sentence for each trouble."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pytest_django.live_server_helper import LiveServer

from checks.registry import DEFAULT_CHECKS
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.accounts.tokens import create_token
from plumbline_web.validations.enums import State
from plumbline_web.validations.models import Validation
from tests.web.factories import add_results, failing_verdicts, passing_verdicts, read_result
from tests.web.running import empty_queues, worker
from tests.workers.results import HAVE_NOTHING_TO_SAY
from workers.report.as_json import build_document
from workers.report.reading import UnknownDocument
from workers.report.reading import read_result as read_document
from workers.request import exit_code

ROOT = Path(__file__).parents[2]
ASKED = ["--framework", "transformers", "--model", "tiny:qwen3", "--data", "gsm8k_sample", "--set", "batch=1"]


@pytest.fixture
def secret(transactional_db: None) -> str:
    user = User.objects.create(username="anna", role=Role.SUBMITTER)
    return create_token(user, name="ci", scopes=["read", "submit"], days=1)[1]


def start(url: str, token: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PLUMBLINE_URL": url, "PLUMBLINE_TOKEN": token, "COLUMNS": "160", "NO_PROXY": "*"}
    return subprocess.Popen(
        [sys.executable, "-m", "workers.cli", "validate", *(arguments or ASKED)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(look: Callable[[], Any], *, limit_s: float = 60.0) -> Any:
    """What `look` finds, as soon as it finds something."""
    end = time.monotonic() + limit_s
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def wait_for_words(process: subprocess.Popen[str], words: str) -> str:
    """What the command has said of its progress, up to a line with these words."""
    assert process.stderr is not None
    said = ""
    while words not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    return said


def end_with(validation: Validation, verdicts: list[dict[str, Any]]) -> None:
    """What a worker's last job writes."""
    add_results(validation, verdicts)
    Validation.objects.filter(pk=validation.pk).update(state=State.DONE, phase="", fraction=1.0)


@pytest.mark.parametrize(("verdicts", "code"), [(failing_verdicts(), 1), (passing_verdicts(), 0)])
def test_a_validation_on_a_server_is_reported_as_one_here(
    live_server: LiveServer, secret: str, tmp_path: Path, verdicts: list[dict[str, Any]], code: int
) -> None:
    report, junit = tmp_path / "result.json", tmp_path / "junit.xml"
    process = start(live_server.url, secret, *ASKED, "--json", str(report), "--junit", str(junit))
    said = wait_for_words(process, "waiting for a worker: queued")
    validation = Validation.objects.get()
    assert f"V-{validation.pk} at {live_server.url}/validations/V-{validation.pk}/" in said
    assert (validation.owner.username, validation.settings) == ("anna", {"batch": 1})
    end_with(validation, verdicts)
    out, error = process.communicate(timeout=60)
    assert process.returncode == code, error
    document = json.loads(report.read_text())
    assert (document["exit_code"], document["verdicts"]) == (code, verdicts)
    assert all(verdict["check"] in out for verdict in verdicts)
    suite = ElementTree.parse(junit).getroot()
    assert int(suite.attrib["failures"]) == sum(verdict["status"] == "fail" for verdict in verdicts)


def test_ctrl_c_cancels_the_validation_on_the_server(live_server: LiveServer, secret: str) -> None:
    process = start(live_server.url, secret)
    wait_for_words(process, "waiting for a worker")
    validation = Validation.objects.get()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130, error
    assert f"V-{validation.pk} is cancelled" in error
    validation.refresh_from_db()
    assert validation.state == State.CANCELLED


def test_one_that_is_cancelled_elsewhere_has_no_verdict(live_server: LiveServer, secret: str) -> None:
    process = start(live_server.url, secret)
    validation = wait_for(Validation.objects.first)
    Validation.objects.filter(pk=validation.pk).update(state=State.CANCELLED)
    out, error = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    assert error.endswith(f"plumbline: V-{validation.pk} cancelled: it has no verdicts.\n")


def test_what_the_server_refuses_is_shown_and_nothing_is_queued(
    live_server: LiveServer, secret: str, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    arguments = [*ASKED[:2], "--model", str(tmp_path / "model"), *ASKED[4:]]
    out, error = start(live_server.url, secret, *arguments).communicate(timeout=60)
    assert out == ""
    assert error.startswith(f"plumbline: model: {tmp_path / 'model'} is not under an allowed directory; ")
    assert not Validation.objects.exists()


@pytest.mark.parametrize("token", ["wrong", "plb_" + "x" * 43])
def test_a_wrong_token_is_code_3(live_server: LiveServer, transactional_db: None, token: str) -> None:
    process = start(live_server.url, token)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 3
    assert error.startswith("plumbline: PLUMBLINE_TOKEN: The token is unknown; check that it was copied")


def test_a_token_that_may_not_submit_is_code_3(live_server: LiveServer, transactional_db: None) -> None:
    viewer = User.objects.create(username="vera", role=Role.VIEWER)
    process = start(live_server.url, create_token(viewer, name="r", scopes=["read"], days=1)[1])
    _, error = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "The token has the scopes read, and this needs submit" in error


@pytest.mark.parametrize("url", ["nowhere", "ftp://host", "http://", "http://[::1"])
def test_what_is_no_address_is_code_3(url: str) -> None:
    process = start(url, "plb_x")
    _, error = process.communicate(timeout=60)
    assert process.returncode == 3, error
    assert error.startswith("plumbline: PLUMBLINE_URL: ")
    assert error.endswith("write it as https://host:port.\n")


def test_a_server_that_is_not_there_is_code_2() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = start(f"http://127.0.0.1:{port}", "plb_x")
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert error == (
        f"plumbline: PLUMBLINE_URL: http://127.0.0.1:{port} did not answer (connection refused); "
        "check the address, and that it runs.\n"
    )


class Other(BaseHTTPRequestHandler):
    """A service that is no Plumbline of this version; `answer` is what it says to everything."""

    answer: tuple[int, bytes] = (200, b"<html>hello</html>")

    def do_GET(self) -> None:
        status, body = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""


@pytest.fixture
def other() -> Iterator[type[Other]]:
    handler: Any = type("Handler", (Other,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        handler.url = f"http://127.0.0.1:{server.server_port}"
        yield handler
        server.shutdown()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((200, b"<html>hello</html>"), "it may be another service"),
        ((404, b"not here"), "answers 404 without a word that Plumbline would use"),
        ((200, b'{"api": 0, "username": "a"}'), "speaks version 0 of the API, and this command 1"),
        ((200, b"[]"), "it may be another service"),
    ],
)
def test_another_service_or_version_is_code_3(other: Any, answer: tuple[int, bytes], sentence: str) -> None:
    other.answer = answer
    process = start(other.url, "plb_x")
    _, error = process.communicate(timeout=60)
    assert process.returncode == 3
    assert error.startswith("plumbline: PLUMBLINE_URL: ")
    assert sentence in error


@pytest.mark.parametrize("status", [502, 503, 504])
def test_what_stands_before_a_server_that_is_away_is_code_2(other: Any, status: int) -> None:
    other.answer = (status, b"<html>Bad Gateway</html>")
    process = start(other.url, "plb_x")
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2
    said = f"{other.url} did not answer (status {status}); check the address, and that it runs"
    assert error == f"plumbline: PLUMBLINE_URL: {said}.\n"


class Gate:
    """A way to the server that can be shut, as when it restarts, or stalled, as when it hangs."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.open = threading.Event()
        self.open.set()
        self.stalled = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self.open.is_set():
                client.close()
                continue
            server = socket.create_connection(self._target)
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        source.settimeout(0.1)
        while self.open.is_set():
            if self.stalled.is_set():
                time.sleep(0.05)
                continue
            try:
                data = source.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                break
            if not data:
                break
            while self.stalled.is_set() and self.open.is_set():  # it was while this was waited for
                time.sleep(0.05)
            target.sendall(data)
        for each in (source, target):
            each.close()

    def close(self) -> None:
        self._listener.close()


def test_a_lost_connection_is_said_and_found_again(live_server: LiveServer, secret: str) -> None:
    host, port = live_server.thread.host, live_server.thread.port
    gate = Gate(host, port)
    process = start(f"http://127.0.0.1:{gate.port}", secret)
    validation = wait_for(Validation.objects.first)
    gate.open.clear()
    time.sleep(2)
    end_with(validation, passing_verdicts())
    gate.open.set()
    _, error = process.communicate(timeout=60)
    gate.close()
    assert process.returncode == 0, error
    assert "does not answer (" in error
    assert "trying again in 0.5 s" in error
    assert f"http://127.0.0.1:{gate.port} answers again" in error
    assert Validation.objects.count() == 1


def test_a_second_ctrl_c_leaves_at_once(live_server: LiveServer, secret: str) -> None:
    gate = Gate(live_server.thread.host, live_server.thread.port)
    process = start(f"http://127.0.0.1:{gate.port}", secret)
    wait_for_words(process, "waiting for a worker")
    validation = Validation.objects.get()
    gate.stalled.set()
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=5)
    gate.close()
    assert process.returncode == 130
    assert f"plumbline: left; V-{validation.pk} may still run at http://127.0.0.1:{gate.port}\n" in error


def test_a_ci_server_that_stops_its_job_cancels_the_validation(live_server: LiveServer, secret: str) -> None:
    process = start(live_server.url, secret)
    wait_for_words(process, "waiting for a worker")
    validation = Validation.objects.get()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    validation.refresh_from_db()
    assert validation.state == State.CANCELLED


def test_a_real_worker_serves_the_command(live_server: LiveServer, secret: str, tmp_path: Path, settings: Any) -> None:
    settings.DATA = tmp_path / "data"
    empty_queues()
    with worker(tmp_path / "w.log"):
        process = start(live_server.url, secret, *ASKED, "--json", str(tmp_path / "result.json"))
        out, error = process.communicate(timeout=400)
    assert process.returncode == 0, error
    assert "● pass" in out
    document = json.loads((tmp_path / "result.json").read_text())
    statuses = {each["check"]: each["status"] for each in document["verdicts"]}
    skipped = HAVE_NOTHING_TO_SAY
    assert statuses == {name: "skipped" if name in skipped else "pass" for name in DEFAULT_CHECKS}
    validation = Validation.objects.get()
    assert (validation.state, validation.verdict) == ("done", "pass")
    assert (validation.passed, validation.skipped) == (len(DEFAULT_CHECKS) - len(skipped), len(skipped))
    # A phase that is shorter than the time between two looks is not seen.
    assert re.search(r"^ +[\d.]+ s  (framework run|reference|judging): ", error, re.MULTILINE), error


def test_the_way_to_a_server_loads_nothing_heavy() -> None:
    loaded = "import sys, workers.cli, workers.remote; print({'torch', 'transformers', 'django'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_captures_of_a_server_cannot_be_kept_here(tmp_path: Path) -> None:
    process = start("http://127.0.0.1:1", "plb_x", *ASKED, "--out", str(tmp_path / "out"))
    _, error = process.communicate(timeout=60)
    assert process.returncode == 3
    assert error == "plumbline: out: captures and logs of a server stay there; leave it out, or add --local.\n"


def test_a_document_is_read_back_as_it_was_written() -> None:
    document = read_result()
    result = read_document(document)
    again = build_document(result)
    for part in ("request", "spec", "environment", "phases", "verdicts", "warnings"):
        expected = document[part] | {"out": None} if part == "request" else document[part]
        assert again[part] == expected
    assert exit_code(result.verdicts) == document["exit_code"]


@pytest.mark.parametrize(
    "change", [{"schema": "other"}, {"version": 2}, {"verdicts": [{}]}, {"spec": None}, {"verdicts": 3}]
)
def test_another_document_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnknownDocument):
        read_document(read_result() | change)
