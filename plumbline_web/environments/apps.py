from __future__ import annotations

from django.apps import AppConfig


class EnvironmentsConfig(AppConfig):
    name = "plumbline_web.environments"
    default_auto_field = "django.db.models.BigAutoField"
