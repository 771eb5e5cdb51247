"""One settings file: everything that differs between installations comes from the environment.

| variable | meaning |
| --- | --- |
| `DATABASE_URL` | `postgresql://user:password@host:port/name`, or with `?host=/socket/directory` |
| `REDIS_URL` | `redis://host:port/0` or `redis+socket:///path/to/redis.sock` |
| `PLUMBLINE_DATA` | directory of artefacts and scratch files |
| `PLUMBLINE_SECRET_KEY` | signs sessions; at least 50 random characters |
| `PLUMBLINE_HOSTS` | host names that the site answers to, comma separated |
| `PLUMBLINE_ORIGIN` | address of the site as a browser sees it, such as `https://plumbline.example.org` |
| `PLUMBLINE_ROOTS` | directories under which checkpoints and data sets may lie, separated by colons |
| `PLUMBLINE_MAIL` | `smtp://user:password@host:587?tls=start` sends notifications by e-mail; unset: none is sent |
| `PLUMBLINE_MAIL_FROM` | address that they come from |
| `PLUMBLINE_WEBHOOK_PRIVATE` | `1` lets webhooks reach private addresses, such as those of the own network |
| `PLUMBLINE_GITHUB_TOKEN` | with which the state of sent reports is read from GitHub; without it nothing is asked |
| `PLUMBLINE_DEBUG` | `1` for tracebacks in the browser; never in production |
"""

from __future__ import annotations

import os
from pathlib import Path

from plumbline_web.addresses import broker_url, read_database_url, read_mail_url
from plumbline_web.curves import plotly
from workers.queues import CONTROL, QUEUES, SWEEP_EVERY_S, VISIBILITY_TIMEOUT_S

BASE = Path(__file__).resolve().parent.parent

DEBUG = os.environ.get("PLUMBLINE_DEBUG") == "1"
SECRET_KEY = os.environ.get("PLUMBLINE_SECRET_KEY", "")
ALLOWED_HOSTS = [host for host in os.environ.get("PLUMBLINE_HOSTS", "localhost,127.0.0.1,[::1]").split(",") if host]
ORIGIN = os.environ.get("PLUMBLINE_ORIGIN", "http://localhost:8000").rstrip("/")
CSRF_TRUSTED_ORIGINS = [ORIGIN]

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_htmx",
    "django_filters",
    "ninja",
    "plumbline_web.accounts",
    "plumbline_web.artefacts",
    "plumbline_web.catalog",
    "plumbline_web.curves",
    "plumbline_web.environments",
    "plumbline_web.jobs",
    "plumbline_web.notifications",
    "plumbline_web.problems",
    "plumbline_web.reports",
    "plumbline_web.saved",
    "plumbline_web.timeline",
    "plumbline_web.triage",
    "plumbline_web.validations",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "plumbline_web.policy.ContentSecurityPolicy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "plumbline_web.accounts.visits.Visits",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "plumbline_web.storage.StorageFull",
]

ROOT_URLCONF = "plumbline_web.urls"
WSGI_APPLICATION = "plumbline_web.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE / "templates"],
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "loaders": [
                (
                    "django.template.loaders.cached.Loader",
                    ["django.template.loaders.filesystem.Loader", "django.template.loaders.app_directories.Loader"],
                ),
            ],
        },
    },
]

DATABASES = {"default": read_database_url(os.environ.get("DATABASE_URL", "postgresql://plumbline@localhost/plumbline"))}

AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "overview"
LOGOUT_REDIRECT_URL = "sign-in"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE / "static", (plotly.PREFIX, plotly.package_data())]
# Finders serve the files where they lie: `plumbline up` needs no collectstatic, and there is no build step.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG
# plotly.js has five megabytes; a new version of Plumbline may change any file, so an hour and no more.
WHITENOISE_MAX_AGE = 0 if DEBUG else 3600

DATA = Path(os.environ.get("PLUMBLINE_DATA", BASE / "data"))
GITHUB_TOKEN = os.environ.get("PLUMBLINE_GITHUB_TOKEN", "")
GITHUB_API = os.environ.get("PLUMBLINE_GITHUB_API", "https://api.github.com")
ROOTS = [Path(root) for root in os.environ.get("PLUMBLINE_ROOTS", "").split(":") if root]

SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = ORIGIN.startswith("https://")
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if ORIGIN.startswith("https://") else None

# A form field of 100 MB is refused before it is read; captures come through the API in chunks.
DATA_UPLOAD_MAX_MEMORY_SIZE = 2_500_000
DATA_UPLOAD_MAX_NUMBER_FIELDS = 500

CELERY_BROKER_URL = broker_url(os.environ.get("REDIS_URL", "redis://localhost:6379/0"))
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": VISIBILITY_TIMEOUT_S}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_DEFAULT_QUEUE = QUEUES[0]
CELERY_TIMEZONE = TIME_ZONE
CELERY_WORKER_HIJACK_ROOT_LOGGER = False

_MAIL = read_mail_url(os.environ.get("PLUMBLINE_MAIL", ""))
EMAIL_HOST, EMAIL_PORT, EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _MAIL.host, _MAIL.port, _MAIL.user, _MAIL.password
EMAIL_USE_TLS, EMAIL_USE_SSL = _MAIL.tls == "start", _MAIL.tls == "always"
EMAIL_TIMEOUT = 10
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if EMAIL_HOST else 'dummy'}.EmailBackend"
DEFAULT_FROM_EMAIL = os.environ.get("PLUMBLINE_MAIL_FROM", "plumbline@localhost")
WEBHOOK_PRIVATE = os.environ.get("PLUMBLINE_WEBHOOK_PRIVATE") == "1"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "filters": {"secrets": {"()": "plumbline_web.accounts.logs.HideSecrets"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["secrets"]}},
    "root": {"handlers": ["console"], "level": os.environ.get("PLUMBLINE_LOG", "INFO")},
}

CELERY_TASK_ROUTES = {
    name: {"queue": CONTROL}
    for name in (
        *("plumbline.sweep_jobs", "plumbline.schedules", "plumbline.reports"),
        *("plumbline.deliver", "plumbline.deliveries", "plumbline.forget_notifications"),
    )
}
CELERY_BEAT_SCHEDULE = {
    "sweep": {"task": "plumbline.sweep_jobs", "schedule": SWEEP_EVERY_S, "options": {"expires": SWEEP_EVERY_S}},
    "deliveries": {"task": "plumbline.deliveries", "schedule": 30.0, "options": {"expires": 30.0}},
    "forget": {"task": "plumbline.forget_notifications", "schedule": 86_400.0, "options": {"expires": 3_600.0}},
    "schedules": {"task": "plumbline.schedules", "schedule": 300.0, "options": {"expires": 300.0}},
    "reports": {"task": "plumbline.reports", "schedule": 3600.0, "options": {"expires": 3600.0}},
}
