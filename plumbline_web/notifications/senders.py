"""Threads of the control worker that talk to other servers, so that a slow one does not hold up the sweeper.

Nothing is lost with them: a message is claimed under a lease, and one whose thread died becomes due again.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import Lock

from django.db import connection

from plumbline_web.notifications.sending import attempt

THREADS = 4
"""Messages on their way at once."""

log = logging.getLogger(__name__)

_lock = Lock()
_pending: dict[int, Future[None]] = {}


def attempt_beside(pk: int) -> Future[None]:
    """Attempt to send a message in a thread; the one that is at it already, where there is one."""
    with _lock:
        if pk not in _pending:
            _pending[pk] = _threads().submit(_attempt, pk)
        return _pending[pk]


@cache
def _threads() -> ThreadPoolExecutor:
    """Of this process: a worker forks after this module was imported."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="deliver")


def _attempt(pk: int) -> None:
    try:
        attempt(pk)
    except Exception:
        # Nobody waits for the result; the message is due again when its lease ends.
        log.exception("message %s was not attempted", pk)
    finally:
        with _lock:
            _pending.pop(pk, None)
        connection.close()  # each thread has its own
