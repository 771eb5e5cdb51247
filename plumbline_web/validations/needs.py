"""What a framework run is needed for and whether it is there: the parts of planning that load no model code.

The sweeper and the scheduler import this module, and must not wait for torch.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from checks.spec import RunSpec
from plumbline_web.catalog.models import Environment, Framework, TrainedModel
from plumbline_web.jobs.enums import JobState, Kind
from plumbline_web.jobs.models import Job
from plumbline_web.validations.enums import RunState
from plumbline_web.validations.models import FrameworkRun
from workers.report.as_json import to_plain

OF_COMMANDS = ("command", "unstated")
"""Fields of a run spec that only a command has, and that are left out elsewhere: earlier needs stay what they were."""

RECENT_JOBS = 20
"""How many earlier jobs the expected time is the median of."""


def digest_need(
    spec: RunSpec,
    *,
    environment: Environment,
    model: TrainedModel,
    data_digest: str,
    steps: Sequence[int],
    modules: str,
    full: bool,
    memory: bool = False,
) -> str:
    """SHA-256 of everything that decides what a framework run records: equal needs are one run.

    Paths are not among it, their contents are.
    """
    settings: Mapping[str, Any] = {
        k: v for k, v in to_plain(spec).items() if k not in ("model", "data") and not (k in OF_COMMANDS and not v)
    }
    content = [environment.digest, model.revision, data_digest, settings, list(steps), modules, full]
    if memory:  # said only where it is so: what was stored before there was a choice stays what it is
        content.append("memory")
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def find_stored(need: str, *, fresh: bool) -> FrameworkRun | None:
    """A run of the same need that is under way, or that ended well and whose capture is whole."""
    under_way = FrameworkRun.objects.filter(need=need, state__in=[RunState.QUEUED, RunState.RUNNING]).first()
    if under_way is not None:
        return under_way
    if fresh:
        return None
    stored = FrameworkRun.objects.filter(need=need, ending="completed", capture__whole=True)
    return stored.exclude(capture__files__artefact__missing_since__isnull=False).order_by("-ended_at").first()


def expected_seconds(kind: Kind, framework: Framework, model: TrainedModel) -> float | None:
    """The median duration of the latest jobs of a kind for a framework and a family; None where there were none."""
    jobs = Job.objects.filter(kind=kind, state=JobState.DONE, ended_at__isnull=False)
    if kind == Kind.JUDGE:
        jobs = jobs.filter(validation__framework=framework, validation__model__family=model.family)
    else:
        jobs = jobs.filter(run__framework=framework, run__model__family=model.family)
    times = jobs.order_by("-ended_at").values_list("started_at", "ended_at")[:RECENT_JOBS]
    seconds = [(ended - started).total_seconds() for started, ended in times if started and ended]
    return statistics.median(seconds) if seconds else None


def digest_data(path: Path) -> str:
    """SHA-256 over the names and contents of a data set's files; read again only when one changed."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        stat = file.stat()
        digest.update(str(file.relative_to(path.parent)).encode())
        digest.update(_digest_file(file, stat.st_size, stat.st_mtime_ns).encode())
    return digest.hexdigest()


@lru_cache(maxsize=1024)
def _digest_file(file: Path, _size: int, _modified_ns: int) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
