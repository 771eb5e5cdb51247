"""Whether installed releases have a known problem: affected, not affected, or unknown.

A problem without a known range is *unknown*, never "not affected"; so is one that nobody has mended yet, in a release
after the last that is known to have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from checks.catalogue.problem import AffectedRange, Problem, ProblemStatus

PACKAGES: Mapping[str, str] = {
    "accelerate": "accelerate",
    "automodel": "nemo-automodel",
    "axolotl": "axolotl",
    "deepspeed": "deepspeed",
    "llama-factory": "llamafactory",
    "megatron-core": "megatron-core",
    "megatron-swift": "ms-swift",
    "ms-swift": "ms-swift",
    "peft": "peft",
    "sglang": "sglang",
    "torchtitan": "torchtitan",
    "transformer-engine": "transformer-engine",
    "transformers": "transformers",
    "trl": "trl",
    "verl": "verl",
}
"""The catalogue's framework → its package; a framework that is not here has no release on the package index."""


class Exposure(StrEnum):
    """What is known of a problem in an installed release."""

    AFFECTED = "affected"
    NOT_AFFECTED = "not affected"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Standing:
    """A problem in one environment.

    `range`: the affected releases that hold the installed one, None where none does. `fixed_in`: the first release
    after the installed one that is known not to have the problem. `why` completes "… because".
    """

    problem: Problem
    exposure: Exposure
    package: str
    version: str
    range: AffectedRange | None
    fixed_in: str | None
    why: str


def assess_all(problems: Iterable[Problem], packages: Mapping[str, str]) -> tuple[Standing, ...]:
    """The standing of each problem of an installed package; the others are left out."""
    found = (assess(problem, packages) for problem in problems)
    return tuple(standing for standing in found if standing is not None)


def assess(problem: Problem, packages: Mapping[str, str]) -> Standing | None:
    """The standing of one problem; None where no package that it concerns is installed.

    packages: normalised name → version.
    """
    if not problem.affected_spec:
        package = PACKAGES.get(problem.framework)
        if package is None or package not in packages:
            return None
        why = "which releases have it is not known"
        return Standing(problem, Exposure.UNKNOWN, package, packages[package], None, None, why)
    standings = [_assess_range(problem, each, packages) for each in problem.affected_spec if each.package in packages]
    order = (Exposure.AFFECTED, Exposure.UNKNOWN, Exposure.NOT_AFFECTED)
    return min(standings, key=lambda standing: order.index(standing.exposure), default=None)


def _assess_range(problem: Problem, each: AffectedRange, packages: Mapping[str, str]) -> Standing:
    text = packages[each.package]

    def stand(exposure: Exposure, why: str) -> Standing:
        affected = exposure is Exposure.AFFECTED
        fixed_in = first_fixed(problem, each.package, Version(text)) if affected else None
        return Standing(problem, exposure, each.package, text, each if affected else None, fixed_in, why)

    exposure, why = _locate(text, each.specifier, fixed=problem.status is ProblemStatus.FIXED)
    if exposure is not Exposure.AFFECTED:
        return stand(exposure, f"{each.package} {text} {why}")
    for other, specifier in each.needs.items():
        if other not in packages:
            return stand(Exposure.UNKNOWN, f"it takes {other}{specifier} too, and no version of {other} is given")
        needed, _ = _locate(packages[other], specifier, fixed=True)
        if needed is not Exposure.AFFECTED:
            return stand(needed, f"it takes {other}{specifier} too, and {packages[other]} is given")
    return stand(Exposure.AFFECTED, f"{each.package} {text} {why}")


def _locate(text: str, specifier: SpecifierSet, *, fixed: bool) -> tuple[Exposure, str]:
    """Where a version stands to the affected releases. `fixed`: releases after the range are known to be mended."""
    try:
        version = Version(text)
    except InvalidVersion:
        return Exposure.UNKNOWN, "is no version of PEP 440"
    if specifier.contains(version, prereleases=True):
        return Exposure.AFFECTED, f"is in {specifier}"
    bounds = {Version(each.version) for each in specifier if not each.version.endswith(".*")}
    if version.is_prerelease and Version(version.base_version) in bounds:
        return Exposure.UNKNOWN, f"is on the way to a release where {specifier} begins or ends"
    before = any(each.operator in (">=", ">") and not each.contains(version, prereleases=True) for each in specifier)
    if fixed or before:
        return Exposure.NOT_AFFECTED, f"is not in {specifier}"
    return Exposure.UNKNOWN, f"is not in {specifier}, and no release is known to mend it"


def first_fixed(problem: Problem, package: str, version: Version) -> str | None:
    """The first release after `version` that is known not to have the problem; None where none is known.

    Of >=4.46,<4.46.2 and >=4.47,<4.48.1 it is 4.46.2 for 4.46.1, and 4.48.1 for 4.47.0.
    """
    ranges = [each.specifier for each in problem.affected_spec if each.package == package]
    ends = {Version(bound.version) for specifier in ranges for bound in specifier if bound.operator == "<"}
    mended = (end for end in ends if end > version and not any(specifier.contains(end) for specifier in ranges))
    earliest = min(mended, default=None)
    return None if earliest is None else str(earliest)
