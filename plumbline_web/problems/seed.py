"""Made-up problems in bulk, each drawn from several of the catalogue's: what 50,000 of them do to a page is measured.

Their words are those of the catalogue, and for each a few of a made-up vocabulary in which, as in a language, a few
words are common and most are rare. Nothing here is random but for the one generator, so that two seeds of a size are
alike.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import accumulate, islice

from django.db import connection, transaction

from checks.catalogue.problem import Problem as Published
from checks.catalogue.problem import load_problems, load_recurrences
from plumbline_web.problems.enums import Provenance
from plumbline_web.problems.models import Problem, Recurrence

MADE_UP = "made-up"
"""What the slugs and the names of groups begin with, so that they can be told from real ones."""

FIRST_DAY = date(2022, 1, 1)
DAYS = 1_800

WORDS = 20_000
"""of the made-up vocabulary"""

SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "wo", "xu", "zy")

PROVENANCES = {
    Provenance.IMPORTED: 80,
    Provenance.REPRODUCED: 8,
    Provenance.FOUND: 9,
    Provenance.FIRST_RAISED: 3,
}

BATCH = 1_000


@dataclass(frozen=True)
class SeededProblems:
    """How many rows were made."""

    problems: int
    groups: int


@dataclass(frozen=True)
class _Stock:
    """What is drawn from."""

    problems: Sequence[Published]
    frameworks: Sequence[str]
    models: Sequence[str]
    packages: Sequence[str]
    vocabulary: Sequence[str]
    weights: Sequence[float]
    """of the vocabulary, cumulative, by Zipf's law: the n-th word comes in proportion to 1 / n"""


@transaction.atomic
def seed_problems(count: int) -> SeededProblems:
    """Make `count` problems, and groups of recurrences in the catalogue's own proportion."""
    draw = random.Random(count)
    stock = _take_stock()
    made: list[int] = []
    problems = _draw_problems(stock, count, draw=draw)
    while rows := list(islice(problems, BATCH)):
        made += [problem.pk for problem in Problem.objects.bulk_create(rows)]
    groups = count * len(load_recurrences()) // len(stock.problems)
    _make_groups(made, groups, draw=draw)
    with connection.cursor() as cursor:
        for model in (Problem, Recurrence, Recurrence.problems.through):
            cursor.execute(f"ANALYZE {model._meta.db_table}")
    return SeededProblems(len(made), groups)


def make_word(number: int) -> str:
    """The made-up word of a number: `make_word(0)` is the most common one.

    >>> make_word(0), make_word(19_999)
    ('bababaz', 'zydexukuz')
    """
    letters = "".join(SYLLABLES[number // 16**place % 16] for place in range(3))
    return f"{letters}{SYLLABLES[number // 16**3 % 16]}z" if number >= 16**3 else f"{letters}z"


def _take_stock() -> _Stock:
    published = load_problems()
    weights = accumulate(1 / (number + 1) for number in range(WORDS))
    return _Stock(
        problems=published,
        frameworks=sorted({problem.framework for problem in published}),
        models=sorted({model for problem in published for model in problem.models}),
        packages=sorted({each.package for problem in published for each in problem.affected_spec}),
        vocabulary=[make_word(number) for number in range(WORDS)],
        weights=list(weights),
    )


def _draw_problems(stock: _Stock, count: int, *, draw: random.Random) -> Iterator[Problem]:
    first = Problem.objects.filter(slug__startswith=f"{MADE_UP}-").count()
    provenances = draw.choices(list(PROVENANCES), list(PROVENANCES.values()), k=count)
    for number, provenance in enumerate(provenances, start=first):
        # Four of them, so that no two have the same words though each has those of the catalogue.
        seen, caused, mended, placed = draw.choices(stock.problems, k=4)
        words = draw.choices(stock.vocabulary, cum_weights=stock.weights, k=6)
        yield Problem(
            slug=f"{MADE_UP}-{number}",
            title=f"{seen.title}, {' '.join(words[:2])}"[:300],
            framework=seen.framework if draw.random() < 0.7 else draw.choice(stock.frameworks),
            component=placed.component,
            pattern=seen.pattern,
            stage=seen.stage,
            silent=seen.silent,
            symptom=f"{seen.symptom} It shows with {words[2]} and {words[3]}.",
            root_cause=f"{caused.root_cause} So does {words[4]}.",
            fix=mended.fix or "",
            status=mended.status,
            first_seen=(FIRST_DAY + timedelta(days=draw.randrange(DAYS))).isoformat(),
            affected=caused.affected or "",
            fixed_in=mended.fixed_in or "",
            url=seen.url,
            related_urls=list(caused.related_urls),
            caught_by=list(placed.caught_by),
            cpu_reproducible=placed.cpu_reproducible,
            shows_in_release=placed.shows_in_release or "",
            confidence=placed.confidence,
            affected_spec=[_draw_range(stock, draw)] if draw.random() < 0.4 else [],
            provenance=provenance,
            models=sorted(set(draw.choices(stock.models, k=draw.randrange(3)))),
        )


def _draw_range(stock: _Stock, draw: random.Random) -> dict[str, str]:
    release = f"{draw.randrange(6)}.{draw.randrange(60)}"
    return {
        "package": draw.choice(stock.packages),
        "specifier": f">={release}.0,<{release}.{1 + draw.randrange(9)}",
        "source": "made up",
    }


def _make_groups(problems: Sequence[int], count: int, *, draw: random.Random) -> None:
    first = Recurrence.objects.filter(name__startswith=MADE_UP).count()
    groups = Recurrence.objects.bulk_create(
        Recurrence(name=f"{MADE_UP} fault {number}") for number in range(first, first + count)
    )
    link = Recurrence.problems.through
    link.objects.bulk_create(
        (
            link(recurrence_id=group.pk, problem_id=problem)
            for group in groups
            for problem in draw.sample(problems, k=min(len(problems), 2 + draw.randrange(9)))
        ),
        batch_size=BATCH,
    )
