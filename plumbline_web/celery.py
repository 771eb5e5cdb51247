"""The Celery application: `celery -A plumbline_web worker -Q control,cpu`, and `celery -A plumbline_web beat`."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "plumbline_web.settings")

app = Celery("plumbline")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
