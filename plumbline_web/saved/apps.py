from __future__ import annotations

from django.apps import AppConfig


class SavedConfig(AppConfig):
    name = "plumbline_web.saved"
    default_auto_field = "django.db.models.BigAutoField"
