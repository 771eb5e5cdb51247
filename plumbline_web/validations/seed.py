"""Made-up validations in bulk: what 100,000 of them do to a page is measured on these.

Rows are made where they will lie, by SQL over a table of drawn facts: a hundred thousand validations have a million
verdicts. Nothing here is random but for the one generator, so that two seeds of a size are alike.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
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
from plumbline_web.validations.enums import State, Status
from plumbline_web.validations.seed_sql import STATEMENTS
from workers.report.as_json import to_plain

VERSIONS = {"transformers": ("5.22.0", "5.23.1", "5.24.0"), "trl": ("1.14.0", "1.15.2", "1.16.0")}
TITLES = {"transformers": "Hugging Face Trainer", "trl": "TRL"}
PEOPLE = ("ana", "bo", "chen", "dara", "emil")
PROFILES = ("nightly", "packed", "bf16")
DATA = ("gsm8k_sample", "tulu3_sample")

OPEN_COUNT = 8
"""How many of the newest run or wait."""

OUTCOMES = (
    (Status.PASS, 0.80),
    (Status.FAIL, 0.11),
    (Status.INCONCLUSIVE, 0.05),
    (Status.ERROR, 0.01),
    (State.CANCELLED, 0.02),
    (State.FAILED, 0.01),
)


@dataclass(frozen=True)
class Fault:
    """Which checks a fault makes fail, and what they say."""

    checks: tuple[str, ...]
    pattern: str
    sentence: str
    first_wrong: str


FAULTS = (
    Fault(
        ("step.loss", "step.denominator", "step.gradients"),
        "objective-scale",
        "the loss is divided by 336, and 335 tokens count in the step",
        "loss denominator",
    ),
    Fault(("step.loss", "step.gradients"), "loss-mask", "the targets are shifted twice", "labels"),
    Fault(("step.settings",), "model-definition", "eps is 1e-05 where the config says 1e-06", "model.norm.eps"),
    Fault(
        ("step.gradients",), "precision", "gradients differ from layer 1 down to the input", "model.layers.1.self_attn"
    ),
    Fault(("data.packing",), "sequence-length", "differs from the second packed document on", "position_ids"),
    Fault(("step.update",), "objective-scale", "norms are decayed, which the optimizer's groups exclude", "model.norm"),
)


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
        cursor.execute(
            "CREATE TEMPORARY TABLE seeded (LIKE validations_validation INCLUDING DEFAULTS);"
            "ALTER TABLE seeded ADD COLUMN fault integer NOT NULL DEFAULT -1"
        )
        with cursor.copy(f"COPY seeded ({', '.join(map(connection.ops.quote_name, _COLUMNS))}) FROM STDIN") as copy:
            for row in _draw_rows(keys, days=days, now=now or timezone.now(), ground=ground, draw=draw):
                copy.write_row(row)
        cursor.execute("CREATE TEMPORARY TABLE seeded_checks (position int, name text, sentence text)")
        cursor.executemany("INSERT INTO seeded_checks VALUES (%s, %s, %s)", _list_checks())
        cursor.execute(
            "CREATE TEMPORARY TABLE seeded_faults (fault int, name text, pattern text, sentence text, first_wrong text)"
        )
        cursor.executemany("INSERT INTO seeded_faults VALUES (%s, %s, %s, %s, %s)", _list_faults())
        made = {}
        for name, statement in STATEMENTS.items():
            cursor.execute(statement)
            made[name] = cursor.rowcount
        for table in ("validation", "checkresult", "finding", "frameworkrun", "validationrun", "cell"):
            cursor.execute(f"ANALYZE validations_{table}")
        cursor.execute("DROP TABLE seeded, seeded_checks, seeded_faults")
    return Seeded(made["validations"], made["results"], made["findings"], made["cells"])


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
    "fault",
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
    keys: Sequence[int], *, days: int, now: datetime, ground: _Ground, draw: random.Random
) -> Iterator[tuple[Any, ...]]:
    """Rows of `seeded`, oldest first, in the order of _COLUMNS."""
    outcomes, weights = zip(*OUTCOMES, strict=True)
    texts = _Texts()
    count = len(keys)
    for place, key in enumerate(keys):
        created = now - timedelta(days=days) * (1 - (place + draw.random()) / count)
        outcome = draw.choices(outcomes, weights)[0]
        if count > OPEN_COUNT and place >= count - OPEN_COUNT:
            outcome = State.RUNNING if place % 2 else State.QUEUED
            created = now - timedelta(seconds=count - place)
        framework, environment, name = draw.choice(ground.environments)
        model, model_name = draw.choice(ground.models)
        fault = draw.randrange(len(FAULTS)) if outcome == Status.FAIL else -1
        packing = fault >= 0 and "data.packing" in FAULTS[fault].checks
        state, verdict = (State.DONE, outcome) if isinstance(outcome, Status) else (outcome, "")
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
            texts.settings(packing),
            "",
            False,
            False,
            600.0,
            "gpu" if draw.random() < 0.2 else "cpu",
            texts.spec(name, model_name, packing),
            texts.plan(packing),
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
            *_count(outcome, fault, packing),
            fault,
        )


def _count(outcome: str, fault: int, packing: bool) -> tuple[int, int, int, int, int]:
    """passed, failed, inconclusive, errors, skipped, as the statement of the verdicts gives them."""
    if not isinstance(outcome, Status):
        return 0, 0, 0, 0, 0
    failed = len(FAULTS[fault].checks) if fault >= 0 else 0
    odd = int(outcome in (Status.INCONCLUSIVE, Status.ERROR))
    skipped = 0 if packing else 1
    return (
        len(CHECKS) - failed - odd - skipped,
        failed,
        int(outcome == Status.INCONCLUSIVE),
        int(outcome == Status.ERROR),
        skipped,
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


def _list_checks() -> list[tuple[int, str, str]]:
    return [(place, name, f"agrees: {check.claim}") for place, (name, check) in enumerate(CHECKS.items())]


def _list_faults() -> list[tuple[int, str, str, str, str]]:
    return [
        (number, name, fault.pattern, fault.sentence, fault.first_wrong)
        for number, fault in enumerate(FAULTS)
        for name in fault.checks
    ]
