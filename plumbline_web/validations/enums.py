from __future__ import annotations

from django.db import models


class State(models.TextChoices):
    """A validation's life; `validations/states.py` has the moves."""

    QUEUED = "queued", "queued"
    RUNNING = "running", "running"
    DONE = "done", "done"
    FAILED = "failed", "failed"
    """Plumbline broke before there were verdicts"""
    CANCELLED = "cancelled", "cancelled"


OPEN = (State.QUEUED, State.RUNNING)


class Status(models.TextChoices):
    """A verdict; the values are those of `checks.verdict.Status`."""

    PASS = "pass", "pass"
    FAIL = "fail", "fail"
    INCONCLUSIVE = "inconclusive", "inconclusive"
    ERROR = "error", "error"
    SKIPPED = "skipped", "skipped"


class Pattern(models.TextChoices):
    """The seven failure patterns; the values are those of `checks.verdict.Pattern`."""

    LOSS_MASK = "loss-mask", "loss mask, labels, samples"
    OBJECTIVE_SCALE = "objective-scale", "objective and update scale"
    PARALLELISM = "parallelism", "parallelism"
    SEQUENCE_LENGTH = "sequence-length", "sequence length and packing"
    MODEL_DEFINITION = "model-definition", "model definition and configuration"
    STATE_TRANSFER = "state-transfer", "weight and state transfer"
    PRECISION = "precision", "precision and kernels"


class RunState(models.TextChoices):
    """A framework run's life; `ended` says nothing about how, `ending` does."""

    QUEUED = "queued", "queued"
    RUNNING = "running", "running"
    ENDED = "ended", "ended"
    CANCELLED = "cancelled", "cancelled"
    FAILED = "failed", "failed"
    """Plumbline broke: the framework was not started, or what it left could not be stored"""


class RunRole(models.TextChoices):
    """What a run is to a validation: the values of `checks.roles.Role`, and the passes that locate a fault."""

    RUN = "run", "run"
    MERGED = "merged", "run on merged rows"
    RESUMED = "resumed", "run saved and resumed"
    RESHARDED = "resharded", "run loaded at another layout"
    PROBED = "probed", "model on chosen batches"
    SINGLE = "single", "rows of all ranks in one process"
    TRACED = "traced", "first step, modules recorded"
    OVERFIT = "overfit", "one batch again and again"
    MEASURED = "measured", "run with its memory counted"
    SECOND_PASS = "second-pass", "second pass, modules recorded"
    THIRD_PASS = "third-pass", "third pass, parts of one layer recorded"


class FindingState(models.TextChoices):
    """A finding's life; `triage/changes.py` has the moves that people make."""

    OPEN = "open", "needs a person"
    WAITING = "waiting", "waits for evidence"
    """a run was asked for that will show more; back with a person when it has ended"""
    DECIDED = "decided", "decided"
    REPEATED = "repeated", "seen again"
    """a person decided about the same, on the same framework, environment and model, and it never passed since"""
    GONE = "gone", "gone after a re-judgement"


class Decision(models.TextChoices):
    """What a person says about a finding."""

    NEW = "new", "confirmed, new"
    KNOWN = "known", "confirmed, known"
    NOT_A_PROBLEM = "not-a-problem", "not a problem"
    CHECK_WRONG = "check-wrong", "the check or its reference is wrong"
    INCONCLUSIVE = "inconclusive", "inconclusive"
    NEEDS_EVIDENCE = "needs-evidence", "needs evidence"


CONFIRMED = (Decision.NEW, Decision.KNOWN)
"""Decisions that name a problem."""
