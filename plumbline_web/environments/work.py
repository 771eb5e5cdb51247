"""An environment job: what was asked, in a process that ends with the job, on the machine of its worker."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from plumbline_web.artefacts.store import store_file
from plumbline_web.environments.models import Wish
from plumbline_web.jobs.domain import Lease, finish, lock, note_process_group
from plumbline_web.jobs.enums import JobState
from plumbline_web.jobs.models import Job
from plumbline_web.validations.states import change_of_state
from plumbline_web.validations.work.heart import Heart
from workers.environments.job import EnvironmentWish
from workers.report.as_json import to_plain
from workers.runner import supervise
from workers.sandbox import INHERITED

TIME_LIMIT_S = 3 * 3600.0
"""Of a build on a slow line; the largest took half an hour at a load of 20."""

SEEN = (*INHERITED, "PLUMBLINE_ENVIRONMENTS", "PLUMBLINE_SHIMS", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
FOR_PIP = ("PIP_", "SSL_CERT_", "REQUESTS_CA_BUNDLE")
PROXIES = ("http_proxy", "https_proxy", "no_proxy")


def perform(lease: Lease, job: Job, heart: Heart, directory: Path) -> None:
    """Do what was asked and write what it said, or nothing where the lease is gone."""
    assert job.wish_id is not None
    wish = Wish.objects.get(pk=job.wish_id)
    asked, said, log = (directory / name for name in ("wish.json", "said.json", "log"))
    asked.write_text(json.dumps(to_plain(_state(wish))), encoding="utf-8")
    heart.say(wish.get_verb_display())
    ended = supervise(
        [sys.executable, "-m", "workers.environments.job", str(asked), str(said)],
        cwd=directory,
        environment=choose_environment(os.environ),
        log=log,
        time_limit_s=TIME_LIMIT_S,
        memory_limit_bytes=None,
        on_line=heart.take_line,
        cancelled=heart.cancelled,
        tag=lease.tag,
        on_start=lambda group: note_process_group(lease, group),
    )
    if heart.cancelled():
        return
    text = json.loads(said.read_text(encoding="utf-8")) if said.is_file() else ended.last_error or ended.ending
    stored = store_file(log)
    with change_of_state():
        job = lock(lease)
        Wish.objects.filter(pk=wish.pk).update(said=text.replace("\0", ""))
        failed = ended.exit_code != 0
        finish(job, JobState.FAILED if failed else JobState.DONE, log=stored, error=text if failed else "")


def _state(wish: Wish) -> EnvironmentWish:
    return EnvironmentWish(
        verb=wish.verb,  # type: ignore[arg-type]  # one of Verb's
        name=wish.name,
        framework=wish.framework,
        others=tuple(wish.others),
        python=wish.python,
        days=wish.days or 0.0,
    )


def choose_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a build may see: where programs and packages are, and no token, for packages run code of their own."""
    return {
        name: value
        for name, value in environment.items()
        if name in SEEN or name.startswith(FOR_PIP) or name.lower() in PROXIES
    } | {"PYTHONUNBUFFERED": "1"}
