"""What leaves for other programs: signed, repeated, given up, and never to a private address."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from plumbline_web.accounts.enums import Role
from plumbline_web.notifications import posting, sending
from plumbline_web.notifications.enums import Kind
from plumbline_web.notifications.models import Delivery, Notification, Webhook
from plumbline_web.notifications.posting import AddressRefused, PostFailed, find_address, post_signed, sign, verify
from plumbline_web.notifications.senders import attempt_beside
from plumbline_web.notifications.sending import MOST_ATTEMPTS, PAUSES_S, attempt, forget_old, list_due, repeat
from plumbline_web.notifications.tasks import deliver, deliver_due
from plumbline_web.notifications.webhooks import create_webhook
from tests.web.factories import make_user
from tests.web.news import tell
from tests.web.pages import sign_in, text_of

pytestmark = pytest.mark.django_db

SECRET = "a secret of thirty characters."


@dataclass
class Receiver:
    """A program that takes messages; `answers` are its next statuses, 200 when there is none left."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    seen: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.WEBHOOK_PRIVATE = True
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.seen.append((dict(self.headers), body))
            status = found.answers.pop(0) if found.answers else 200
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{found.url}elsewhere")
            self.end_headers()
            self.wfile.write(b"as I say")

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}/in?x=1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()


def make_hook(url: str, *kinds: Kind) -> Webhook:
    return create_webhook(url=url, secret=SECRET, kinds=kinds or list(Kind), by=make_user(Role.ADMINISTRATOR))[0]


def test_a_webhook_is_told_of_its_kinds_once_with_a_signature_that_verifies(receiver: Receiver) -> None:
    make_hook(receiver.url, Kind.SILENT)
    validation = tell(make_user(), make_user(), key="V-1 7")
    tell(key="V-1 7")
    tell(kind=Kind.UPSTREAM)
    delivery = Delivery.objects.get()
    attempt(delivery.pk)
    attempt(delivery.pk)
    ((headers, body),) = receiver.seen
    assert json.loads(body) == {
        "id": str(delivery.uuid),
        "kind": "silent",
        "about": f"V-{validation.pk}",
        "text": "step.loss fails",
        "url": "http://localhost:8000/validations/",
        "at": json.loads(body)["at"],
    }
    assert headers["X-Plumbline-Delivery"] == str(delivery.uuid)
    assert headers["X-Plumbline-Event"] == "silent"
    assert headers["Content-Type"] == "application/json"
    assert verify(body, secret=SECRET, headers=headers, now=time.time())
    assert not verify(body + b" ", secret=SECRET, headers=headers, now=time.time())
    assert not verify(body, secret="another", headers=headers, now=time.time())
    assert not verify(body, secret=SECRET, headers=headers, now=time.time() + 301)
    assert not verify(body, secret=SECRET, headers={}, now=time.time())
    delivery.refresh_from_db()
    assert (delivery.state, delivery.attempts, delivery.answer) == ("delivered", 1, "200 OK")


def test_the_signature_is_hmac_sha256_of_time_and_body() -> None:
    # printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac key
    wanted = "sha256=a438e398bfafc57e4396bb7fc2304422f0f768e965d073ca313cb52e22e6ad03"
    assert sign(b'{"a":1}', secret="key", timestamp=1_700_000_000) == wanted


def test_a_failed_attempt_is_repeated_after_growing_pauses_and_given_up_at_last(receiver: Receiver) -> None:
    hook = make_hook(receiver.url)
    tell()
    delivery = Delivery.objects.get()
    receiver.answers = [500] * MOST_ATTEMPTS
    pauses = []
    for _ in range(MOST_ATTEMPTS):
        assert list_due(timezone.now()) == [delivery.pk]
        attempt(delivery.pk)
        delivery.refresh_from_db()
        pauses.append(round((delivery.next_at - timezone.now()).total_seconds()))
        attempt(delivery.pk)  # its pause is not over
        Delivery.objects.update(next_at=timezone.now())
    assert pauses[:-1] == pytest.approx(PAUSES_S, abs=2)
    assert len(receiver.seen) == MOST_ATTEMPTS
    assert {headers["X-Plumbline-Delivery"] for headers, _ in receiver.seen} == {str(delivery.uuid)}
    assert (delivery.state, delivery.answer) == ("failed", "500 Internal Server Error: as I say")
    administrator = sign_in(Role.ADMINISTRATOR)
    shown = text_of(administrator.get("/webhooks/"))
    assert f"failed Again {MOST_ATTEMPTS} of {MOST_ATTEMPTS} 500 Internal Server Error: as I say" in shown
    administrator.post(f"/webhooks/messages/{delivery.pk}/repeat/")
    attempt(delivery.pk)
    delivery.refresh_from_db()
    assert (delivery.state, delivery.attempts) == ("delivered", 1)
    assert not repeat(delivery)
    assert hook.deliveries.count() == 1


def test_an_attempt_whose_worker_died_is_due_again(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    make_hook(receiver.url)
    tell()
    pk = Delivery.objects.get().pk

    class Died(BaseException):
        pass

    def die(_: Delivery) -> str:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(sending, "_send", die)
        with pytest.raises(Died):
            attempt(pk)
    attempt(pk)  # the lease still runs
    assert receiver.seen == []
    assert list_due(timezone.now()) == []
    assert list_due(timezone.now() + timedelta(seconds=sending.LEASE_S + 1)) == [pk]


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    receiver.answers = [302]
    with pytest.raises(PostFailed, match="302 Found; redirects are not followed"):
        post_signed(receiver.url, {"id": "1", "kind": "test"}, secret=SECRET)
    assert len(receiver.seen) == 1


def test_a_receiver_that_is_gone_fails_the_attempt(settings: Any) -> None:
    settings.WEBHOOK_PRIVATE = True
    with pytest.raises(PostFailed, match="no answer: ConnectionRefusedError"):
        post_signed("http://127.0.0.1:1/", {"id": "1", "kind": "test"}, secret=SECRET)
    with pytest.raises(PostFailed, match="no answer: gaierror"):
        post_signed("http://no-such-host.invalid/", {"id": "1", "kind": "test"}, secret=SECRET)


def test_a_receiver_that_answers_drop_by_drop_holds_nobody(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.WEBHOOK_PRIVATE = True
    monkeypatch.setattr(posting, "DEADLINE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            peer, _ = server.accept()
            with peer, contextlib.suppress(OSError):
                for _ in range(100):
                    peer.sendall(b"H")
                    time.sleep(0.05)

        threading.Thread(target=drip, daemon=True).start()
        begin = time.monotonic()
        with pytest.raises(PostFailed):
            post_signed(f"http://127.0.0.1:{server.getsockname()[1]}/", {"id": "1", "kind": "test"}, secret=SECRET)
        assert time.monotonic() - begin < 2


@pytest.mark.django_db(transaction=True)
def test_the_tasks_send_one_message_and_all_that_are_due_beside_their_worker(receiver: Receiver) -> None:
    make_hook(receiver.url)
    with transaction.atomic():
        tell()
        tell()
    first, second = Delivery.objects.order_by("pk").values_list("pk", flat=True)
    deliver(first)
    attempt_beside(first).result(5)
    assert len(receiver.seen) == 1
    deliver_due()
    attempt_beside(second).result(5)
    assert [json.loads(body)["kind"] for _, body in receiver.seen] == ["silent", "silent"]
    assert list(Delivery.objects.values_list("state", flat=True)) == ["delivered", "delivered"]


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "10.1.2.3", "192.168.0.9", "169.254.169.254", "0.0.0.0", "::1", "fd00::1", "fe80::1"],
)
def test_a_private_address_is_refused_unless_the_settings_allow_it(host: str, settings: Any) -> None:
    with pytest.raises(AddressRefused, match="which is private; set PLUMBLINE_WEBHOOK_PRIVATE=1"):
        find_address(host, 80)
    settings.WEBHOOK_PRIVATE = True
    assert find_address(host, 80)


@pytest.mark.parametrize("host", ["::ffff:127.0.0.1", "2002:7f00:1::", "::ffff:10.0.0.1", "224.0.0.1", "100.64.0.1"])
def test_an_address_that_hides_a_private_one_is_refused(host: str) -> None:
    with pytest.raises(AddressRefused):
        find_address(host, 80)


def test_a_public_address_is_taken() -> None:
    assert find_address("93.184.216.34", 443) == "93.184.216.34"
    assert find_address("2606:2800:220:1:248:1893:25c8:1946", 443) == "2606:2800:220:1:248:1893:25c8:1946"


def test_a_webhook_is_made_paused_tried_and_removed_by_an_administrator(receiver: Receiver) -> None:
    client = sign_in(Role.ADMINISTRATOR)
    page = client.post("/webhooks/", {"url": receiver.url, "kinds": ["silent"]})
    hook = Webhook.objects.get()
    assert hook.secret in page.content.decode()
    assert hook.secret not in client.get("/webhooks/").content.decode()
    client.post(f"/webhooks/{hook.pk}/try/")
    attempt(Delivery.objects.get().pk)
    assert json.loads(receiver.seen[0][1])["text"] == "This is a trial."
    client.post(f"/webhooks/{hook.pk}/pause/")
    tell()
    assert Delivery.objects.count() == 1
    client.post(f"/webhooks/{hook.pk}/resume/")
    tell()
    assert Delivery.objects.count() == 2
    client.post(f"/webhooks/{hook.pk}/remove/")
    assert not Delivery.objects.exists()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"url": "ftp://x/"}, "'ftp://x/' is no address for a webhook; write https://host/path."),
        ({"url": "https://u:p@x/"}, "'https://u:p@x/' is no address for a webhook; write https://host/path."),
        ({"url": "https://x:y/"}, "'https://x:y/' is no address; write https://host/path."),
        ({"secret": "short"}, "A secret of 5 characters was given; give 16 to 100, or none."),
        ({"kinds": []}, "This field is required."),
    ],
)
def test_a_webhook_that_cannot_be_is_refused_beside_its_field(data: dict[str, Any], told: str) -> None:
    page = sign_in(Role.ADMINISTRATOR).post("/webhooks/", {"url": "https://x/", "kinds": ["silent"]} | data)
    assert told in text_of(page)
    assert not Webhook.objects.exists()


def test_what_is_long_read_and_long_sent_is_forgotten() -> None:
    make_hook("https://example.org/")
    person = make_user()
    tell(person)
    tell(person)
    old = timezone.now() - timedelta(days=200)
    Delivery.objects.update(state="delivered", ended_at=old)
    first = Notification.objects.order_by("pk")[0]
    Notification.objects.filter(pk=first.pk).update(read_at=old)
    forget_old(timezone.now())
    assert (Delivery.objects.count(), Notification.objects.count()) == (0, 1)
