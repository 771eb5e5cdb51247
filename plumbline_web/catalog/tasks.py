"""The beat's task, on the control queue; `CELERY_BEAT_SCHEDULE` in the settings sends it every five minutes."""

from __future__ import annotations

from datetime import UTC, datetime

from celery import shared_task

EVERY_MINUTES = 5


@shared_task(name="plumbline.schedules")
def run_schedules() -> None:
    """Submit the nightly schedules that are due; once an hour, look for new releases too."""
    # Here, so that beat and the other tasks of this queue start without torch.
    from plumbline_web.catalog.repeating import run_nightly, run_releases

    now = datetime.now(UTC)
    run_nightly(now)
    if now.minute < EVERY_MINUTES:
        run_releases(now)
