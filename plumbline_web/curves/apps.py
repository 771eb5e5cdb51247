from __future__ import annotations

from django.apps import AppConfig


class CurvesConfig(AppConfig):
    name = "plumbline_web.curves"
    default_auto_field = "django.db.models.BigAutoField"
