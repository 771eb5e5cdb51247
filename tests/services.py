"""What a test run shares: PostgreSQL and Redis, those of the environment or embedded ones, and a warm interpreter."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from plumbline_web.up.accounts import find_database_account
from plumbline_web.up.postgres import DEFAULT_SETTINGS, describe_postgres, make_database, prepare_postgres
from plumbline_web.up.redis import describe_redis, find_redis, redis_url
from plumbline_web.up.supervisor import Supervisor
from tests.warm import make_interpreter
from workers.frameworks.interpreter import VARIABLE

# What a crash would lose is of no value here.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200"}

DATABASES = 130
"""One for each worker of a parallel run, and the first for a run without workers."""


def start_services() -> None:
    """Start what DATABASE_URL and REDIS_URL do not name, and name it there; workers of the run inherit both.

    They end with this process, also where it is killed.
    """
    base = Path(tempfile.mkdtemp(prefix="plumbline-tests-"))
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    services = []
    account = find_database_account()
    if "DATABASE_URL" not in os.environ:
        prepare_postgres(base / "pg", account=account)
        services.append(
            describe_postgres(base / "pg", socket=base / "s", account=account, settings={**DEFAULT_SETTINGS, **FAST})
        )
    if "REDIS_URL" not in os.environ:
        services.append(describe_redis(base / "r" / "redis.sock", program=find_redis(), databases=DATABASES))
    # A mark of their own: no `plumbline up` that a test starts takes them for its own.
    supervisor = Supervisor(mark=str(base), logs=base, say=lambda name, text: None)
    atexit.register(supervisor.stop_but)
    supervisor.start(*services)
    if "DATABASE_URL" not in os.environ:
        os.environ["DATABASE_URL"] = make_database(base / "s", name="postgres")
    if "REDIS_URL" not in os.environ:
        os.environ["REDIS_URL"] = redis_url(base / "r" / "redis.sock")
    os.environ.setdefault("PLUMBLINE_SECRET_KEY", "a key for tests that signs nothing of value, fifty characters")
    os.environ.setdefault("PLUMBLINE_DATA", str(base / "data"))
    os.environ.setdefault(VARIABLE, str(make_interpreter(base)))
