from __future__ import annotations

from django.apps import AppConfig


class NotificationsConfig(AppConfig):
    name = "plumbline_web.notifications"
    default_auto_field = "django.db.models.BigAutoField"
