"""Work that a worker does in a subprocess, under a lease."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from plumbline_web.jobs.enums import JobState, Kind, Queue

SUBJECTS = ("validation", "run", "script_run", "wish")


def _has_alone(subject: str, *kinds: str) -> models.Q:
    """Jobs of these kinds, which are about `subject` and nothing else."""
    return models.Q(kind__in=kinds, **{f"{name}__isnull": name != subject for name in SUBJECTS})


class Job(models.Model):
    """One row = one piece of work, whoever does it and however often it is begun again.

    The lease: while `state` is running, `token` belongs to the worker that took it last, and only a writer with that
    token may change anything. `token` rises with every lease and never falls.
    """

    kind = models.CharField(max_length=11, choices=Kind)
    queue = models.CharField(max_length=4, choices=Queue)
    validation = models.ForeignKey(
        "validations.Validation", null=True, blank=True, on_delete=models.CASCADE, related_name="jobs"
    )
    """of a judge job"""
    run = models.ForeignKey(
        "validations.FrameworkRun", null=True, blank=True, on_delete=models.CASCADE, related_name="jobs"
    )
    """of a capture or a reference job; several validations may wait for it"""
    script_run = models.ForeignKey(
        "reports.ScriptRun", null=True, blank=True, on_delete=models.CASCADE, related_name="jobs"
    )
    """of a reproduce job"""
    wish = models.ForeignKey("environments.Wish", null=True, blank=True, on_delete=models.CASCADE, related_name="jobs")
    """of an environment job"""
    state = models.CharField(max_length=10, choices=JobState, default=JobState.QUEUED)
    created_at = models.DateTimeField(auto_now_add=True)
    dispatched_at = models.DateTimeField(null=True, blank=True)
    """when a message was last handed to the broker"""
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    attempts = models.PositiveSmallIntegerField(default=0)
    token = models.PositiveBigIntegerField(default=0)
    worker = models.CharField(max_length=200, blank=True)
    host = models.CharField(max_length=200, blank=True)
    process_group = models.IntegerField(null=True, blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    cancel_asked = models.BooleanField(default=False)
    phase = models.CharField(max_length=60, blank=True)
    detail = models.CharField(max_length=300, blank=True)
    """what it does or waits for; the run's last line of output"""
    expected_s = models.FloatField(null=True, blank=True)
    """median of earlier ones of its kind, framework and model; null where there are none"""
    error = models.TextField(blank=True)
    """why it failed"""
    log = models.ForeignKey(
        "artefacts.Artefact", null=True, blank=True, on_delete=models.PROTECT, related_name="logs_of"
    )
    """the whole output, once the job has ended"""

    class Meta:
        indexes = [
            # the sweeper: leases that ran out, messages that were lost
            models.Index(
                fields=["state", "lease_until"],
                name="job_open",
                condition=models.Q(state__in=["queued", "running"]),
            ),
            # the expected duration: the latest of a kind
            models.Index(fields=["kind", "-ended_at"], name="job_latest_of_kind"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=_has_alone("validation", "judge")
                | _has_alone("run", "capture", "reference")
                | _has_alone("script_run", "reproduce")
                | _has_alone("wish", "environment"),
                name="job_has_its_subject",
            ),
            # two workers that end at once must not both open the next job
            models.UniqueConstraint(
                fields=["kind", "run"], condition=models.Q(state__in=["queued", "running"]), name="job_once_a_run"
            ),
            models.UniqueConstraint(
                fields=["kind", "validation"],
                condition=models.Q(state__in=["queued", "running"]),
                name="job_once_a_validation",
            ),
        ]


class LogLine(models.Model):
    """One row = a piece of a running job's output, for following it live; the whole is an artefact once it ended."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="lines")
    number = models.PositiveIntegerField()
    """of the piece within the attempt, from 0"""
    token = models.PositiveBigIntegerField()
    """of the lease that wrote it"""
    text = models.TextField()
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "token", "number"], name="log_line_once")]


class Device(models.Model):
    """One row = one GPU of one machine that runs may be given, as the machine's workers name it."""

    host = models.CharField(max_length=200)
    name = models.CharField(max_length=100)
    """what CUDA_VISIBLE_DEVICES calls it"""
    place = models.PositiveIntegerField()
    """in the machine's own order"""
    seen_at = models.DateTimeField()
    """when a worker of the machine last named it"""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "name"], name="device_once_a_host")]


class DeviceWish(models.Model):
    """One row = one lease's wish for devices of its machine: a place in the queue, then the devices themselves.

    It is void once its job runs under another token, or runs no more.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="device_wishes")
    token = models.PositiveBigIntegerField()
    """of the job's lease that asked"""
    host = models.CharField(max_length=200)
    count = models.PositiveSmallIntegerField()
    asked_at = models.DateTimeField(auto_now_add=True)
    granted_at = models.DateTimeField(null=True, blank=True)
    devices = ArrayField(models.CharField(max_length=100), default=list)
    """names; empty while it waits"""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "token"], name="device_wish_once_a_lease")]
        indexes = [models.Index(fields=["host", "id"], name="device_queue")]  # who is next on a machine
