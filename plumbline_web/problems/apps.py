from __future__ import annotations

from django.apps import AppConfig


class ProblemsConfig(AppConfig):
    name = "plumbline_web.problems"
    default_auto_field = "django.db.models.BigAutoField"
