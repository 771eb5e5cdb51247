from __future__ import annotations

from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "plumbline_web.jobs"
    default_auto_field = "django.db.models.BigAutoField"
