from __future__ import annotations

from django.db import models


class Tracker(models.TextChoices):
    """Whose form a report follows; `trackers.py` has what each asks for."""

    TRANSFORMERS = "transformers", "Hugging Face transformers"
    TRL = "trl", "TRL"
    ACCELERATE = "accelerate", "Accelerate"
    PEFT = "peft", "PEFT"
    AUTOMODEL = "automodel", "NeMo AutoModel"
    MS_SWIFT = "ms-swift", "ms-swift"
    MEGATRON_LM = "megatron-lm", "Megatron-LM"
    MILES = "miles", "Miles"
    GITHUB = "github", "another project on GitHub"
    GITLAB = "gitlab", "a project on GitLab"
    TEXT = "text", "plain text, such as a mail"


class ReportState(models.TextChoices):
    """A report's life; `states.py` has the moves."""

    DRAFT = "draft", "draft"
    VERIFIED = "verified", "verified"
    """its script was run as it stands, in the environment of the report, and showed the fault"""
    SENT = "sent", "sent"
    CLOSED = "closed", "closed"
    """the script ran right in a later environment"""


SENT_STATES = (ReportState.SENT, ReportState.CLOSED)
"""States of a report that upstream has."""


class UpstreamState(models.TextChoices):
    UNKNOWN = "", "not known"
    OPEN = "open", "open"
    CLOSED = "closed", "closed"
    MERGED = "merged", "merged"


class RunState(models.TextChoices):
    QUEUED = "queued", "queued"
    RUNNING = "running", "running"
    ENDED = "ended", "ended"
    FAILED = "failed", "failed"
    """Plumbline broke, or has no such environment: the script was not run"""


class Purpose(models.TextChoices):
    """Why a script is run."""

    VERIFY = "verify", "to show the fault"
    MENDED = "mended", "to see whether a release mends it"


class Kind(models.TextChoices):
    """What is taken out of a report, by kind."""

    PATH = "path", "paths"
    HOST = "host", "host names and addresses"
    USER = "user", "user names and e-mail addresses"
    MODEL = "model", "names of models and data that are not public"
