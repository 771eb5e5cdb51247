"""The names of this house that a report must not tell: read from the database, the settings and the machine."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings

from checks.samples import SAMPLE_FILES
from plumbline_web.accounts.models import User
from plumbline_web.catalog.models import TrainedModel
from plumbline_web.jobs.models import Job
from plumbline_web.reports.models import Report
from plumbline_web.reports.redaction import Private, Redactor
from workers.environments.store import default_directory

TINY = "tiny:"

MOST_NAMES = 2_000
"""names of each kind that are looked for: the latest"""


def make_redactor(report: Report) -> Redactor:
    """What cleans a report, as it is ticked."""
    return Redactor(read_private(report), kept=tuple(report.kept))


def read_private(report: Report) -> Private:
    """Every name of this installation, in four queries."""
    hosts = {
        *_list_machine_hosts(),
        *Job.objects.exclude(host="").values_list("host", flat=True).distinct()[:MOST_NAMES],
    }
    users: set[str] = {*_list_machine_users()}
    for username, email, first, last in User.objects.values_list("username", "email", "first_name", "last_name")[
        :MOST_NAMES
    ]:
        users |= {username, email, f"{first} {last}".strip()}
    return Private(
        paths=_list_paths(),
        hosts={name for host in hosts for name in (host, host.split(".")[0])},
        users=users,
        models={*_list_models(), *_list_data(report)},
    )


def _list_models() -> set[str]:
    """Names of models that do not ship: whole, and the directory's own name."""
    names = TrainedModel.objects.exclude(name__startswith=TINY).order_by("-pk").values_list("name", flat=True)
    return _with_last_parts(names.distinct()[:MOST_NAMES])


def _list_data(report: Report) -> set[str]:
    finding = report.finding
    if finding is None or finding.validation.data in SAMPLE_FILES:
        return set()
    return _with_last_parts([finding.validation.data])


def _with_last_parts(names: Iterable[str]) -> set[str]:
    found = set()
    for name in names:
        last = name.rstrip("/").rsplit("/", 1)[-1]
        found |= {name, last, last.rsplit(".", 1)[0] if last.endswith((".jsonl", ".json", ".parquet")) else last}
    return found


@cache
def _list_machine_hosts() -> frozenset[str]:
    named = {socket.gethostname(), socket.getfqdn(), urlsplit(settings.ORIGIN).hostname or ""}
    return frozenset({*named, *(host.strip("[].") for host in settings.ALLOWED_HOSTS if host != "*")} - {"", "::1"})


@cache
def _list_machine_users() -> frozenset[str]:
    found = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")} | {Path.home().name}
    with contextlib.suppress(KeyError, OSError):  # a container whose user has no name
        found.add(getpass.getuser())
    return frozenset(found - {""})


def _list_paths() -> set[str]:
    """Directories of this installation; each other path is told by its form."""
    named = [settings.DATA, settings.BASE, *settings.ROOTS, Path.home(), tempfile.gettempdir(), sys.prefix]
    found = {str(each).rstrip("/") for each in (*named, default_directory())}
    return {path for path in found if path.count("/") > 1}  # "/tmp" alone names nobody
