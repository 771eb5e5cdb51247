"""How the web server runs, as gunicorn reads it: `gunicorn --config python:plumbline_web.up.gunicorn`.

One process with threads: the form's checks need torch, which takes half a gigabyte in every process that has imported
it and must not be forked once it runs threads. Pages wait for the database, which threads do side by side.
"""

from __future__ import annotations

import os

worker_class = "gthread"
workers = 1
threads = 8
timeout = 120
"""Seconds without a sign of life from the process: importing torch at its start may take most of a minute."""

graceful_timeout = 8
worker_tmp_dir = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
control_socket_disable = True
# No access log: a sign-in link's secret is part of its address.
accesslog = None
errorlog = "-"
