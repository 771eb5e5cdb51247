"""A full disk is nobody's wrong field and no fault of the program: 507, with a sentence, on pages and in the API."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from http import HTTPStatus

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

log = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT)

SENTENCE = "Insufficient storage: the server's disk is full; ask an administrator to make room, then send it again."


def is_full(error: BaseException | None) -> bool:
    """Whether an error says that nothing more can be written."""
    return isinstance(error, OSError) and error.errno in FULL


class StorageFull:
    """Answers for the pages; the API answers for itself, in its own shape."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not is_full(exception):
            return None
        log.error("nothing can be written: %s", exception)
        return render(request, "507.html", {"sentence": SENTENCE}, status=HTTPStatus.INSUFFICIENT_STORAGE)
