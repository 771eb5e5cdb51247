"""One case: a framework run, healthy or with a fault, and which of its roles are recorded."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from checks.check import Check
from checks.models import resolve_model
from checks.registry import CHECKS
from checks.roles import Role
from checks.samples import resolve_data
from checks.spec import RunSpec
from workers.frameworks import default_settings
from workers.settings import parse_settings

DATA = "gsm8k_sample"
TWO_RUNS = (Role.RUN, Role.MERGED)
"""The runs of a validation that asks for no particular check."""


@dataclass(frozen=True)
class Case:
    """A run to judge. `fault`: slug of checks.faults, None for a healthy variant. `settings`: as `name=value`."""

    name: str
    framework: str
    family: str
    settings: tuple[str, ...] = ()
    fault: str | None = None
    roles: tuple[Role, ...] = TWO_RUNS
    data: str = DATA
    config: tuple[tuple[str, float], ...] = ()
    """entries in which the model's config.json differs from the tiny family's"""

    @property
    def precision(self) -> str:
        return self.spec().precision

    def spec(self) -> RunSpec:
        """The run spec. Raises BadRequest for a setting that does not exist."""
        usual = [f"{name}={value}" for name, value in default_settings(self.family).items()]
        settings = parse_settings([*usual, *self.settings], defaults={})
        spec = RunSpec(self.framework, _locate_model(self.family), resolve_data(self.data), fault=self.fault)
        return replace(spec, **settings)  # type: ignore[arg-type]

    def spec_in(self, directory: Path) -> RunSpec:
        """The run spec with the case's own config, in a copy of the tiny model below `directory`."""
        spec = self.spec()
        if not self.config:
            return spec
        copy = directory / "model"
        shutil.copytree(spec.model, copy)
        file = copy / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **dict(self.config)}))
        return replace(spec, model=copy)

    def checks(self) -> tuple[Check, ...]:
        """The checks whose runs the case has; of several processes those that read every rank."""
        checks = [check for check in CHECKS.values() if set(check.roles) <= set(self.roles)]
        if self.spec().processes > 1:
            checks = [check for check in checks if check.name in READ_RANKS or check.level == PARALLEL]
        return tuple(checks)


@cache
def _locate_model(family: str) -> Path:
    """The tiny model's directory; resolving one hashes its weights."""
    return resolve_model(f"tiny:{family}").path


READ_RANKS = ("run.completes", "data.coverage")
PARALLEL = "parallel"
"""A reference is that of one process; checks of this level, and these two, read every rank."""
