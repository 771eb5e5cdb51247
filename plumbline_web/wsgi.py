"""The web application, as gunicorn loads it."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "plumbline_web.settings")

application = get_wsgi_application()
