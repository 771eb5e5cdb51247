"""Server time and queries of the pages over many validations: `python -m benchmarks.pages [--validations 100000]`.

Starts a PostgreSQL of its own with default durability, seeds it, and asks each page through Django's test client: what
is measured is the server's work, without network and browser. A page's first request warms caches and is not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
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
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--validations", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plumbline-pages-") as folder:
        base = Path(folder)
        supervisor = _start_postgres(base)
        try:
            _measure(options.validations, rounds=options.rounds)
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


def _measure(validations: int, *, rounds: int) -> None:
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    from plumbline_web.accounts.models import User
    from plumbline_web.validations.models import Validation
    from plumbline_web.validations.seed import seed

    settings.ALLOWED_HOSTS = ["testserver"]
    call_command("migrate", verbosity=0)
    begin = time.perf_counter()
    made = seed(validations)
    print(f"seed: {time.perf_counter() - begin:.1f} s for {made.validations:,} validations, {made.results:,} verdicts")
    client = Client()
    client.force_login(User.objects.all()[0])
    done = Validation.objects.filter(state="done").order_by("-pk").values_list("pk", flat=True)[:2]
    for page in PAGES:
        address = page.format(last=done[0], other=done[1])
        with CaptureQueriesContext(connection) as queries:
            response = client.get(address)
        asked = len(queries)  # before the next request empties the log
        assert response.status_code == 200, (address, response.status_code)
        times = sorted(_time(client, address) for _ in range(rounds))
        print(
            f"{address:<55} median {statistics.median(times) * 1e3:6.0f} ms, "
            f"min {times[0] * 1e3:6.0f}, max {times[-1] * 1e3:6.0f}, {asked} queries"
        )
    connection.close()


def _time(client: object, address: str) -> float:
    begin = time.perf_counter()
    client.get(address)  # type: ignore[attr-defined]
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
