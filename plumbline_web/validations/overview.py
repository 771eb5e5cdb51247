"""What the overview shows: the matrix of latest verdicts, what is new, what waits for a person, what runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Q, Window
from django.utils import timezone

from plumbline_web.accounts.models import User
from plumbline_web.catalog.models import Framework, Profile, TrainedModel
from plumbline_web.validations.enums import OPEN, FindingState, Pattern, Status
from plumbline_web.validations.models import Cell, Finding, Refusal, Validation
from plumbline_web.validations.names import NO_PROFILE

STALE_AFTER = timedelta(days=14)
"""A verdict that old says little of today's software."""

MOST_CELLS = 2_000
MOST_MODELS = 30
"""Columns of the matrix; those validated last come first."""

SHOWN_NEW = 8
SHOWN_RUNNING = 8
MOST_COUNTED = 1_000

LONGEST_LIFE = timedelta(days=3)
"""From submission to end, at most: new verdicts are looked for among the validations of this time before the visit."""

UNSEEN = ("spec", "plan", "settings", "warnings", "checks", "environment__packages")
"""Columns that no row shows, and that are larger than all the others together."""


@dataclass(frozen=True)
class Slot:
    """What the matrix says of one framework and model: its newest cell, and how the others stand."""

    cell: Cell
    word: str
    """the latest pass or fail; else what the latest validation says"""
    shown: Validation
    stale: str
    """why the verdict is not today's; empty where it is"""
    others: int
    others_failing: int

    @property
    def is_regression(self) -> bool:
        return self.cell.first_bad_id is not None and self.cell.last_good_id is not None


@dataclass(frozen=True)
class Unsupported:
    """A pair that was never validated, because the framework cannot do what was asked; `sentence` says why."""

    sentence: str
    at: datetime


@dataclass(frozen=True)
class Line:
    """A row of the matrix; None where a pair was never asked for."""

    framework: Framework
    slots: tuple[Slot | Unsupported | None, ...]


@dataclass(frozen=True)
class Matrix:
    models: tuple[TrainedModel, ...]
    lines: tuple[Line, ...]
    hidden_models: int


@dataclass(frozen=True)
class PatternCount:
    """Open findings of one failure pattern; `silent` of them show in nothing but the check."""

    pattern: str
    title: str
    count: int
    silent: int


@dataclass(frozen=True)
class News:
    """Validations that ended since the person's visit before this one."""

    since: datetime | None
    rows: tuple[Validation, ...]
    failed: int
    total: int


def read_profiles() -> list[tuple[str, str]]:
    """Choices of the matrix's filter: value, title."""
    profiles = Profile.objects.order_by("name", "-version")
    return [(f"{profile.name}@{profile.version}", str(profile)) for profile in profiles]


def read_matrix(profile: str) -> Matrix:
    """The cells of one profile (`name@version`), of validations without one (`none`), or of all (empty)."""
    cells = list(_find_cells(profile))
    newest = {cell.framework_id: cell.environment_id for cell in sorted(cells, key=lambda c: c.environment_id)}
    slots: dict[tuple[int, str], list[Cell]] = {}
    models: dict[str, TrainedModel] = {}
    frameworks: dict[int, Framework] = {}
    for cell in cells:
        # a checkpoint that was retrained keeps its column
        models.setdefault(cell.model.name, cell.model)
        frameworks.setdefault(cell.framework_id, cell.framework)
        slots.setdefault((cell.framework_id, cell.model.name), []).append(cell)
    columns = tuple(sorted(list(models.values())[:MOST_MODELS], key=lambda model: model.name))
    refusals = _read_refusals() if profile in ("", NO_PROFILE) else {}
    frameworks |= {framework.pk: framework for framework, model in refusals if model in models}
    unsupported = {(framework.pk, model): each for (framework, model), each in refusals.items()}
    now = timezone.now()
    lines = tuple(
        Line(
            framework,
            tuple(
                _read_slot(slots.get((framework.pk, model.name), ()), newest=newest.get(framework.pk), now=now)
                or unsupported.get((framework.pk, model.name))
                for model in columns
            ),
        )
        for framework in sorted(frameworks.values(), key=lambda framework: framework.title.lower())
    )
    return Matrix(columns, lines, max(0, len(models) - MOST_MODELS))


def _find_cells(profile: str) -> Iterable[Cell]:
    cells = Cell.objects.select_related("framework", "environment", "model", "profile", "latest", "conclusive").only(
        *("count", "last_good_id", "first_bad_id", "profile__name", "profile__version"),
        *("framework__name", "framework__title", "environment__version", "model__name"),
        *("latest__state", "latest__verdict", "latest__created_at"),
        *("conclusive__state", "conclusive__verdict", "conclusive__created_at"),
    )
    if profile == NO_PROFILE:
        cells = cells.filter(profile__isnull=True)
    elif profile:
        name, _, version = profile.rpartition("@")
        is_named = "\0" not in name and version.isdecimal() and len(version) <= 9
        cells = cells.filter(profile__name=name, profile__version=int(version)) if is_named else cells.none()
    return cells.order_by("-latest_id")[:MOST_CELLS]


def _read_refusals() -> Mapping[tuple[Framework, str], Unsupported]:
    """(framework, model) → why it was last refused."""
    newest = Refusal.objects.select_related("framework").order_by("at")[:MOST_CELLS]
    return {(each.framework, each.model): Unsupported(each.sentence, each.at) for each in newest}


def _read_slot(cells: Sequence[Cell], *, newest: int | None, now: datetime) -> Slot | None:
    """`cells` of one framework and model, the one validated last first."""
    if not cells:
        return None
    cell, *others = cells
    shown = cell.conclusive or cell.latest
    return Slot(
        cell=cell,
        word=shown.verdict or shown.state,
        shown=shown,
        stale=_say_stale(cell, shown, newest=newest, now=now),
        others=len(others),
        others_failing=sum(
            other.conclusive is not None and other.conclusive.verdict == Status.FAIL for other in others
        ),
    )


def _say_stale(cell: Cell, shown: Validation, *, newest: int | None, now: datetime) -> str:
    if cell.latest_id != shown.pk:
        word = cell.latest.verdict or cell.latest.state
        return f"{cell.latest.number} came later and is {word}"
    if cell.environment_id != newest:
        return "a newer version is installed"
    if now - shown.created_at > STALE_AFTER:
        return f"older than {STALE_AFTER.days} days"
    return ""


def read_news(user: User) -> News:
    """What ended since the visit before this one; on a first visit nothing is new."""
    since = user.visited_at
    if since is None:
        return News(None, (), 0, 0)
    ended = Validation.objects.visible_to(user).filter(created_at__gt=since - LONGEST_LIFE, ended_at__gt=since)
    # Bounded twice: by time, and by what anybody reads.
    verdicts = list(ended.order_by("-created_at", "-id").values_list("verdict", flat=True)[:MOST_COUNTED])
    rows = tuple(ended.with_names().defer(*UNSEEN).order_by("-created_at", "-id")[:SHOWN_NEW])
    return News(since, rows, verdicts.count(Status.FAIL), len(verdicts))


def read_patterns() -> tuple[tuple[PatternCount, ...], int, int]:
    """Open findings by pattern in the order of the seven, with those of none last; their sum; the silent ones."""
    counts: Mapping[str, tuple[int, int]] = {
        row["pattern"]: (row["total"], row["silent_total"])
        for row in Finding.objects.filter(state=FindingState.OPEN)
        .order_by()
        .values("pattern")
        .annotate(total=Count("pk"), silent_total=Count("pk", filter=Q(silent=True)))
    }
    rows = [PatternCount(value, str(title), *counts.get(value, (0, 0))) for value, title in Pattern.choices]
    if "" in counts:
        rows.append(PatternCount("", "no pattern recognised", *counts[""]))
    return tuple(rows), sum(row.count for row in rows), sum(row.silent for row in rows)


def read_running(user: User) -> tuple[tuple[Validation, ...], int]:
    """Validations that run or wait, those that run first; and how many there are."""
    rows = Validation.objects.visible_to(user).filter(state__in=OPEN).annotate(total=Window(Count("pk")))
    ordered = tuple(rows.with_names().order_by("-state", "created_at")[:SHOWN_RUNNING])  # "queued" sorts before it
    return ordered, ordered[0].total if ordered else 0


def has_any(user: User) -> bool:
    return Validation.objects.visible_to(user).exists()
