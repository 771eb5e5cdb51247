"""No installed release has a silent known problem in the part of it that the run uses.

Reference: the catalogue of public problems that ships (`checks/catalogue`): for each the affected releases, PEP 440,
with the pull request, tag or wheel that they were read from. Compared with the package list of the framework's own
process. A run uses a problem's part unless one of the rules of `checks/catalogue/reach.py` says why not.
Catches: what others have met before: `hf-ga-mean-of-means`, `hf-num-items-overcount`,
`hf-resume-order-wrong-after-first-epoch`, `trl-padding-free-boundary-label` and every other problem whose affected
releases are known.
Cannot see: a problem that nobody reported, one whose affected releases are unknown (counted apart), a package that was
patched in place, and whether the fault has any effect on this run's numbers: that is what the step checks say.
Cost: nothing beyond the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from checks.captures.capture import Capture
from checks.catalogue.exposure import PACKAGES, Exposure, Standing, assess_all
from checks.catalogue.problem import Problem, ProblemStatus, load_problems
from checks.catalogue.reach import Reach, Reached, reaches
from checks.check import Check, inconclusive
from checks.material import Material
from checks.roles import Role, spec_of
from checks.spec import RunSpec
from checks.verdict import Measurement, Status, Verdict

NAME = "environment.known_problems"


@dataclass(frozen=True)
class Match:
    """A problem that an installed release has, and whether the run comes near it."""

    standing: Standing
    reach: Reach

    @property
    def problem(self) -> Problem:
        return self.standing.problem


def judge(material: Material) -> Verdict:
    return judge_with(material, load_problems())


def judge_with(material: Material, problems: Sequence[Problem]) -> Verdict:
    """The verdict by a catalogue: the one that ships, unless a test has its own."""
    capture = material.capture
    if capture is None or not capture.steps:
        return inconclusive(NAME, material.why_not())
    if not capture.packages:
        return inconclusive(NAME, "the capture names no packages; record it again with a current plumbline-capture")
    standings = assess_all(problems, capture.packages)
    judged = [standing for standing in standings if standing.exposure is not Exposure.UNKNOWN]
    if not judged:
        known = ", ".join(sorted(set(PACKAGES.values())))
        return inconclusive(
            NAME,
            f"none of the {len(capture.packages)} installed packages has a problem of the catalogue with known "
            f"releases; it knows {known}",
        )
    matches = _match(material, capture, standings)
    return _decide(standings, matches)


def _match(material: Material, capture: Capture, standings: Sequence[Standing]) -> tuple[Match, ...]:
    spec = _spec_in_force(material)
    model_class = capture.step(capture.steps[0]).model.name
    processes = max(1, len(capture.ranks))
    return tuple(
        Match(standing, reaches(standing.problem, spec, model_class=model_class, processes=processes))
        for standing in standings
        if standing.exposure is Exposure.AFFECTED
    )


def _spec_in_force(material: Material) -> RunSpec:
    """The run's settings; with the resumed run beside it the validation saves and resumes too."""
    if Role.RESUMED in material.others:
        return replace(material.spec, resume_after=spec_of(Role.RESUMED, material.spec).resume_after)
    return material.spec


def _decide(standings: Sequence[Standing], matches: tuple[Match, ...]) -> Verdict:
    silent = [match for match in matches if match.problem.silent]
    used = [match for match in silent if match.reach.reached is Reached.USED]
    left_open = [match for match in silent if match.reach.reached is Reached.OPEN]
    unknown = [standing for standing in standings if standing.exposure is Exposure.UNKNOWN]
    compared = len(standings) - len(unknown)
    count = Measurement("silent known problems that the run uses", float(len(used)), 0.0, not used, unit="count")
    evidence = {
        "packages": _describe_packages(standings),
        "compared": compared,
        "affecting": [_describe(match) for match in matches],
        "unknown": [standing.problem.slug for standing in unknown],
    }
    if used:
        first = used[0]
        return Verdict(
            NAME,
            Status.FAIL,
            _accuse(used),
            (count,),
            pattern=first.problem.pattern,
            first_wrong=f"{first.standing.package} {first.standing.version}",
            evidence=evidence,
        )
    if left_open:
        names = "; ".join(f"{match.problem.slug}: {match.reach.why}" for match in left_open)
        sentence = (
            f"the installed releases have silent problems of which the settings do not say whether the run meets them "
            f"({names}); upgrade {_list_packages(left_open)}"
        )
        return inconclusive(NAME, sentence, measurements=(count,), evidence=evidence)
    return Verdict(NAME, Status.PASS, _acquit(standings, matches, compared, len(unknown)), (count,), evidence=evidence)


def _accuse(used: Sequence[Match]) -> str:
    first = used[0]
    more = f"; so do {len(used) - 1} more: {', '.join(m.problem.slug for m in used[1:])}" if len(used) > 1 else ""
    standing = first.standing
    return (
        f"{standing.package} {standing.version} has {first.problem.slug} and the run uses that part: "
        f"{_lower(first.problem.title)}; {_remedy(standing)}; {first.problem.url}{more}"
    )


def _remedy(standing: Standing) -> str:
    if standing.fixed_in is not None:
        return f"fixed in {standing.fixed_in}"
    return "no release is known to fix it"


def _acquit(standings: Sequence[Standing], matches: Sequence[Match], compared: int, unknown: int) -> str:
    releases = ", ".join(f"{name} {version}" for name, version in _describe_packages(standings).items())
    aside = ", ".join(match.problem.slug for match in matches)
    return (
        f"{releases}: of {compared} known problems whose affected releases are known, no silent one is in what the run "
        f"uses{f' (installed, but not silent or not used: {aside})' if aside else ''}; of {unknown} more the releases "
        "are not known"
    )


def _describe_packages(standings: Sequence[Standing]) -> Mapping[str, str]:
    return dict(sorted({standing.package: standing.version for standing in standings}.items()))


def _list_packages(matches: Sequence[Match]) -> str:
    return ", ".join(sorted({match.standing.package for match in matches}))


def _describe(match: Match) -> dict[str, Any]:
    standing, problem = match.standing, match.problem
    return {
        "slug": problem.slug,
        "title": problem.title,
        "symptom": problem.symptom,
        "silent": problem.silent,
        "pattern": problem.pattern.value,
        "package": standing.package,
        "version": standing.version,
        "affected": None if standing.range is None else str(standing.range.specifier),
        "source": None if standing.range is None else standing.range.source,
        "fixed_in": standing.fixed_in,
        "open_upstream": problem.status is not ProblemStatus.FIXED,
        "url": problem.url,
        "run": _describe_reach(match.reach),
    }


def _describe_reach(reach: Reach) -> str:
    """For a page: used by this run; or the reason why not, or why that is open."""
    if reach.reached is Reached.USED:
        return "used by this run"
    if reach.reached is Reached.OPEN:
        return f"may be used by this run: {reach.why}"
    return f"installed, not used by this run: {reach.why}"


def _lower(title: str) -> str:
    """A title inside a sentence; a word in capitals stays so."""
    first = title.split(" ", 1)[0]
    return title if first[1:] != first[1:].lower() else title[0].lower() + title[1:]


CHECK = Check(
    NAME,
    "no installed release has a silent known problem in what the run uses",
    __doc__ or "",
    judge,
)
