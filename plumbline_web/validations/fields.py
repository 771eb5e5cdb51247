"""The fields of the form as a template draws them: label, help, choices, default, error, and what they were before."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from checks.document import read_paragraph
from checks.faults import FAULTS
from checks.levels import LEVELS
from checks.models.families import FAMILIES
from checks.registry import CHECKS
from checks.samples.reading import SAMPLE_FILES
from checks.spec import RunSpec
from plumbline_web.catalog.installed import interpreter_of, list_frameworks
from plumbline_web.catalog.models import TrainedModel
from plumbline_web.jobs.enums import Queue
from plumbline_web.validations.field_texts import GROUPS, HELP
from plumbline_web.validations.forms import SETTING, Entries, write_value
from workers.queues import LONGEST_RUN_S
from workers.request import DEFAULT_TIME_LIMIT_S
from workers.settings import BOUNDS, COUNT_LIMIT, setting_names

MOST_SUGGESTED = 50
"""Models offered beside the shipped ones: those that were validated last."""


@dataclass(frozen=True)
class Option:
    value: str
    title: str


@dataclass(frozen=True)
class Field:
    """One field. `origin`: what it held in the validation that is cloned, None where nothing is."""

    name: str
    label: str
    value: str = ""
    help: str = ""
    error: str = ""
    placeholder: str = ""
    options: tuple[Option, ...] = ()
    origin: str | None = None
    required: bool = False
    numeric: bool = False

    @property
    def id(self) -> str:
        return "field-" + self.name.replace(".", "-").replace("_", "-")

    @property
    def is_changed(self) -> bool:
        return self.origin is not None and self.origin != self.value


@dataclass(frozen=True)
class Group:
    title: str
    fields: tuple[Field, ...]

    @property
    def is_used(self) -> bool:
        """Something was given or is wrong here: the group is drawn open."""
        return any(each.value or each.error for each in self.fields)


@dataclass(frozen=True)
class CheckBox:
    """One check to choose: its claim, what it catches, what it costs."""

    name: str
    claim: str
    catches: str
    cost: str
    chosen: bool
    origin: bool | None

    @property
    def id(self) -> str:
        return "check-" + self.name.replace(".", "-")


@dataclass(frozen=True)
class Level:
    title: str
    checks: tuple[CheckBox, ...]


@dataclass(frozen=True)
class ErrorLink:
    """One entry of the summary: the field's label and the sentence; `anchor` leads to the field."""

    anchor: str
    label: str
    sentence: str


@dataclass(frozen=True)
class Drawn:
    """The whole form."""

    entries: Entries
    what: tuple[Field, ...]
    """framework, model, data"""
    levels: tuple[Level, ...]
    settings: tuple[Group, ...]
    resources: tuple[Field, ...]
    switches: tuple[Field, ...]
    inject: Field
    checks_error: str
    errors: tuple[ErrorLink, ...]
    models: tuple[str, ...]
    samples: tuple[str, ...]

    @property
    def first_error(self) -> str:
        return self.errors[0].anchor if self.errors else ""


def draw(entries: Entries, *, errors: Mapping[str, str] | None = None, origin: Entries | None = None) -> Drawn:
    """Lay the form out. Errors of fields that are not drawn appear in the summary alone."""
    painter = _Painter(entries, errors or {}, origin)
    what = (
        painter.field(
            "framework", "Framework", options=_frameworks(), required=True, help="the version is the installed one"
        ),
        painter.field(
            "model",
            "Model",
            required=True,
            placeholder="tiny:qwen3",
            help="a shipped tiny model, or the path of a checkpoint or a config.json on the server",
        ),
        painter.field(
            "data",
            "Data",
            required=True,
            placeholder="gsm8k_sample",
            help="a shipped sample, or the path of a .jsonl or .parquet file or a saved data set on the server",
        ),
    )
    resources = (
        painter.field("queue", "Queue", options=tuple(Option(value, title) for value, title in Queue.choices)),
        painter.field(
            "time_limit_s",
            "Time limit in seconds",
            numeric=True,
            placeholder=f"{DEFAULT_TIME_LIMIT_S:g}",
            help=f"of each framework run, at most {LONGEST_RUN_S:g}; a hang ends there too",
        ),
        painter.field(
            "memory_limit_gb",
            "Memory limit in GB",
            numeric=True,
            placeholder="none",
            help="of a run's processes together, 10⁹ bytes",
        ),
    )
    switches = (
        painter.field("fresh", "Fresh captures", help="run the framework even where an equal capture is stored"),
        painter.field("full", "Whole tensors", help="record them instead of sketches: more exact, and far larger"),
    )
    inject = painter.field(
        "inject",
        "Inject a fault",
        options=(Option("", "none"), *(Option(fault.slug, f"{fault.slug}: {fault.summary}") for fault in FAULTS)),
        help="to show that a check sees it; it brings the settings that it needs",
    )
    settings = tuple(painter.groups())
    checks = Field("checks", "Checks")
    drawn = (*what, checks, *(each for group in settings for each in group.fields), *resources, *switches, inject)
    return Drawn(
        entries=entries,
        what=what,
        levels=painter.levels(),
        settings=settings,
        resources=resources,
        switches=switches,
        inject=inject,
        checks_error=(errors or {}).get("checks", ""),
        errors=painter.summary(drawn),
        models=_suggest_models(),
        samples=tuple(SAMPLE_FILES),
    )


class _Painter:
    """Draws single fields of one state of the form."""

    def __init__(self, entries: Entries, errors: Mapping[str, str], origin: Entries | None) -> None:
        self._entries = entries
        self._errors = errors
        self._origin = origin

    def field(self, name: str, label: str, **details: Any) -> Field:
        return Field(
            name=name,
            label=label,
            value=self._entries.text(name),
            error=self._errors.get(name, ""),
            origin=self._origin.text(name) if self._origin is not None else None,
            **details,
        )

    def groups(self) -> list[Group]:
        named = {name for _, names in GROUPS for name in names}
        others = tuple(name for name in setting_names() if name not in named)
        all_groups = (*GROUPS, ("Further settings", others)) if others else GROUPS
        return [Group(title, tuple(self._setting(name) for name in names)) for title, names in all_groups]

    def _setting(self, name: str) -> Field:
        kind = get_type_hints(RunSpec)[name]
        default = write_value(_DEFAULTS[name])
        hint = HELP.get(name, "")
        details: dict[str, Any] = {"help": hint, "placeholder": default}
        if get_origin(kind) is Literal or kind is bool:
            values = ("true", "false") if kind is bool else get_args(kind)
            details["options"] = (Option("", f"default ({default})"), *(Option(value, value) for value in values))
        elif name in BOUNDS:
            details |= {"help": "; ".join(filter(None, (hint, _say_bounds(name)))), "numeric": True}
        return self.field(SETTING + name, name, **details)

    def levels(self) -> tuple[Level, ...]:
        boxes: dict[str, list[CheckBox]] = {}
        for name, check in CHECKS.items():
            box = CheckBox(
                name=name,
                claim=check.claim,
                catches=read_paragraph(check.description, "Catches"),
                cost=read_paragraph(check.description, "Cost"),
                chosen=name in self._entries.checks,
                origin=name in self._origin.checks if self._origin is not None else None,
            )
            boxes.setdefault(check.level, []).append(box)
        return tuple(Level(LEVELS[level], tuple(found)) for level, found in boxes.items())

    def summary(self, drawn: tuple[Field, ...]) -> tuple[ErrorLink, ...]:
        """Errors in the order of the fields on the page."""
        fields = {each.name: each for each in drawn}
        order = {name: place for place, name in enumerate(fields)}
        links = []
        for name, sentence in sorted(self._errors.items(), key=lambda item: order.get(item[0], len(order))):
            if name in fields:
                links.append(ErrorLink(fields[name].id, fields[name].label, sentence))
            else:
                links.append(ErrorLink("", name.removeprefix(SETTING), sentence))
        return tuple(links)


_DEFAULTS: Mapping[str, object] = {each.name: each.default for each in dataclasses.fields(RunSpec)}


def _say_bounds(name: str) -> str:
    """The bounds, without the upper one that only says how large a number of 32 bits is."""
    bounds = BOUNDS[name]
    return (replace(bounds, high=math.inf) if bounds.high == COUNT_LIMIT else bounds).describe()


def _frameworks() -> tuple[Option, ...]:
    return tuple(
        Option(
            framework.name,
            f"{framework.title} {interpreter_of(framework.name).packages.get(framework.package, '(not installed)')}",
        )
        for framework in list_frameworks()
    )


def _suggest_models() -> tuple[str, ...]:
    known = TrainedModel.objects.exclude(name__startswith="tiny:").order_by("-pk").values_list("name", flat=True)
    return (*(f"tiny:{family}" for family in FAMILIES), *dict.fromkeys(known[:MOST_SUGGESTED]))
