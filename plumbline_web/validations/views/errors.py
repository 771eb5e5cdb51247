"""Pages of what cannot be answered. `plumbline_web.urls` names `bad_request` as its handler400."""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import RequestDataTooBig, TooManyFieldsSent
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

TOO_LARGE = 413


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """A request that cannot be read: a field of 100 MB, too many fields, a malformed header."""
    status = 400
    sentence = "The address, a header or the body of the request is malformed; go back and send it again."
    if isinstance(exception, RequestDataTooBig):
        status = TOO_LARGE
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE or 0
        sentence = (
            f"The form holds more than {limit / 1e6:.1f} MB, the most that is read; shorten the field that is too "
            "long. Captures are uploaded through the API, in pieces."
        )
    elif isinstance(exception, TooManyFieldsSent):
        sentence = f"The form has more than {settings.DATA_UPLOAD_MAX_NUMBER_FIELDS} fields; send fewer."
    # No request in the template: reading its user or its fields could fail as the request did.
    return render(None, "400.html", {"sentence": sentence}, status=status)
