"""Keeps the secrets of sign-in links out of the log: Django writes the whole address of a request that it refuses."""

from __future__ import annotations

import logging
import re

_SECRET = re.compile(r"(/sign-in/)[^/\s?#\"']+")


class HideSecrets(logging.Filter):
    """Replaces the secret in `/sign-in/<secret>/` wherever it stands in a line.

    A filter of the handler: one of the logger `django.security` would not see the lines of `django.security.csrf`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str):
            record.msg = _hide(record.msg)
        if isinstance(record.args, tuple):
            record.args = tuple(_hide(each) if isinstance(each, str) else each for each in record.args)
        return True


def _hide(text: str) -> str:
    return _SECRET.sub(r"\1…", text)
