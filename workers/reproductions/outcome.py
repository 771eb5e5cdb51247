"""What showing a problem again came to, and how it is kept: one JSON file a problem, complete or not there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from checks.errors import BadRequest
from checks.verdict import Status
from workers.report import write_whole

FAULTY, FIXED = "faulty", "fixed"

SHIPPED = Path(__file__).with_name("results.json")


@dataclass(frozen=True)
class Judged:
    """One check's answer on one release."""

    check: str
    status: str
    sentence: str
    figures: tuple[str, ...] = ()
    """what was compared with which threshold, where it did not hold"""


@dataclass(frozen=True)
class Side:
    """A release, and what the checks said of it."""

    requested: tuple[str, ...]
    packages: Mapping[str, str]
    """package → version in the process that was judged"""
    verdicts: tuple[Judged, ...]
    seconds: float

    def find(self, check: str) -> Judged | None:
        return next((each for each in self.verdicts if each.check == check), None)


@dataclass(frozen=True)
class Reproduction:
    """Whether a problem was shown again. `troubles`: what was not as expected, a sentence each."""

    slug: str
    url: str
    shows: str
    expected: tuple[str, ...]
    """checks that fail on the faulty release and pass on the fixed one"""
    also: Mapping[str, str]
    unfixed: str
    date: str
    """ISO 8601, UTC"""
    digest: str
    faulty: Side
    fixed: Side | None
    troubles: tuple[str, ...]

    @property
    def reproduced(self) -> bool:
        return not self.troubles


def find_troubles(
    faulty: Side, fixed: Side | None, *, expected: tuple[str, ...], also: Mapping[str, str], says: str = ""
) -> tuple[str, ...]:
    """What is not as a case expects; `says`: part of the first expected check's sentence on the faulty release."""
    troubles = []
    first = faulty.find(expected[0])
    if first is not None and says not in first.sentence:
        troubles.append(f"{first.check} on the faulty release says {first.sentence!r}; {says!r} was expected in it")
    for check in expected:
        for which, side, wanted in ((FAULTY, faulty, Status.FAIL), (FIXED, fixed, Status.PASS)):
            if side is None:
                continue
            judged = side.find(check)
            if judged is None or judged.status != wanted.value:
                found = "was not judged" if judged is None else f"is {judged.status}: {judged.sentence}"
                troubles.append(f"{check} on the {which} release {found}; {wanted.value} was expected")
    for judged in () if fixed is None else fixed.verdicts:
        if judged.status in (Status.FAIL.value, Status.ERROR.value) and judged.check not in (*expected, *also):
            troubles.append(f"{judged.check} on the fixed release is {judged.status}: {judged.sentence}")
    return tuple(troubles)


def keep(directory: Path, found: Reproduction) -> None:
    """Write what was found, whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(directory / f"{found.slug}.json", render(found))


def render(found: Reproduction) -> str:
    """As JSON, with `reproduced`."""
    return json.dumps(as_document(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_document(found: Reproduction) -> dict[str, Any]:
    """As JSON values."""
    return {"reproduced": found.reproduced, **asdict(found)}


def read_kept(directory: Path, slug: str, *, digest: str) -> Reproduction | None:
    """What is kept of a problem; None where nothing is, or the case has changed since.

    Raises:
        BadRequest: the file is something else.
    """
    file = directory / f"{slug}.json"
    try:
        found = read_document(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise BadRequest("out", f"{file} is no kept reproduction ({error})", "remove that file") from None
    return found if found.digest == digest else None


def read_document(document: Mapping[str, Any]) -> Reproduction:
    """The inverse of `as_document`; raises KeyError, TypeError or ValueError for anything else."""
    values = {name: value for name, value in document.items() if name != "reproduced"}
    sides = {name: _read_side(values[name]) for name in (FAULTY, FIXED) if values[name] is not None}
    lists = {name: tuple(values[name]) for name in ("expected", "troubles")}
    return Reproduction(**{**values, **lists, **sides})


def _read_side(found: Mapping[str, Any]) -> Side:
    verdicts = tuple(Judged(**{**each, "figures": tuple(each["figures"])}) for each in found["verdicts"])
    return Side(**{**found, "requested": tuple(found["requested"]), "verdicts": verdicts})


@cache
def read_shipped() -> Mapping[str, Reproduction]:
    """Slug → what showing that problem again came to, as it ships with this version."""
    document = json.loads(SHIPPED.read_text(encoding="utf-8"))
    found = (read_document(each) for each in document["reproductions"])
    return {each.slug: each for each in found}
