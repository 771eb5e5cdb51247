"""The ways in which input can be wrong: what was asked, what was recorded, and what was not."""

from __future__ import annotations


class BadRequest(ValueError):
    """A request that cannot be run: names the field, what was found, and the remedy.

    `str()` is one sentence for a person; exit code 3 on the command line, 400 over HTTP.
    """

    def __init__(self, field: str, found: str, remedy: str) -> None:
        super().__init__(f"{field}: {found}; {remedy}.")
        self.field = field
        self.found = found
        self.remedy = remedy


class CaptureError(ValueError):
    """A capture that cannot be read: names the file, what is wrong with it, and the remedy."""

    def __init__(self, file: str, found: str, remedy: str) -> None:
        super().__init__(f"{file}: {found}; {remedy}.")
        self.file = file
        self.found = found
        self.remedy = remedy


class NotRecorded(ValueError):
    """A part of a capture that could be absent, and is: the check that needs it is inconclusive, in this sentence."""

    def __init__(self, found: str) -> None:
        super().__init__(f"{found}; record the capture again with `plumbline-capture run`")
