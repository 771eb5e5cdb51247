"""Made-up validations in bulk: what 100,000 of them do to a page is measured on these.

Rows are made where they will lie, by SQL over a table of drawn facts: a hundred thousand validations have a million
verdicts. Nothing here is random but for the one generator, so that two seeds of a size are alike.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from django.contrib.auth.hashers import make_password
from django.db import connection, transaction
from django.utils import timezone

from checks.models.families import FAMILIES
from checks.registry import CHECKS
from checks.spec import RunSpec
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.catalog.models import Environment, Framework, Profile, TrainedModel
from plumbline_web.validations.enums import OPEN, State, Status
from plumbline_web.validations.seed_kinds import KINDS, count_statuses, judge
from plumbline_web.validations.seed_sql import STATEMENTS
from workers.report.as_json import to_plain

VERSIONS = {"transformers": ("5.22.0", "5.23.1", "5.24.0"), "trl": ("1.14.0", "1.15.2", "1.16.0")}
TITLES = {"transformers": "Hugging Face Trainer", "trl": "TRL"}
PEOPLE = ("ana", "bo", "chen", "dara", "emil")
PROFILES = ("nightly", "packed", "bf16")
DATA = ("gsm8k_sample", "tulu3_sample")

OPEN_COUNT = 8
"""How many of the newest run or wait."""


@dataclass(frozen=True)
class Seeded:
    """How many rows were made."""

    validations: int
    results: int
    findings: int
    cells: int


@dataclass(frozen=True)
class _Ground:
    """Keys of the small tables."""

    owners: tuple[int, ...]
    environments: tuple[tuple[int, int, str], ...]
    """framework, environment, name"""
    models: tuple[tuple[int, str], ...]
    profiles: tuple[int | None, ...]


@transaction.atomic
def seed(count: int, *, days: int = 180, now: datetime | None = None) -> Seeded:
    """Make `count` validations over the last `days` days with runs, verdicts, findings, events and cells."""
    ground = _lay_ground()
    keys = _take_keys(count)
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
            f"COPY validations_validation ({', '.join(map(connection.ops.quote_name, _COLUMNS))}) FROM STDIN"
        ) as copy:
            for row in _draw_rows(keys, kinds, days=days, now=now or timezone.now(), ground=ground, draw=draw):
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


_COLUMNS = (
    "id",
    "owner_id",
    "framework_id",
    "environment_id",
    "model_id",
    "profile_id",
    "data",
    "settings",
    "inject",
    "full",
    "fresh",
    "time_limit_s",
    "queue",
    "spec",
    "plan",
    "state",
    "phase",
    "fraction",
    "error",
    "warnings",
    "created_at",
    "started_at",
    "ended_at",
    "idempotency_key",
    "version",
    "verdict",
    "passed",
    "failed",
    "inconclusive",
    "errors",
    "skipped",
)


def _lay_ground() -> _Ground:
    password = make_password(None)
    owners = [
        User.objects.get_or_create(username=name, defaults={"role": Role.SUBMITTER, "password": password})[0].pk
        for name in PEOPLE
    ]
    environments = []
    for name, versions in VERSIONS.items():
        framework, _ = Framework.objects.get_or_create(name=name, defaults={"title": TITLES[name], "package": name})
        for version in versions:
            environment, _ = Environment.objects.get_or_create(
                framework=framework,
                digest=sha256(f"seed {name} {version}".encode()).hexdigest(),
                defaults={"version": version, "python": "3.11.7", "packages": {name: version, "torch": "2.13.0"}},
            )
            environments.append((framework.pk, environment.pk, name))
    models = []
    for family in FAMILIES:
        model, _ = TrainedModel.objects.get_or_create(
            name=f"tiny:{family}",
            revision=sha256(f"seed {family}".encode()).hexdigest()[:12],
            defaults={"family": family, "parameters": 147_904},
        )
        models.append((model.pk, model.name))
    profiles = [
        Profile.objects.get_or_create(name=name, version=1, defaults={"data": DATA[0], "settings": {}})[0].pk
        for name in PROFILES
    ]
    return _Ground(tuple(owners), tuple(environments), tuple(models), (None, *profiles))


def _take_keys(count: int) -> list[int]:
    """Numbers for new validations; asked for before the COPY begins, which has the connection for itself."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT nextval(pg_get_serial_sequence('validations_validation', 'id')) FROM generate_series(1, %s)",
            [count],
        )
        return [key for (key,) in cursor.fetchall()]


def _draw_rows(
    keys: Sequence[int], kinds: Sequence[int], *, days: int, now: datetime, ground: _Ground, draw: random.Random
) -> Iterator[tuple[Any, ...]]:
    """Rows of validations, oldest first, in the order of _COLUMNS."""
    texts = _Texts()
    count = len(keys)
    for place, key in enumerate(keys):
        kind = KINDS[kinds[place]]
        created = now - timedelta(days=days) * (1 - (place + draw.random()) / count)
        if kind.outcome in OPEN:
            created = now - timedelta(seconds=count - place)
        framework, environment, name = draw.choice(ground.environments)
        model, model_name = draw.choice(ground.models)
        state, verdict = (State.DONE, kind.outcome) if isinstance(kind.outcome, Status) else (kind.outcome, "")
        started = None if state == State.QUEUED else created + timedelta(seconds=1 + draw.random())
        ended = started + timedelta(seconds=20 + 60 * draw.random()) if started and state != State.RUNNING else None
        yield (
            key,
            draw.choice(ground.owners),
            framework,
            environment,
            model,
            draw.choice(ground.profiles),
            draw.choice(DATA),
            texts.settings(kind.packing),
            "",
            False,
            False,
            600.0,
            "gpu" if draw.random() < 0.2 else "cpu",
            texts.spec(name, model_name, kind.packing),
            texts.plan(kind.packing),
            state,
            {State.QUEUED: "waiting for a worker", State.RUNNING: "framework run"}.get(state, ""),
            0.4 if state == State.RUNNING else float(ended is not None),
            "the worker's disk was full" if state == State.FAILED else "",
            "[]",
            created,
            started,
            ended,
            "",
            1,
            verdict,
            *count_statuses(kind),
        )


class _Texts:
    """JSON texts, each written once."""

    def __init__(self) -> None:
        self._specs: dict[tuple[str, str, bool], str] = {}
        self._plans: dict[bool, str] = {}

    def settings(self, packing: bool) -> str:
        return json.dumps({"packing": True} if packing else {})

    def spec(self, framework: str, model: str, packing: bool) -> str:
        key = (framework, model, packing)
        if key not in self._specs:
            spec = RunSpec(framework=framework, model=Path(model.replace(":", "-")), data=Path(f"{DATA[0]}.jsonl"))
            self._specs[key] = json.dumps(to_plain(asdict(replace(spec, packing=packing))))
        return self._specs[key]

    def plan(self, packing: bool) -> str:
        if packing not in self._plans:
            judged = [name for name in CHECKS if packing or name != "data.packing"]
            skipped = [] if packing else [{"check": "data.packing", "reason": "the run does not pack (packing=false)"}]
            runs = [{"role": "run", "steps": [1, 3], "checks": judged}]
            self._plans[packing] = json.dumps(
                {"runs": runs, "judged": judged, "skipped": skipped, "needs_reference": True}
            )
        return self._plans[packing]
