"""A case: how a public problem is shown in a release, and on which checks; one TOML file a problem, named by its slug.

driver = "hf_trainer.py"        # beside the case, or in drivers/: trains in the release's own Python, by its own API
shows = "what is run"           # a sentence
[run]                           # as for `plumbline validate`
framework, model, data, checks, settings
[model]                         # instead of run.model: the content of a config.json
[options]                       # for the driver
[faulty]
packages = ["trl==0.13.0", …]   # as for `plumbline env create`, the framework first
[fixed]                         # or `unfixed = "why"`
packages = […]
[expects]
fails = ["step.gradients"]      # fail on the faulty release, pass on the fixed one
says = "not finite"             # part of the first one's sentence: a run can also stop for another reason
[expects.also]                  # check = "why it fails on the fixed release, for another reason"
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from checks.catalogue import Problem, load_problems
from checks.errors import BadRequest
from checks.registry import CHECKS, DEFAULT_CHECKS

HERE = Path(__file__).parent
CASES = HERE / "cases"
DRIVERS = HERE / "drivers"
REASONS = HERE / "not_reproduced.toml"

CIRCULAR = "environment.known_problems"
"""Never run here: it reads the catalogue that a case is to be evidence for."""

STOPS = "run.completes"

SECTIONS = frozenset({"driver", "shows", "run", "model", "options", "faulty", "fixed", "unfixed", "expects"})
RUN_FIELDS = frozenset({"framework", "model", "data", "checks", "settings", "dump"})


@dataclass(frozen=True)
class Case:
    """One problem's case, as its file states it."""

    slug: str
    shows: str
    """what is run, in a sentence"""
    driver: Path
    framework: str
    model: str | Mapping[str, Any]
    """as for `plumbline validate`, or the content of a config.json"""
    data: str
    """the name of a sample, or a file beside the case"""
    checks: tuple[str, ...]
    settings: tuple[str, ...]
    dump: bool
    """whether the driver writes weights for `transfer.sync`"""
    options: Mapping[str, Any]
    faulty: tuple[str, ...]
    fixed: tuple[str, ...]
    """requirements of the environments, the framework first; empty where nothing mends it"""
    unfixed: str
    """why there is no release that mends it; empty where there is"""
    fails: tuple[str, ...]
    says: str
    """what the first of them says on the faulty release, in part; empty where its name says enough"""
    also: Mapping[str, str]
    """check → why it fails on the mended release too, which has nothing to do with the problem"""
    digest: str
    """of all that decides the outcome but the releases' own code"""

    @property
    def problem(self) -> Problem:
        return _problems()[self.slug]


@cache
def _problems() -> Mapping[str, Problem]:
    return {problem.slug: problem for problem in load_problems()}


@cache
def load_cases() -> Mapping[str, Case]:
    """Every case that ships, by its slug.

    Raises:
        BadRequest: a file that is no case, or is called after no problem.
    """
    return {file.stem: read_case(file) for file in sorted(CASES.glob("*.toml"))}


@cache
def load_reasons() -> Mapping[str, str]:
    """Why a problem that shows in a release has no case: slug → a sentence."""
    reasons: dict[str, str] = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    return reasons


def read_case(file: Path) -> Case:
    """Read one case strictly.

    Raises:
        BadRequest: naming the file and the field.
    """
    text = file.read_text(encoding="utf-8")
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"case {file}", f"is not TOML ({error})", "correct it") from None
    _check_names(file, found)
    run, expects = found["run"], found["expects"]
    beside = file.parent / found["driver"]
    driver = beside if beside.is_file() else DRIVERS / found["driver"]
    if not driver.is_file():
        raise BadRequest(f"case {file}", f"there is no driver {found['driver']!r}", f"put it into {DRIVERS}")
    data = file.parent / run["data"]
    digest = hashlib.sha256(text.encode())
    for read in (driver, data):
        digest.update(read.read_bytes() if read.is_file() else b"")
    return Case(
        slug=file.stem,
        shows=found["shows"],
        driver=driver,
        framework=run["framework"],
        model=found.get("model") or run["model"],
        data=str(data) if data.is_file() else run["data"],
        checks=tuple(run.get("checks", [name for name in DEFAULT_CHECKS if name != CIRCULAR])),
        settings=tuple(run.get("settings", ())),
        dump=run.get("dump", False),
        options=found.get("options", {}),
        faulty=tuple(found["faulty"]["packages"]),
        fixed=tuple(found.get("fixed", {}).get("packages", ())),
        unfixed=found.get("unfixed", ""),
        fails=tuple(expects["fails"]),
        says=expects.get("says", ""),
        also=expects.get("also", {}),
        digest=digest.hexdigest()[:12],
    )


def _check_names(file: Path, found: Mapping[str, Any]) -> None:
    field = f"case {file.name}"
    for name in (*(set(found) - SECTIONS), *(set(found.get("run", {})) - RUN_FIELDS)):
        raise BadRequest(field, f"{name!r} is no part of a case", "leave it out")
    for name in ("driver", "shows", "run", "faulty", "expects"):
        if name not in found:
            raise BadRequest(field, f"has no {name}", "state it")
    if ("fixed" in found) == ("unfixed" in found):
        raise BadRequest(field, "states not just one of fixed and unfixed", "give the release, or why there is none")
    if ("model" in found) == ("model" in found["run"]):
        raise BadRequest(field, "states not just one of [model] and run.model", "give a config, or a name")
    expects = found["expects"]
    for name in (*expects["fails"], *expects.get("also", ()), *found["run"].get("checks", ())):
        if name not in CHECKS:
            raise BadRequest(field, f"there is no check {name!r}", "name one of `plumbline checks`")
    if not expects["fails"]:
        raise BadRequest(field, "expects no check to fail", "name one")
    if expects["fails"][0] == STOPS and not expects.get("says"):
        raise BadRequest(field, f"does not say what {STOPS} says", "state it in says: a run stops for many reasons")
    if file.stem not in _problems():
        raise BadRequest(field, "is called after no problem of the catalogue", "name it after its slug")
