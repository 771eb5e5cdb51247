"""A finding and a problem as the matcher reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checks.catalogue.problem import Problem, Recurrence
from checks.catalogue.reach import STACKS
from checks.matching.signature import Signature, read_signature
from checks.spec import RunSpec

ADAPTED, ADAPTERS = "lora", "peft"
"""What `used` names of a run with adapters, and the software that has them."""
SWITCHES = ("packing", "padding_free", ADAPTED, "gradient_checkpointing")
DEGREES: Mapping[str, str] = {
    "dp_size": "data parallel",
    "tp_size": "tensor parallel",
    "pp_size": "pipeline parallel",
    "cp_size": "context parallel",
    "ep_size": "expert parallel",
}
"""Number of processes → how they share the work, where there are several."""


@dataclass(frozen=True)
class Other:
    """Another failing verdict of the validation: its check and its sentence."""

    check: str
    sentence: str


@dataclass(frozen=True)
class Described:
    """A finding: what its verdict says, and where it was seen.

    `framework`: name of the framework under test, empty where it is not known; `packages`: normalised name → version
    of what its process had installed; `model_class`: name of the model's class; `also`: the other failing verdicts of
    the validation; `used`: features in words that the run used, such as `packing` or `dp_size=2`.
    """

    signature: Signature
    sentence: str
    pattern: str = ""
    first_wrong: str = ""
    framework: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    model_class: str = ""
    also: tuple[Other, ...] = ()
    used: tuple[str, ...] = ()

    @property
    def software(self) -> tuple[str, ...]:
        """The catalogue's names of what the run uses; none where the framework is not known."""
        stack = name_software(self.framework)
        return (*stack, ADAPTERS) if stack and ADAPTED in self.used else stack


@dataclass(frozen=True)
class Candidate:
    """A problem of the catalogue, with the groups of recurrences that it belongs to."""

    problem: Problem
    groups: tuple[Recurrence, ...] = ()

    @property
    def slug(self) -> str:
        return self.problem.slug

    def group_in(self, software: Sequence[str]) -> Recurrence | None:
        """The first of its groups that names a framework of `software`; None where none does."""
        return next((group for group in self.groups if not set(group.frameworks).isdisjoint(software)), None)


@dataclass(frozen=True)
class Decided:
    """A person's decision: the finding named so, which has the signature, is the problem."""

    signature: str
    slug: str
    finding: str


def name_software(framework: str) -> tuple[str, ...]:
    """The catalogue's names of a framework and of what it is built on; none where it is not known.

    >>> name_software("trl"), name_software("megatron_core"), name_software("verl"), name_software("")
    (('trl', 'transformers', 'accelerate'), ('megatron-core',), ('verl',), ())
    """
    if not framework:
        return ()
    return STACKS.get(framework.replace("-", "_"), (framework.replace("_", "-"),))


def describe_finding(
    document: Mapping[str, Any],
    *,
    framework: str = "",
    packages: Mapping[str, str] | None = None,
    model_class: str = "",
    others: Sequence[Mapping[str, Any]] = (),
    used: Sequence[str] = (),
) -> Described:
    """A failing verdict's document (docs/json.md) as a finding; `others`: the validation's other failing verdicts."""
    return Described(
        signature=read_signature(document),
        sentence=str(document.get("sentence") or ""),
        pattern=str(document.get("pattern") or ""),
        first_wrong=str(document.get("first_wrong") or ""),
        framework=framework,
        packages=dict(packages or {}),
        model_class=model_class,
        also=tuple(
            Other(str(other["check"]), str(other.get("sentence") or ""))
            for other in others
            if other["check"] != document["check"]
        ),
        used=tuple(used),
    )


def list_candidates(problems: Sequence[Problem], recurrences: Sequence[Recurrence] = ()) -> tuple[Candidate, ...]:
    """The problems with the groups that they belong to."""
    groups: dict[str, list[Recurrence]] = {}
    for group in recurrences:
        for slug in group.slugs:
            groups.setdefault(slug, []).append(group)
    return tuple(Candidate(problem, tuple(groups.get(problem.slug, ()))) for problem in problems)


def list_used(settings: RunSpec | Mapping[str, Any]) -> tuple[str, ...]:
    """The features that a run used, as `Described.used` names them; `settings`: a run spec, or its fields by name.

    >>> list_used({"objective": "dpo", "packing": False, "lora": True, "dp_size": 2, "sharding": "ddp"})
    ('dpo', 'lora', 'data parallel', 'ddp')
    """
    fields: Mapping[str, Any] = vars(settings) if isinstance(settings, RunSpec) else settings
    objective, sharding = str(fields.get("objective") or ""), str(fields.get("sharding") or "")
    found = [
        *([objective] if objective not in ("", "sft") else []),
        *(name for name in SWITCHES if fields.get(name)),
        *(words for name, words in DEGREES.items() if int(fields.get(name) or 1) > 1),
        *([sharding] if sharding not in ("", "none") else []),
        *(["resume"] if fields.get("resume_after") is not None else []),
    ]
    return tuple(dict.fromkeys(found))
