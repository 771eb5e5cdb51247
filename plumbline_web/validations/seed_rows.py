"""The rows of made-up validations, one by one, and the small tables that they point to."""

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
from django.db import connection

from checks.models.families import FAMILIES
from checks.registry import DEFAULT_CHECKS
from checks.spec import RunSpec
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.catalog.models import Environment, Framework, Profile, TrainedModel
from plumbline_web.validations.enums import OPEN, State, Status
from plumbline_web.validations.seed_kinds import KINDS, count_statuses
from workers.report.as_json import to_plain

VERSIONS = {"transformers": ("5.22.0", "5.23.1", "5.24.0"), "trl": ("1.14.0", "1.15.2", "1.16.0")}
TITLES = {"transformers": "Hugging Face Trainer", "trl": "TRL"}
PEOPLE = ("ana", "bo", "chen", "dara", "emil")
PROFILES = ("nightly", "packed", "bf16")
DATA = ("gsm8k_sample", "tulu3_sample")


@dataclass(frozen=True)
class Ground:
    """Keys of the small tables."""

    owners: tuple[int, ...]
    environments: tuple[tuple[int, int, str], ...]
    """framework, environment, name"""
    models: tuple[tuple[int, str], ...]
    profiles: tuple[int | None, ...]


COLUMNS = (
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


def lay_ground() -> Ground:
    """The people, environments, models and profiles that the validations are about; made once."""
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
    return Ground(tuple(owners), tuple(environments), tuple(models), (None, *profiles))


def take_keys(count: int) -> list[int]:
    """Numbers for new validations; asked for before the COPY begins, which has the connection for itself."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT nextval(pg_get_serial_sequence('validations_validation', 'id')) FROM generate_series(1, %s)",
            [count],
        )
        return [key for (key,) in cursor.fetchall()]


def draw_rows(
    keys: Sequence[int], kinds: Sequence[int], *, days: int, now: datetime, ground: Ground, draw: random.Random
) -> Iterator[tuple[Any, ...]]:
    """Rows of validations, oldest first, in the order of COLUMNS."""
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
            judged = [name for name in DEFAULT_CHECKS if packing or name != "data.packing"]
            skipped = [] if packing else [{"check": "data.packing", "reason": "the run does not pack (packing=false)"}]
            runs = [{"role": "run", "steps": [1, 3], "checks": judged}]
            self._plans[packing] = json.dumps(
                {"runs": runs, "judged": judged, "skipped": skipped, "needs_reference": True}
            )
        return self._plans[packing]
