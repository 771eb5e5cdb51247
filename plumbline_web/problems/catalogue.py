"""Loading the catalogue's files into the database, and writing them again.

Loading twice changes nothing. Where a person changed a field, the person's value stays and the file's is told; every
other field follows the file. A file is read whole and strictly before anything is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import transaction

from checks.catalogue.problem import PROBLEMS, RECURRENCES, read_problems, read_recurrences
from plumbline_web.problems.documents import FIELDS, changed_here, to_columns, to_document
from plumbline_web.problems.enums import Provenance
from plumbline_web.problems.models import Problem, Recurrence
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from workers.reproductions.outcome import read_shipped


@dataclass(frozen=True)
class Loaded:
    """What loading did. `kept`: "slug: field" where a person's value stays though the file says something else."""

    created: int
    updated: int
    unchanged: int
    groups: int
    kept: tuple[str, ...]


def load_catalogue(problems: Path = PROBLEMS, recurrences: Path = RECURRENCES) -> Loaded:
    """Bring the database to what the files say.

    Raises:
        BadRequest: a file that cannot be read, a malformed or repeated slug, a field that is not as it should be, or a
            group that names no problem; nothing has been changed then.
    """
    known = frozenset(problem.slug for problem in read_problems(problems))
    described = read_recurrences(recurrences, known=known)
    documents = [to_columns(json.loads(line)) for line in problems.read_text(encoding="utf-8").splitlines() if line]
    documents.sort(key=lambda document: str(document["slug"]))
    with transaction.atomic():
        present = {
            problem.slug: problem
            for problem in Problem.objects.select_for_update().filter(slug__in=known).defer("search")
        }
        Problem.objects.bulk_create(
            Problem(**document, shipped=document, provenance=_provenance_of(document["slug"]))
            for document in documents
            if document["slug"] not in present
        )
        updated = 0
        kept: list[str] = []
        for document in documents:
            problem = present.get(document["slug"])
            if problem is not None:
                updated += _follow(problem, document, kept)
        for group in described:
            row, _ = Recurrence.objects.get_or_create(name=group.name, defaults={"shipped": True})
            row.problems.add(*Problem.objects.filter(slug__in=group.slugs).values_list("pk", flat=True))
    return Loaded(
        created=len(documents) - len(present),
        updated=updated,
        unchanged=len(present) - updated,
        groups=len(described),
        kept=tuple(kept),
    )


def write_problems() -> Iterator[str]:
    """`problems.jsonl`: every problem of the database, one a line, in the order of slugs."""
    for problem in Problem.objects.order_by("slug").defer("search").iterator(chunk_size=1_000):
        yield json.dumps(to_document(problem), ensure_ascii=False) + "\n"


def write_recurrences() -> Iterator[str]:
    """`recurrences.jsonl`: every group, with the frameworks of its problems."""
    for group in Recurrence.objects.prefetch_related("problems"):
        members = list(group.problems.all())
        document = {
            "name": group.name,
            "slugs": [problem.slug for problem in members],
            "frameworks": sorted({problem.framework for problem in members}),
        }
        yield json.dumps(document, ensure_ascii=False) + "\n"


def _provenance_of(slug: str) -> Provenance:
    """A problem that this version was seen to catch is more than one that others reported."""
    found = read_shipped().get(slug)
    return Provenance.REPRODUCED if found is not None and found.reproduced else Provenance.IMPORTED


def _follow(problem: Problem, document: Mapping[str, Any], kept: list[str]) -> bool:
    """Give a row the file's values but where a person changed it; whether that changed anything."""
    by_person = _list_kept(problem)
    fresh = {name: document[name] for name in FIELDS if name not in by_person}
    kept += [f"{problem.slug}: {name}" for name in by_person if document[name] != _shipped(problem, name)]
    if problem.provenance == Provenance.IMPORTED:
        fresh["provenance"] = _provenance_of(problem.slug)
    changed = [name for name, value in fresh.items() if getattr(problem, name) != value]
    if problem.shipped == document and not changed:
        return False
    for name in changed:
        setattr(problem, name, fresh[name])
    problem.shipped = dict(document)
    problem.version += 1
    problem.save(update_fields=[*changed, "shipped", "version", "updated_at"])
    if changed:
        record(Subject.PROBLEM, problem, f"followed the catalogue: {', '.join(changed)}", fields=changed)
    return bool(changed)


def _list_kept(problem: Problem) -> Iterable[str]:
    """A problem that was made here before the catalogue had it belongs to those who made it."""
    return FIELDS if problem.shipped is None else changed_here(problem)


def _shipped(problem: Problem, name: str) -> Any:
    return getattr(problem, name) if problem.shipped is None else problem.shipped[name]
