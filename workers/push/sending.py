"""Sending a capture directory: the server says what it has, and the rest goes there, each chunk with its digest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from checks.errors import BadRequest, CaptureError
from workers.client import FORBIDDEN, Client, Refused, RefusedFields, ServerError, refuse_token
from workers.push.directory import LocalFile

MOST_BEGINNINGS = 3
"""An upload that somebody discards while it goes on is begun anew so often."""

MOST_REPEATS = 5
"""Of a chunk whose bytes arrive changed: a line that does it more often is broken."""


@dataclass(frozen=True)
class Sent:
    """How much has been sent of the whole; what the server had before counts."""

    name: str
    done: int
    total: int


class _Gone(Exception):
    """The upload is there no more: discarded, or completed by the same command elsewhere."""


def send_files(client: Client, files: Sequence[LocalFile], *, on_sent: Callable[[Sent], None]) -> int:
    """Send what the server lacks of these files, and let them become a capture; its number.

    Whatever ends this call, the same call goes on where it was: the state is the server's.

    Raises:
        BadRequest: the server refuses the files.
        CaptureError: a file has changed since it was hashed.
        ServerError: the server broke or stayed away.
    """
    for _ in range(MOST_BEGINNINGS):
        upload = _announce(client, files)
        try:
            if upload["capture"] is None:
                _send_all(client, upload, files, on_sent)
                return _complete(client, str(upload["id"]), files)
            return int(upload["capture"])
        except _Gone:
            continue
    raise ServerError(f"the upload was discarded {MOST_BEGINNINGS} times while it went on; run the same command again")


def _announce(client: Client, files: Sequence[LocalFile]) -> dict[str, Any]:
    try:
        return client.announce([file.announce() for file in files])
    except Refused as refused:
        raise _as_bad_request(refused, files) from None


def _send_all(
    client: Client, upload: Mapping[str, Any], files: Sequence[LocalFile], on_sent: Callable[[Sent], None]
) -> None:
    numbers = {str(entry["name"]): (int(entry["number"]), int(entry["received"])) for entry in upload["files"]}
    total = sum(file.size for file in files)
    before = 0
    for file in files:
        number, received = numbers[file.path.name]
        on_sent(Sent(file.path.name, before + received, total))
        for there in _send_file(client, upload, file, number=number, received=received):
            on_sent(Sent(file.path.name, before + there, total))
        before += file.size


def _send_file(
    client: Client, upload: Mapping[str, Any], file: LocalFile, *, number: int, received: int
) -> Iterator[int]:
    """Send a file from where the server's part ends; yields how many bytes are there after each chunk."""
    with _open(file) as opened:
        repeats = 0
        while received < file.size:
            opened.seek(received)
            content = opened.read(min(int(upload["chunk_bytes"]), file.size - received))
            if not content:
                raise _changed(file)
            try:
                answer = client.send_chunk(str(upload["id"]), number, content, offset=received)
                received, repeats = int(answer["files"][number]["received"]), 0
            except Refused as refused:
                # the chunk was sent twice, or the same command runs beside this one
                if refused.code == "wrong_offset" and isinstance(refused, RefusedFields):
                    received = int(refused.fields["offset"])
                elif refused.code == "wrong_digest" and repeats < MOST_REPEATS:
                    repeats += 1
                elif refused.code in ("not_found", "illegal_state"):
                    raise _Gone from None
                else:
                    raise _as_bad_request(refused, [file]) from None
            yield received


def _open(file: LocalFile) -> BinaryIO:
    try:
        return file.path.open("rb")
    except OSError as error:
        raise CaptureError(str(file.path), f"cannot be read ({error.strerror})", "see where it went") from error


def _complete(client: Client, upload: str, files: Sequence[LocalFile]) -> int:
    try:
        return client.complete_upload(upload)
    except Refused as refused:
        if refused.code in ("not_found", "incomplete"):
            raise _Gone from None
        # What was sent is what was announced, or the upload could never be completed: it is of no use any more.
        client.discard_upload(upload)
        wrong = [files[number] for number in _wrong_digests(refused) if number < len(files)]
        if wrong:
            raise _changed(wrong[0]) from None
        raise _as_bad_request(refused, files) from None


def _wrong_digests(refused: Refused) -> list[int]:
    """Numbers of the files whose bytes on the server are not the announced ones."""
    fields = refused.fields if isinstance(refused, RefusedFields) else {}
    parts = [name.split(".") for name in fields if name.startswith("files.") and name.endswith(".sha256")]
    return [int(number) for _, number, _ in parts]


def _changed(file: LocalFile) -> CaptureError:
    return CaptureError(str(file.path), "changed while it was sent", "push the directory when nothing writes into it")


def _as_bad_request(refused: Refused, files: Sequence[LocalFile]) -> BadRequest:
    """The server's sentence, with the file that it numbers under its name; what the token may not is of no file."""
    if refused.code == FORBIDDEN:
        return refuse_token(refused)
    sentence = str(refused).splitlines()[0] if isinstance(refused, RefusedFields) else str(refused)
    for number, file in enumerate(files):
        sentence = sentence.replace(f"files.{number}.", f"{file.path.name} ")
    return BadRequest("DIR", sentence.rstrip("."), "nothing of it was made a capture")
