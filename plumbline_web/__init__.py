"""The dashboard: the Django project over `workers`."""

from __future__ import annotations

from plumbline_web.celery import app as celery_app
from workers.garbage import end_at_once

__all__ = ["celery_app"]

end_at_once()  # every process of the site and of the command passes here
