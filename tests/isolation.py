"""What keeps the workers of a parallel test run apart."""

from __future__ import annotations

import os

from django.conf import settings


def take_own_part(worker: str) -> None:
    """Give a worker its own Redis database and data directory; Django names its own PostgreSQL database."""
    assert not settings.configured, "the settings were read before this worker had its own addresses"
    number = int(worker.removeprefix("gw")) + 1
    os.environ["REDIS_URL"] += f"?virtual_host={number}" if "socket" in os.environ["REDIS_URL"] else f"/{number}"
    os.environ["PLUMBLINE_DATA"] = f"{os.environ['PLUMBLINE_DATA']}-{worker}"
