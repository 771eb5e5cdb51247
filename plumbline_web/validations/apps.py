from __future__ import annotations

from django.apps import AppConfig


class ValidationsConfig(AppConfig):
    name = "plumbline_web.validations"
    default_auto_field = "django.db.models.BigAutoField"
