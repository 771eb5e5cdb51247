"""The dashboard: the Django project over `workers`."""

from __future__ import annotations

from plumbline_web.celery import app as celery_app

__all__ = ["celery_app"]
