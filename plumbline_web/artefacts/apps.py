from __future__ import annotations

from django.apps import AppConfig


class ArtefactsConfig(AppConfig):
    name = "plumbline_web.artefacts"
    default_auto_field = "django.db.models.BigAutoField"
