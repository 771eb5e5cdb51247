"""What the database needs before anything serves from it."""

from __future__ import annotations

from checks.errors import BadRequest
from plumbline_web.starting import start_django


def migrate() -> int:
    """Bring the database to this version's tables; how many migrations that took. Sets Django up in this process.

    Raises:
        BadRequest: the database does not answer.
    """
    from django.core.management import call_command
    from django.db import OperationalError, connection, connections
    from django.db.migrations.executor import MigrationExecutor

    start_django()
    try:
        executor = MigrationExecutor(connection)
        missing = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
        call_command("migrate", interactive=False, verbosity=0)
    except OperationalError as error:
        raise BadRequest(
            "DATABASE_URL", f"the database does not answer: {str(error).strip()}", "start it, or correct the address"
        ) from error
    finally:
        connections.close_all()
    return missing


def load_problems() -> str:
    """Bring the database to the catalogue of this version; what that changed, in words."""
    from django.db import connections

    from plumbline_web.problems.catalogue import load_catalogue

    try:
        loaded = load_catalogue()
    finally:
        connections.close_all()
    total = loaded.created + loaded.updated + loaded.unchanged
    return f"{total:,} problems, {loaded.created:,} of them new, {loaded.updated:,} changed"


def make_first_link(origin: str) -> str | None:
    """The address at which the first administrator signs in, once; None where there is an administrator already."""
    from django.db import connections

    from plumbline_web.accounts.domain import create_first_administrator_link

    try:
        secret = create_first_administrator_link()
    finally:
        connections.close_all()
    return None if secret is None else f"{origin}/sign-in/{secret}/"
