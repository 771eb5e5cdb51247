"""What validations were asked to do and with what, beside each other: by default only what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plumbline_web.validations.models import Validation

PATHS = ("model", "data", "framework")
"""Fields of a run spec that name a place on this installation; validations have names for the same."""


@dataclass(frozen=True)
class Setting:
    """One setting of each validation, in the order in which they are compared; None where one has no such setting."""

    group: str
    name: str
    values: tuple[str | None, ...]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


def list_settings(validations: Sequence[Validation]) -> tuple[Setting, ...]:
    """Every setting of any of them: what was asked, the run spec, the packages of the environment."""
    described = [dict(_describe(validation)) for validation in validations]
    names = dict.fromkeys(name for settings in described for name in settings)
    groups = ("asked", "run spec", "package")
    ordered = sorted(names, key=lambda key: groups.index(key[0]))
    return tuple(Setting(group, name, tuple(s.get((group, name)) for s in described)) for group, name in ordered)


def _describe(validation: Validation) -> Iterator[tuple[tuple[str, str], str]]:
    asked: Mapping[str, Any] = {
        "framework": validation.framework.name,
        "framework version": validation.environment.version,
        "model": validation.model.name,
        "model revision": validation.model.revision,
        "model parameters": f"{validation.model.parameters:,}",
        "data": validation.data,
        "profile": str(validation.profile) if validation.profile else "none",
        "checks": ", ".join(validation.checks) if validation.checks else "all",
        "injected fault": validation.inject or "none",
        "whole tensors": _say(validation.full),
        "queue": validation.queue,
        "Python": validation.environment.python,
    }
    for name, value in asked.items():
        yield ("asked", name), value
    for name, value in validation.spec.items():
        if name not in PATHS and name != "fault":
            yield ("run spec", name), _say(value)
    for name, value in sorted(validation.environment.packages.items()):
        if name not in ("python", "platform"):
            yield ("package", name), _say(value)


def _say(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "none" if value is None else str(value)
