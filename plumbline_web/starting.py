"""Django in the process of a command."""

from __future__ import annotations

import os


def start_django() -> None:
    """Set Django up once: a second time would turn its log to wherever standard error leads by then."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "plumbline_web.settings")
    import django
    from django.apps import apps

    if not apps.ready:
        django.setup()
