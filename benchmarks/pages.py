"""Server time and queries of the pages over years of rows: `python -m benchmarks.pages [--scale 50] [--only /p]`.

Starts a PostgreSQL of its own with default durability, seeds it (50: 50,000 problems, 100,000 validations and three
million verdicts), and asks each page through Django's test client: what is measured is the server's work, without
network and browser. A page's first request warms caches and is not counted. `--data DIR` keeps the database there, and
uses it again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from plumbline_web.up.accounts import find_database_account
from plumbline_web.up.postgres import DEFAULT_SETTINGS, describe_postgres, make_database, prepare_postgres
from plumbline_web.up.supervisor import Supervisor

PAGES = (
    "/",
    "/validations/",
    "/validations/?verdict=fail",
    "/validations/?framework=trl&model=tiny:qwen3",
    "/validations/?check=step.loss&status=fail",
    "/validations/?pattern=objective-scale",
    "/validations/?sort=slowest",
    "/validations/?sort=worst",
    "/validations/?page=200",
    "/validations/V-{last}/",
    "/validations/V-{last}/step/",
    "/compare/?v={last}&v={other}",
    "/api/v1/validations",
    "/problems/",
    "/problems/?framework=trl",
    "/problems/?pattern=loss-mask",
    "/problems/?silent=yes",
    "/problems/?status=open",
    "/problems/?provenance=first-raised",
    "/problems/?stage=optimizer",
    "/problems/?component=resume",
    "/problems/?model=Qwen3",
    "/problems/?caught_by=resume",
    "/problems/?affects=transformers",
    "/problems/?affects=transformers==4.45.2",
    "/problems/?recurs=yes",
    "/problems/?recurs=no",
    "/problems/?framework=trl&pattern=loss-mask&silent=yes",
    "/problems/?sort=oldest",
    "/problems/?page=200",
    "/problems/?text=gradient",
    "/problems/?text={rare}",
    "/problems/?text=gradient+accumulation&framework=trl",
    f"/problems/?text={'a' * 10_000}",
    "/problems/matrix/",
    "/problems/matrix/?framework=trl&text=gradient",
    "/problems/recurrences/",
    "/problems/recurrences/?page=20",
    "/problems/P-{problem}/",
    "/api/v1/problems",
    "/api/v1/problems?text=gradient&limit=500",
    "/triage/",
    "/triage/?standing=all",
    "/triage/?silent=yes&check=step.loss",
    "/triage/F-{finding}/",
    "/notifications/",
)

RARE = 5_000
"""Which word of the made-up vocabulary is looked for as a rare one: a handful of 50,000 problems have it."""

REFUSED = 400
"""The answer to a filter that is wrong; every other page answers with 200."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=50, help="thousands of problems, and 2,000 validations for each")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", metavar="START", help="pages whose address begins so")
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep the database there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plumbline-pages-") as folder:
        base = options.data or Path(folder)
        base.mkdir(parents=True, exist_ok=True)
        supervisor = _start_postgres(base)
        try:
            pages = [page for page in PAGES if page.startswith(options.only)]
            _measure(pages, scale=options.scale, rounds=options.rounds)
        finally:
            supervisor.stop_but()


def _start_postgres(base: Path) -> Supervisor:
    account = find_database_account()
    prepare_postgres(base / "pg", account=account)
    supervisor = Supervisor(mark=str(base), logs=base, say=lambda name, text: None)
    supervisor.start(describe_postgres(base / "pg", socket=base / "s", account=account, settings=DEFAULT_SETTINGS))
    os.environ["DATABASE_URL"] = make_database(base / "s")
    os.environ["PLUMBLINE_SECRET_KEY"] = "signs nothing of value: a benchmark of fifty characters"
    os.environ["PLUMBLINE_DATA"] = str(base / "data")
    os.environ["DJANGO_SETTINGS_MODULE"] = "plumbline_web.settings"
    return supervisor


def _measure(pages: Sequence[str], *, scale: int, rounds: int) -> None:
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    from plumbline_web.accounts.models import User
    from plumbline_web.validations.models import Validation

    settings.ALLOWED_HOSTS = ["testserver"]
    call_command("migrate", verbosity=0)
    if not Validation.objects.exists():
        _seed(scale)
    client = Client()
    client.force_login(User.objects.all()[0])
    names = _choose_names()
    for page in pages:
        address = page.format(**names)
        client.get(address)
        with CaptureQueriesContext(connection) as queries:
            response = client.get(address)
        asked = len(queries)  # before the next request empties the log
        wanted = REFUSED if "a" * 1_000 in address else 200
        assert response.status_code == wanted, (address[:200], response.status_code)
        times = sorted(_time(client, address) for _ in range(rounds))
        shown = address if len(address) < 60 else f"{address[:56]} …"
        print(
            f"{shown:<60} median {statistics.median(times) * 1e3:6.0f} ms, "
            f"min {times[0] * 1e3:6.0f}, max {times[-1] * 1e3:6.0f}, {asked} queries",
            flush=True,
        )
    connection.close()


def _seed(scale: int) -> None:
    from plumbline_web.problems.catalogue import load_catalogue
    from plumbline_web.seeding.scale import seed_scale

    begin = time.perf_counter()
    load_catalogue()
    made = seed_scale(scale)
    print(
        f"seed: {time.perf_counter() - begin:.1f} s for {made.problems.problems:,} problems, "
        f"{made.validations.validations:,} validations, {made.validations.results:,} verdicts, "
        f"{made.occurrences:,} occurrences",
        flush=True,
    )


def _choose_names() -> Mapping[str, object]:
    """What the addresses are filled with: rows that have something to show."""
    from plumbline_web.problems.models import Problem
    from plumbline_web.problems.seed import make_word
    from plumbline_web.validations.models import Finding, Validation

    last, other = Validation.objects.filter(state="done").order_by("-pk").values_list("pk", flat=True)[:2]
    problem = Problem.objects.filter(recurrences__isnull=False, occurrences__isnull=False).order_by("-pk").first()
    finding = Finding.objects.filter(state="open").order_by("-pk").first()
    assert problem is not None
    assert finding is not None
    return {"last": last, "other": other, "problem": problem.pk, "finding": finding.pk, "rare": make_word(RARE)}


def _time(client: object, address: str) -> float:
    begin = time.perf_counter()
    client.get(address)  # type: ignore[attr-defined]
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
