"""The web application, as gunicorn loads it."""

from __future__ import annotations

import os
from importlib import import_module

from django.conf import settings
from django.core.wsgi import get_wsgi_application

from workers.garbage import importing

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "plumbline_web.settings")

with importing():
    application = get_wsgi_application()
    import_module(settings.ROOT_URLCONF)  # else the first request waits for every view, and for torch
