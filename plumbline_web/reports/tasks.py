"""The beat's task, on the control queue; `CELERY_BEAT_SCHEDULE` in the settings sends it every hour."""

from __future__ import annotations

from celery import shared_task


@shared_task(name="plumbline.reports")
def follow_reports() -> None:
    """Look at reports upstream, then run the scripts of those whose fix is claimed in newer releases."""
    # Here, so that beat and the other tasks of this queue start without torch.
    from plumbline_web.reports.following import look_upstream, run_in_releases

    look_upstream()
    run_in_releases()
