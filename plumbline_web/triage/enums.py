from __future__ import annotations

from django.db import models


class ActionKind(models.TextChoices):
    """What one action of a person does to findings or problems; all but a comment can be undone."""

    DECIDE = "decide", "decided"
    ASSIGN = "assign", "assigned"
    DATE = "date", "gave a due date"
    SNOOZE = "snooze", "snoozed"
    REJECT = "reject", "turned a suggestion down"
    SPLIT = "split", "split a group"
    JOIN = "join", "joined groups"
    MERGE = "merge", "merged problems"
    UNDO = "undo", "undid"


class AgendaReason(models.TextChoices):
    """Why a meeting talks about a finding; the order is the agenda's."""

    SILENT = "silent", "new silent failure"
    REGRESSED = "regressed", "regression"
    UNASSIGNED = "unassigned", "nobody's"
    STALE = "stale", "open for long"
