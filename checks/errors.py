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
    """A tensor of which a capture holds too little to be compared: the check that needs it is inconclusive.

    `str()` is that verdict's sentence.
    """

    def __init__(self, name: str, found: str) -> None:
        super().__init__(f"{name} was recorded {found}; record the capture again with `plumbline-capture run`")
