"""The Celery application: `celery -A plumbline_web worker -Q control,cpu`, and `celery -A plumbline_web beat`."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "plumbline_web.settings")
# The checks load every view, and with them torch: five seconds for processes that need neither. Migrating runs them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("plumbline")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
