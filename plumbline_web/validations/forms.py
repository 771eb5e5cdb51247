"""The form of a new validation: what was typed, what `read_submission` makes of it, and the fields to draw.

What a person typed stays text until the domain reads it, so that nothing typed is lost when something is wrong.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from django.core.exceptions import BadRequest
from django.http import QueryDict

from checks.registry import CHECKS, DEFAULT_CHECKS
from plumbline_web.catalog.models import Profile
from plumbline_web.jobs.enums import Queue
from plumbline_web.validations.submission import BYTES_IN_GB, Submission
from workers.request import DEFAULT_TIME_LIMIT_S
from workers.settings import setting_names

PLAIN = ("framework", "model", "data", "inject", "queue", "time_limit_s", "memory_limit_gb")
SWITCHES = ("full", "fresh")
SETTING = "settings."
"""before the name of a run setting, in the form as in the domain's errors"""


@dataclass(frozen=True)
class Entries:
    """What the form holds: texts by field, the chosen checks, and what it goes back to."""

    texts: Mapping[str, str] = field(default_factory=dict)
    checks: frozenset[str] = frozenset(DEFAULT_CHECKS)
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    """one drawn form is one validation, however often it is sent"""
    cloned_from: str = ""
    profile: str = ""

    def text(self, name: str) -> str:
        return self.texts.get(name, "")

    def values(self) -> dict[str, object]:
        """As `read_submission` takes it. The default checks are `None`: checks that come later belong to it."""
        values: dict[str, object] = {name: self.text(name) for name in (*PLAIN, *SWITCHES)}
        default = self.checks == frozenset(DEFAULT_CHECKS)
        values["checks"] = None if default else [name for name in CHECKS if name in self.checks]
        values["settings"] = {
            name.removeprefix(SETTING): text for name, text in self.texts.items() if name.startswith(SETTING) and text
        }
        return values

    def errors(self) -> dict[str, str]:
        """What only the form knows to be wrong: for the domain, no check named means all of them."""
        return {} if self.checks else {"checks": "no check is chosen; choose one or more"}


def read_post(post: QueryDict) -> Entries:
    """What came with a form that was sent.

    Raises:
        BadRequest: a hidden field, which no person types, holds what cannot be stored.
    """
    if "\0" in post.get("key", ""):
        raise BadRequest("key holds a null character")
    names = (*PLAIN, *SWITCHES, *(SETTING + name for name in setting_names()))
    return Entries(
        texts={name: str(post[name]) for name in names if name in post},
        checks=frozenset(post.getlist("checks")) & frozenset(CHECKS),
        key=post.get("key", "")[:100] or uuid.uuid4().hex,
        cloned_from=post.get("cloned_from", ""),
        profile=post.get("profile", ""),
    )


def read_query(query: QueryDict) -> Entries:
    """A fresh form, with what the address gives: a link of the matrix names framework and model."""
    return Entries(texts={name: str(query[name]) for name in ("framework", "model", "data") if name in query})


def read_clone(submission: Submission, *, source: str) -> Entries:
    """A form filled with what an earlier validation asked."""
    memory = submission.memory_limit_bytes
    plain = {
        "framework": submission.framework,
        "model": submission.model,
        "data": submission.data,
        "inject": submission.inject or "",
        "queue": submission.queue or Queue.CPU.value,
        "time_limit_s": "" if submission.time_limit_s == DEFAULT_TIME_LIMIT_S else f"{submission.time_limit_s:g}",
        "memory_limit_gb": f"{memory / BYTES_IN_GB:g}" if memory else "",
        "full": "true" if submission.full else "",
        "fresh": "true" if submission.fresh else "",
    }
    return Entries(
        texts=plain | _write_settings(submission.settings),
        checks=_read_checks(submission.checks),
        cloned_from=source,
    )


def read_profile(profile: Profile) -> Entries:
    """A form filled with what a profile fixes; framework and model stay open."""
    return Entries(
        texts={"data": profile.data} | _write_settings(profile.settings),
        checks=_read_checks(profile.checks),
        profile=f"{profile.name}@{profile.version}",
    )


def follows(entries: Entries, profile: Profile) -> bool:
    """Whether what was typed is still what the profile fixes: only then may the verdict count under its name."""
    fixed = read_profile(profile)
    names = ("data", *(SETTING + name for name in setting_names()))
    return fixed.checks == entries.checks and all(fixed.text(name) == entries.text(name) for name in names)


def _read_checks(names: Iterable[str] | None) -> frozenset[str]:
    return frozenset(DEFAULT_CHECKS if names is None else names) & frozenset(CHECKS)


def _write_settings(settings: Mapping[str, object]) -> dict[str, str]:
    return {SETTING + name: write_setting(name, value) for name, value in settings.items()}


def write_setting(name: str, value: object) -> str:
    """A setting as a person would type it; a command as a shell's words, so that it is split into the same again."""
    if name == "command" and isinstance(value, (list, tuple)):
        return shlex.join(str(item) for item in value)
    return write_value(value)


def write_value(value: object) -> str:
    """A setting as a person would type it: true, 0.001, q_proj,v_proj."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)
