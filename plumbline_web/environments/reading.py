"""What the page shows: the environments of this machine, and what was asked of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from checks.errors import BadRequest
from plumbline_web.environments.models import Wish
from plumbline_web.jobs.enums import JobState
from plumbline_web.jobs.models import Job
from workers.environments.building import format_size
from workers.environments.store import Store

SHOWN_WISHES = 12
TAIL_LINES = 14
DAY_S = 86_400.0


@dataclass(frozen=True)
class EnvironmentRow:
    """One name and what it means; `trouble`: why nothing can be run in it, empty where something can."""

    name: str
    what: str
    python: str = ""
    packages: int | None = None
    size: str = ""
    used_at: datetime | None = None
    left_out: tuple[str, ...] = ()
    trouble: str = ""


@dataclass(frozen=True)
class WishRow:
    """Something that was asked, how far it is, and the end of what it printed while it runs."""

    wish: Wish
    job: Job
    tail: str

    @property
    def is_open(self) -> bool:
        return self.job.state in (JobState.QUEUED, JobState.RUNNING)


def read_environments(store: Store) -> tuple[EnvironmentRow, ...]:
    return tuple(_read_row(name, store) for name in store.list_names())


def _read_row(name: str, store: Store) -> EnvironmentRow:
    try:
        named = store.find(name)
    except BadRequest as error:
        return EnvironmentRow(name, "", trouble=error.found)
    if named.image is not None:
        return EnvironmentRow(name, f"container {named.image}")
    if named.built is None:
        trouble = "" if named.python.is_file() else "its Python is gone"
        return EnvironmentRow(name, f"{named.python}, not built here", trouble=trouble)
    built = named.built
    return EnvironmentRow(
        name,
        ", ".join(built.requested),
        python=built.python,
        packages=len(built.packages),
        size=format_size(built.size_bytes),
        used_at=datetime.fromtimestamp(store.last_used(built.key), UTC),
        left_out=tuple(f"{each.name}: {each.reason}" for each in built.left_out),
    )


def list_half_built(store: Store) -> tuple[str, ...]:
    """Keys of builds that were begun and not ended."""
    return tuple(key for key in store.list_keys() if _is_half(key, store))


def _is_half(key: str, store: Store) -> bool:
    try:
        return store.read(key) is None
    except BadRequest:
        return True


def list_unused(store: Store, *, days: float) -> tuple[str, ...]:
    """The names that an eviction of so many days forgets."""
    old = (key for key in store.list_keys() if time.time() - store.last_used(key) >= days * DAY_S)
    return tuple(sorted(name for key in old for name in store.names_of(key)))


def read_wishes() -> tuple[WishRow, ...]:
    """The latest first."""
    wishes = Wish.objects.select_related("asked_by").prefetch_related("jobs").order_by("-pk")[:SHOWN_WISHES]
    return tuple(_read_wishes(wishes))


def _read_wishes(wishes: object) -> Iterator[WishRow]:
    assert hasattr(wishes, "__iter__")
    for wish in wishes:
        for job in wish.jobs.all():
            yield WishRow(wish, job, _read_tail(job) if job.state == JobState.RUNNING else "")


def _read_tail(job: Job) -> str:
    pieces = job.lines.filter(token=job.token).order_by("-number").values_list("text", flat=True)[:3]
    return "\n".join("\n".join(reversed(pieces)).splitlines()[-TAIL_LINES:])
