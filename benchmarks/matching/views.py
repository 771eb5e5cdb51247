"""What the matcher is told of a finding beside its verdicts: the ways in which the benchmark asks."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.metadata import version

from benchmarks.detection.case import Case
from benchmarks.detection.expected import EXPECTED
from benchmarks.matching.findings import Recorded
from checks.catalogue.problem import Problem
from checks.faults import fault
from checks.matching.described import Described, describe_finding, list_used
from checks.matching.weights import DEFAULT, Weights

INSTALLED = ("transformers", "trl", "accelerate", "peft", "torch", "datasets")


class View(StrEnum):
    """Whose finding it is said to be."""

    MODELLED = "framework of the problem"
    """of the framework that the problem was known of, as a finding in that framework would be"""
    UNKNOWN = "framework not told"
    GIVEN = "as injected"
    """of the framework and the releases that the fault was injected into, which do not have the problem by nature"""


class Asked(StrEnum):
    """Which of a run's failing verdicts is the finding; the others are told as what failed with it."""

    RIGHT = "the fault's check"
    """that of the check that benchmarks.detection wants to fail: another may be about something else that is true"""
    FIRST = "the first"
    """the first in reading order that names a pattern"""


@dataclass(frozen=True)
class Knowledge:
    """What the matcher may use of the checks' own descriptions."""

    name: str
    weights: Weights


KNOWLEDGE = (
    Knowledge("with the checks' descriptions", DEFAULT),
    Knowledge("without the problems that checks name", replace(DEFAULT, named=0.0)),
    Knowledge("without their descriptions", replace(DEFAULT, named=0.0, check=0.0)),
)


def describe(recorded: Recorded, case: Case, problem: Problem, view: View, asked: Asked) -> Described | None:
    """The finding as the matcher gets it; None where no check failed."""
    document = recorded.first if asked is Asked.FIRST else recorded.of_checks(list_right(case))
    if document is None:
        return None
    finding = describe_finding(document, others=recorded.failures, used=list_used(case.spec()))
    if view is View.MODELLED:
        return replace(finding, framework=problem.framework)
    if view is View.GIVEN:
        packages = {name: version(name) for name in INSTALLED}
        return replace(finding, framework=case.framework, packages=packages, model_class=read_class(case))
    return finding


def list_right(case: Case) -> tuple[str, ...]:
    """The checks that must see the case's fault, that of its registry first."""
    assert case.fault is not None
    injected = fault(case.fault)
    return tuple(dict.fromkeys((injected.check, *EXPECTED[case.fault].checks_of(injected))))


def read_class(case: Case) -> str:
    """The class that the tiny model's config names."""
    config = json.loads((case.spec().model / "config.json").read_text())
    return str((config.get("architectures") or [""])[0])
