"""What someone asks for, read field by field from a form or the API, every wrong field named at once."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from django.conf import settings as django_settings

from checks.errors import BadRequest
from checks.models.resolve import PREFIX, SHRUNK
from checks.samples.reading import SAMPLE_FILES
from plumbline_web.jobs.enums import Queue
from plumbline_web.validations.roots import explain_refusal
from workers.queues import LONGEST_RUN_S
from workers.request import DEFAULT_TIME_LIMIT_S, ValidationRequest
from workers.settings import parse_settings

LONGEST_TEXT = 500
"""Characters of a field: a path or a name is never longer."""

BYTES_IN_GB = 10**9

TRUE = ("true", "1", "yes", "on")
FALSE = ("false", "0", "no", "off", "")


class InvalidSubmission(ValueError):
    """`errors`: field → a sentence that says what was found and what to do. Settings are named `settings.<name>`."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {sentence}" for name, sentence in errors.items()))
        self.errors = dict(errors)


@dataclass(frozen=True)
class Submission:
    """A framework × model × data × checks × settings, each field well formed; nothing is resolved yet."""

    framework: str
    model: str
    data: str
    checks: tuple[str, ...] | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    inject: str | None = None
    full: bool = False
    fresh: bool = False
    queue: str = Queue.CPU.value
    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    memory_limit_bytes: int | None = None
    capture: int | None = None
    """number of an uploaded capture, to be judged instead of a run of the framework here"""

    def to_request(self) -> ValidationRequest:
        return ValidationRequest(
            framework=self.framework,
            model=self.model,
            data=self.data,
            checks=self.checks,
            settings=self.settings,
            inject=self.inject,
            full=self.full,
            time_limit_s=self.time_limit_s,
            memory_limit_bytes=self.memory_limit_bytes,
        )


FIELDS = (
    "framework",
    "model",
    "data",
    "checks",
    "settings",
    "inject",
    "full",
    "fresh",
    "queue",
    "time_limit_s",
    "memory_limit_gb",
    "capture",
)
"""What `read_submission` takes; anything else is refused by name."""


def read_submission(values: Mapping[str, object]) -> Submission:
    """Read texts of a form or values of a JSON document.

    `settings`: name → text or JSON value. `checks`: a list, a comma-separated text, or null for all. Empty texts are
    what was not given.

    Raises:
        InvalidSubmission: with every wrong field.
    """
    reader = _Reader(values)
    submission = Submission(
        framework=reader.text("framework", required="name a framework: transformers or trl"),
        model=reader.text("model", required="give tiny:<family>, or the path of a checkpoint or a config.json"),
        data=reader.text("data", required="give a path, or the name of a sample that ships"),
        checks=reader.names("checks"),
        settings=reader.settings(),
        inject=reader.text("inject") or None,
        full=reader.switch("full"),
        fresh=reader.switch("fresh"),
        queue=reader.choice("queue", tuple(Queue.values), default=Queue.CPU.value),
        time_limit_s=reader.number("time_limit_s", at_most=LONGEST_RUN_S) or DEFAULT_TIME_LIMIT_S,
        memory_limit_bytes=reader.gigabytes("memory_limit_gb"),
        capture=reader.key("capture"),
    )
    reader.refuse_unknown()
    reader.finish()
    return submission


def check_roots(submission: Submission) -> None:
    """Refuse a path that is not under one of the installation's roots, links followed, those in a directory too.

    Names of shipped models and samples are no paths.

    Raises:
        InvalidSubmission: naming the field and the roots.
    """
    errors = {}
    for name, text in (("model", submission.model), ("data", submission.data)):
        path = text.removeprefix(SHRUNK) if name == "model" else text
        refusal = explain_refusal(path, django_settings.ROOTS) if _is_path(name, text) else ""
        if refusal:
            errors[name] = refusal
    synced = submission.settings.get("synced")
    refusal = explain_refusal(str(synced), django_settings.ROOTS) if synced is not None else ""
    if refusal:
        errors["settings.synced"] = refusal
    if errors:
        raise InvalidSubmission(errors)


def _is_path(name: str, text: str) -> bool:
    if name == "model":
        return not text.startswith(PREFIX)
    return text.removesuffix(".jsonl") not in SAMPLE_FILES


def explain_text(text: str) -> str:
    """Why a text is none that a file or a database can hold; empty where it is one."""
    if "\0" in text:
        return "holds a null character; remove it"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "holds half a character (a lone surrogate), which no file name has; remove it"
    return ""


class _Reader:
    """Takes fields one by one and remembers what is wrong with each."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self._errors: dict[str, str] = {}

    def text(self, name: str, *, required: str | None = None) -> str:
        value = self._values.get(name)
        if value is None or value == "":
            if required is not None:
                self._errors[name] = f"is missing; {required}"
            return ""
        if not isinstance(value, str):
            self._errors[name] = f"{_describe(value)} is not a text; give a text"
            return ""
        if len(value) > LONGEST_TEXT:
            self._errors[name] = f"has {len(value):,} characters; give at most {LONGEST_TEXT}"
            return ""
        if problem := explain_text(value):
            self._errors[name] = problem
            return ""
        return value.strip()

    def names(self, name: str) -> tuple[str, ...] | None:
        value = self._values.get(name)
        if value is None or value == "" or value == []:
            return None
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
            self._errors[name] = f"{_describe(value)} is not a list of names; give names of checks, or none for all"
            return None
        if len(items) > LONGEST_TEXT:
            self._errors[name] = f"has {len(items):,} names; give each check once"
            return None
        if problem := explain_text("".join(items)):
            self._errors[name] = problem
            return None
        names = tuple(dict.fromkeys(item.strip() for item in items if item.strip()))
        return names or None

    def settings(self) -> dict[str, object]:
        value = self._values.get("settings") or {}
        if not isinstance(value, Mapping):
            self._errors["settings"] = f"{_describe(value)} is not an object; give name: value pairs"
            return {}
        found: dict[str, object] = {}
        for name, given in value.items():
            if given is None or given == "":
                continue
            text = _join_command(given) if name == "command" else _as_text(given)
            if len(text) > LONGEST_TEXT:
                self._errors[f"settings.{name[:60]}"] = f"has {len(text):,} characters; give at most {LONGEST_TEXT}"
                continue
            if problem := explain_text(name + text):
                self._errors[f"settings.{name[:60]}"] = problem
                continue
            try:
                found |= parse_settings([f"{name}={text}"], defaults={})
            except BadRequest as error:
                self._errors[f"settings.{name}"] = f"{error.found}; {error.remedy}"
        return found

    def switch(self, name: str) -> bool:
        value = self._values.get(name, False)
        if isinstance(value, bool):
            return value
        if value is None:
            return False
        if isinstance(value, str) and value.lower() in TRUE + FALSE:
            return value.lower() in TRUE
        self._errors[name] = f"{_describe(value)} is neither true nor false; use true or false"
        return False

    def choice(self, name: str, choices: tuple[str, ...], *, default: str) -> str:
        value = self.text(name) or default
        if value not in choices:
            self._errors[name] = f"{value!r} is none of its values; use {' or '.join(choices)}"
            return default
        return value

    def number(self, name: str, *, at_most: float) -> float | None:
        value = self._values.get(name)
        if value is None or value == "":
            return None
        try:
            number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if not 0 < number <= at_most:
            self._errors[name] = f"{_describe(value)} is out of bounds; give a number above 0 and at most {at_most:g}"
            return None
        return number

    def gigabytes(self, name: str) -> int | None:
        number = self.number(name, at_most=1e6)
        return None if number is None else int(number * BYTES_IN_GB)

    def key(self, name: str) -> int | None:
        value = self._values.get(name)
        if value is None or value == "":
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**63:
            self._errors[name] = f"{_describe(value)} is no number of a capture; take it from the upload"
            return None
        return value

    def refuse_unknown(self) -> None:
        for name in self._values:
            if name not in FIELDS:
                self._errors[name[:60]] = f"there is no such field; the fields are {', '.join(FIELDS)}"

    def finish(self) -> None:
        if self._errors:
            raise InvalidSubmission(self._errors)


def _join_command(value: object) -> str:
    """A list of arguments as the text that is split into it again."""
    return shlex.join(map(str, value)) if isinstance(value, (list, tuple)) else _as_text(value)


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return str(value)


def _describe(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
