"""Where a lease works: a directory of its own, gone with it."""

from __future__ import annotations

import shutil
from pathlib import Path

from django.conf import settings


def scratch_of(tag: str) -> Path:
    return Path(settings.DATA) / "scratch" / tag


def remove_scratch(tag: str) -> None:
    """Remove what a lease left; nothing of it is of use to the next."""
    shutil.rmtree(scratch_of(tag), ignore_errors=True)
