"""Reading a requirements or lock file as text: small, regular, and not binary, or refused with a sentence."""

from __future__ import annotations

import codecs
from pathlib import Path

from checks.errors import BadRequest

FIELD = "requirements"

MAX_BYTES = 20 * 2**20
"""The largest lock files with hashes of every wheel take some MB."""

_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
"""how a file begins that a Windows shell wrote; PowerShell's `>` writes UTF-16"""


def read_text(file: Path) -> str:
    """The file's text.

    Raises:
        BadRequest: nothing there, no regular file, too large, unreadable, or binary.
    """
    remedy = "give a requirements file, a lock file or the output of `pip freeze`"
    try:
        if not file.exists():
            raise BadRequest(FIELD, f"{file} does not exist", remedy)
        if file.is_dir():
            raise BadRequest(FIELD, f"{file} is a directory", "name the file in it")
        if not file.is_file():
            raise BadRequest(FIELD, f"{file} is not a regular file", remedy)
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, BadRequest):
            raise
        raise BadRequest(FIELD, f"{file} cannot be read ({error})", remedy) from None
    if len(content) > MAX_BYTES:
        raise BadRequest(FIELD, f"{file} is larger than {MAX_BYTES // 2**20} MiB, and so no list of packages", remedy)
    encoding = next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        raise BadRequest(FIELD, f"{file} is not text in UTF-8", remedy) from None
    if "\0" in text:
        raise BadRequest(FIELD, f"{file} is binary", remedy)
    return text.replace("\r\n", "\n").replace("\r", "\n")
