"""A case for each fault of checks.faults, on a family of the fault's half where one can have it."""

from __future__ import annotations

import hashlib
from functools import cache

from benchmarks.detection.case import TWO_RUNS, Case
from benchmarks.detection.expected import DENSE, EXPECTED, Expected
from benchmarks.detection.split import half_of_family, half_of_fault
from checks.faults import FAULTS, Fault
from checks.registry import CHECKS
from checks.roles import Role


@cache
def list_faulty() -> tuple[Case, ...]:
    """Every fault that an expectation is stated of, in one of the frameworks that it can act in."""
    return tuple(
        make_case(fault, EXPECTED[fault.slug], choose_framework(fault.slug, EXPECTED[fault.slug].frameworks))
        for fault in FAULTS
        if fault.slug in EXPECTED
    )


def make_case(fault: Fault, expected: Expected, framework: str) -> Case:
    """The fault in one framework, with the runs that its checks read."""
    needed = {role for name in expected.checks_of(fault) for role in CHECKS[name].roles}
    return Case(
        name=f"fault/{fault.slug}/{framework}",
        framework=framework,
        family=choose_family(fault.slug, expected.families),
        settings=(*fault.settings, *expected.settings),
        fault=fault.slug,
        roles=tuple(role for role in Role if role in {*TWO_RUNS, *needed}),
        data=expected.data,
        config=expected.config,
    )


def choose_framework(slug: str, frameworks: tuple[str, ...]) -> str:
    """One of the frameworks, by another byte of the hash that chooses the half."""
    return frameworks[hashlib.sha256(slug.encode()).digest()[1] % len(frameworks)]


def choose_family(slug: str, families: tuple[str, ...]) -> str:
    """The first of the families that is in the fault's half; the first of all where none is."""
    able = families or DENSE
    return next((family for family in able if half_of_family(family) == half_of_fault(slug)), able[0])
