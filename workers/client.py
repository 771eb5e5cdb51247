"""A server of Plumbline, as the command line sees it: one sentence for whatever goes wrong, retries for what passes."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import httpx2 as httpx

from checks.errors import BadRequest

API = "/api/v1"
API_VERSION = 1
"""What this client speaks."""

SERVER = "PLUMBLINE_URL"
TOKEN = "PLUMBLINE_TOKEN"

FORBIDDEN = "forbidden"
"""The server's word for what the person behind a token, or the token, may not do."""

TIMEOUT = httpx.Timeout(30.0, connect=10.0)
COMPLETE_TIMEOUT = httpx.Timeout(900.0, connect=10.0)

GIVE_UP_S = 300.0
"""How long a server may be gone: a restart with migrations takes less."""

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 15.0

TRY_AGAIN = (429, 502, 503, 504)
"""What a proxy says while the server behind it restarts, and what a limit says."""


class ServerError(RuntimeError):
    """The server, or the way to it, failed; `str()` is one sentence."""


@dataclass(frozen=True)
class Progress:
    """How far a validation on the server is."""

    number: str
    state: str
    phase: str
    detail: str
    fraction: float | None
    elapsed_s: float
    remaining_s: float | None
    error: str

    @property
    def ended(self) -> bool:
        return self.state not in ("queued", "running")


class Client:
    """Calls of one server with one token. `say` is told, in a sentence, when the connection is lost and found again."""

    def __init__(self, address: str, token: str, *, say: Callable[[str], None]) -> None:
        self.address = address.rstrip("/")
        self._say = say
        try:
            self._http = httpx.Client(
                base_url=self.address + API,
                headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
                timeout=TIMEOUT,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise BadRequest(SERVER, f"{address} is no address ({error})", "write it as https://host:port") from None
        if self._http.base_url.scheme not in ("http", "https") or not self._http.base_url.host:
            raise BadRequest(SERVER, f"{address!r} is no address of a server", "write it as https://host:port")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def greet(self) -> str:
        """The name behind the token.

        Raises:
            BadRequest: what answers at the address is no Plumbline, or an older one; the token is wrong.
            ServerError: nothing answers there, or only what stands before the server.
        """
        try:
            document = self._read(self._http.get("/me"))
        except httpx.HTTPError as error:
            raise ServerError(self._describe_silence(_explain(error))) from None
        except Refused as refused:
            if refused.code == FORBIDDEN:
                raise refuse_token(refused) from None
            raise ServerError(str(refused).rstrip(".")) from None
        if document.get("api") != API_VERSION:
            found = f"{self.address} speaks version {document.get('api')} of the API, and this command {API_VERSION}"
            raise BadRequest(SERVER, found, "install the version of Plumbline that the server has")
        return str(document["username"])

    def submit(self, asked: Mapping[str, Any], *, key: str | None = None) -> Progress:
        """Queue a validation, once, however often the connection breaks. Raises BadRequest, ServerError.

        `key`: by which an earlier call's validation is found instead of made again; none of an earlier one by default.
        """
        key = key or str(uuid.uuid4())
        return _read_progress(self._call("POST", "/validations", json=dict(asked), headers={"Idempotency-Key": key}))

    def look(self, number: str) -> Progress:
        """How far it is. Raises BadRequest, ServerError."""
        return _read_progress(self._get(f"/validations/{number}"))

    def cancel(self, number: str) -> Progress:
        """Cancel it; one try, for the person waits. Raises BadRequest, ServerError."""
        try:
            return _read_progress(self._read(self._http.post(f"/validations/{number}/cancel", json={}, timeout=10.0)))
        except httpx.HTTPError as error:
            raise ServerError(f"{self.address} did not answer ({_explain(error)})") from None

    def result(self, number: str) -> dict[str, Any]:
        """The document of docs/json.md. Raises BadRequest, ServerError."""
        return self._get(f"/validations/{number}/result")

    def scopes(self) -> tuple[str, ...] | None:
        """What the token may do; None where the server does not say. Raises BadRequest, ServerError."""
        found = self._get("/me").get("scopes")
        return tuple(map(str, found)) if isinstance(found, list) else None

    def announce(self, files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Take up one's own upload of these files, or begin one. Raises BadRequest, Refused, ServerError."""
        return self._call("POST", "/captures/uploads", json={"files": list(files), "resume": True})

    def send_chunk(self, upload: str, number: int, content: bytes, *, offset: int) -> dict[str, Any]:
        """Send bytes of a file from `offset` on, with their SHA-256. Raises BadRequest, Refused, ServerError.

        A repeated one, after an answer that was lost, is refused with the offset that is right by then.
        """
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        headers = {"Content-Type": "application/octet-stream", "Content-Digest": f"sha-256=:{digest}:"}
        path = f"/captures/uploads/{upload}/files/{number}"
        return self._call("PUT", path, params={"offset": offset}, content=content, headers=headers)

    def complete_upload(self, upload: str) -> int:
        """Let an upload become a capture; its number. Raises BadRequest, Refused, ServerError."""
        # hashing and reading gigabytes take longer than any other answer
        return int(self._call("POST", f"/captures/uploads/{upload}/complete", timeout=COMPLETE_TIMEOUT)["id"])

    def discard_upload(self, upload: str) -> None:
        """One try; what is left is given up by the server after a day."""
        with contextlib.suppress(httpx.HTTPError):
            self._http.delete(f"/captures/uploads/{upload}", timeout=10.0)

    def _get(self, path: str) -> dict[str, Any]:
        """Of a validation that was there a moment ago: a refusal now is no fault of the request."""
        try:
            return self._call("GET", path)
        except Refused as refused:
            raise ServerError(str(refused).rstrip(".")) from None

    def _call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        """Call until there is an answer; waits twice as long after each failure, and gives up after five minutes."""
        wait_s, lost_at = FIRST_WAIT_S, None
        while True:
            try:
                response = self._http.request(method, path, **arguments)
                if response.status_code not in TRY_AGAIN:
                    if lost_at is not None:
                        self._say(f"{self.address} answers again")
                    return self._read(response)
                problem = f"status {response.status_code}"
            except httpx.HTTPError as error:
                problem = _explain(error)
            now = time.monotonic()
            lost_at = now if lost_at is None else lost_at
            if now - lost_at > GIVE_UP_S:
                raise ServerError(f"{self.address} has not answered for {GIVE_UP_S / 60:.0f} minutes ({problem})")
            self._say(f"{self.address} does not answer ({problem}); trying again in {wait_s:.1f} s")
            time.sleep(wait_s * random.uniform(0.8, 1.2))  # clients that lost it together do not come back together
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)

    def _describe_silence(self, problem: str) -> str:
        return f"{SERVER}: {self.address} did not answer ({problem}); check the address, and that it runs"

    def _read(self, response: httpx.Response) -> dict[str, Any]:
        """The document of an answer; what it refuses as an exception."""
        try:
            document = response.json()
        except ValueError:
            document = None
        if response.is_success and isinstance(document, dict):
            return document
        if isinstance(document, dict) and isinstance(document.get("error"), dict):
            _refuse(response.status_code, document["error"])
        if response.status_code in TRY_AGAIN:
            raise ServerError(self._describe_silence(f"status {response.status_code}"))
        found = f"{self.address} answers {response.status_code} without a word that Plumbline would use"
        raise BadRequest(SERVER, found, "check the address: it may be another service, or a Plumbline without this API")


def _refuse(status: int, error: Mapping[str, Any]) -> NoReturn:
    message, fields = str(error.get("message", "")), error.get("fields") or {}
    if status == 401:
        raise BadRequest(TOKEN, message.rstrip("."), "set it to a valid token of your account on the server")
    if status >= 500:
        raise ServerError(message.rstrip("."))
    code = str(error.get("code", ""))
    if fields:
        raise RefusedFields({str(name): str(sentence) for name, sentence in fields.items()}, code=code)
    raise Refused(message, code=code)


class Refused(ValueError):
    """The server refuses the request as a whole; `str()` is its sentence, `code` its word for programs."""

    def __init__(self, sentence: str, *, code: str = "") -> None:
        super().__init__(sentence)
        self.code = code


def refuse_token(refused: Refused) -> BadRequest:
    """What the server says that a token may not, or the person behind it."""
    found, _, remedy = str(refused).rstrip(".").rpartition("; ")
    return BadRequest(TOKEN, found or remedy, remedy if found else "set it to the token of a person who may")


class RefusedFields(Refused):
    """The server refuses fields of the request; one sentence a field."""

    def __init__(self, fields: Mapping[str, str], *, code: str = "") -> None:
        super().__init__("\n".join(f"{name}: {sentence}" for name, sentence in fields.items()), code=code)
        self.fields = dict(fields)


def _read_progress(document: Mapping[str, Any]) -> Progress:
    try:
        return Progress(
            number=str(document["id"]),
            state=str(document["state"]),
            phase=str(document["phase"] or document["state"]),
            detail=str(document["detail"]),
            fraction=document["fraction"],
            elapsed_s=float(document["elapsed_s"] or 0.0),
            remaining_s=document["remaining_s"],
            error=str(document["error"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ServerError(f"the server's answer is not one that this version reads ({error!r})") from None


def _explain(error: httpx.HTTPError) -> str:
    """A reason in a few words, without the library's own."""
    if isinstance(error, httpx.ConnectError):
        return "connection refused" if "refused" in str(error).lower() else str(error) or "no connection"
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__
