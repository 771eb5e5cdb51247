"""Made-up validations in bulk: what 100,000 of them do to a page is measured on these.

Rows are made where they will lie, by SQL over a table of drawn facts: a hundred thousand validations have a million
verdicts. Nothing here is random but for the one generator, so that two seeds of a size are alike.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from plumbline_web.validations.seed_kinds import KINDS, judge
from plumbline_web.validations.seed_rows import COLUMNS, draw_rows, lay_ground, take_keys
from plumbline_web.validations.seed_sql import STATEMENTS

OPEN_COUNT = 8
"""How many of the newest run or wait."""


@dataclass(frozen=True)
class Seeded:
    """How many rows were made."""

    validations: int
    results: int
    findings: int
    cells: int


@transaction.atomic
def seed(count: int, *, days: int = 180, now: datetime | None = None) -> Seeded:
    """Make `count` validations over the last `days` days with runs, verdicts, findings, events and cells."""
    ground = lay_ground()
    keys = take_keys(count)
    draw = random.Random(count)
    with connection.cursor() as cursor:
        _skip_key_checks(cursor)
        cursor.execute(
            "CREATE TEMPORARY TABLE seeded_kinds (id bigint PRIMARY KEY, kind integer NOT NULL);"
            "CREATE TEMPORARY VIEW seeded AS SELECT * FROM validations_validation JOIN seeded_kinds USING (id);"
            "CREATE TEMPORARY TABLE seeded_verdicts (kind int, position int, name text, status text, sentence text,"
            " pattern text, first_wrong text, value float8, threshold float8, detection_limit float8, document jsonb)"
        )
        cursor.executemany(
            f"INSERT INTO seeded_verdicts VALUES ({', '.join(['%s'] * 11)})",
            [row for number, kind in enumerate(KINDS) for row in judge(number, kind)],
        )
        kinds = random.Random(count).choices(range(len(KINDS)), [kind.weight for kind in KINDS], k=count)
        if count > OPEN_COUNT:
            kinds[-OPEN_COUNT:] = [len(KINDS) - 1 - place % 2 for place in range(OPEN_COUNT)]
        with cursor.copy(
            f"COPY validations_validation ({', '.join(map(connection.ops.quote_name, COLUMNS))}) FROM STDIN"
        ) as copy:
            for row in draw_rows(keys, kinds, days=days, now=now or timezone.now(), ground=ground, draw=draw):
                copy.write_row(row)
        with cursor.copy("COPY seeded_kinds FROM STDIN") as copy:
            for pair in zip(keys, kinds, strict=True):
                copy.write_row(pair)
        cursor.execute("ANALYZE seeded_kinds")
        _analyse(cursor, "validation")
        made = {}
        with _without_indexes(cursor, "validations_checkresult"):
            for name, statement in STATEMENTS.items():
                cursor.execute(statement)
                made[name] = cursor.rowcount
        for table in ("checkresult", "finding", "validationrun", "cell"):
            _analyse(cursor, table)
        cursor.execute(
            "DROP VIEW seeded; DROP TABLE seeded_kinds, seeded_verdicts; SET LOCAL session_replication_role TO DEFAULT"
        )
    return Seeded(count, made["results"], made["findings"], made["cells"])


_ANALYSED = {
    "validation": (
        "id",
        "owner_id",
        "framework_id",
        "model_id",
        "profile_id",
        "state",
        "verdict",
        "created_at",
        "queue",
    ),
    "checkresult": ("validation_id", "check_name", "status", "pattern", "superseded_at"),
    "finding": ("state", "pattern"),
    "validationrun": ("validation_id", "run_id"),
    "cell": ("profile_id", "latest_id"),
}
"""Columns whose statistics the pages' plans need; those of whole documents take longer than all the rows."""


def _analyse(cursor: Any, table: str) -> None:
    cursor.execute(f"ANALYZE validations_{table} ({', '.join(_ANALYSED[table])})")


def _skip_key_checks(cursor: Any) -> None:
    """Leave out the check of each foreign key, where PostgreSQL lets us: a superuser's right.

    Every key comes from the table that it points to. A million verdicts have five keys each, and checking them one by
    one takes four times as long as writing the rows.
    """
    cursor.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
    if cursor.fetchone() == (True,):
        cursor.execute("SET LOCAL session_replication_role TO replica")


@contextmanager
def _without_indexes(cursor: Any, table: str) -> Iterator[None]:
    """Drop the indexes that serve reading alone, and build them again: much less work than a million insertions."""
    cursor.execute(
        "SELECT index.relname, pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class index ON index.oid = indexrelid "
        "WHERE indrelid = %s::regclass AND NOT indisunique",
        [table],
    )
    found = cursor.fetchall()
    cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # an index cannot go, or come, while keys are still to be checked
    cursor.execute("SET CONSTRAINTS ALL DEFERRED")
    for name, _ in found:
        cursor.execute(f"DROP INDEX {connection.ops.quote_name(name)}")
    yield
    cursor.execute("SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED")
    for _, definition in found:
        cursor.execute(definition)
