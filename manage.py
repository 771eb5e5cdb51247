"""Django's command line, for developers: `python manage.py makemigrations` and the rest."""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "plumbline_web.settings")
    execute_from_command_line(sys.argv)
