"""Which framework runs a validation takes: equal needs of its checks are merged into one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checks.check import Check
from checks.objectives import why_not_objective
from checks.parallel.scope import why_not_over_ranks, why_not_resumed
from checks.roles import Role, spec_of
from checks.spec import RunSpec
from workers.frameworks.command.stated import REPEATED, is_commanded, why_not_stated
from workers.tracing import choose_modules


@dataclass(frozen=True)
class PlannedRun:
    """One framework run, the role it plays, and the checks that read it."""

    role: Role
    spec: RunSpec
    checks: tuple[str, ...]

    @property
    def captured_steps(self) -> tuple[int, ...]:
        """The first step, and the last: the update is judged at both."""
        if self.spec.resume_after is not None:
            return (self.spec.steps - self.spec.resume_after,)  # the new process counts its own
        return (1,) if self.spec.steps == 1 else (1, self.spec.steps)

    @property
    def modules(self) -> str | None:
        """Regular expression of the modules whose inputs and outputs are recorded; None for none."""
        if self.role is not Role.TRACED:
            return None
        return choose_modules(self.spec.model, tokens=self.spec.batch * self.spec.accumulation * self.spec.seq_len)

    @property
    def memory(self) -> bool:
        """Whether the bytes that are alive are counted, and nothing else recorded."""
        return self.role is Role.MEASURED


@dataclass(frozen=True)
class Plan:
    """The runs in order, the checks that will be judged, and those that have nothing to say on this run, with the
    reason.
    """

    runs: tuple[PlannedRun, ...]
    judged: tuple[Check, ...]
    skipped: tuple[tuple[Check, str], ...]

    @property
    def needs_reference(self) -> bool:
        return any(check.reference for check in self.judged)

    def needs(self, name: str) -> bool:
        return any(check.name == name for check in self.judged)


def make_plan(spec: RunSpec, checks: Sequence[Check], *, pushed: bool = False) -> Plan:
    """Sort checks into judged and skipped, and merge what the judged ones need.

    `pushed`: the asked run was made elsewhere, and no other can be made; a command is run as it is given too.
    """
    skipped, judged = [], []
    commanded = is_commanded(spec)
    for check in checks:
        reason = (
            check.applies(spec)
            or why_not_stated(check, spec)
            or why_not_objective(check.name, spec)
            or why_not_over_ranks(check.name, spec, alone=pushed or commanded)
            or why_not_resumed(check.roles, spec)
        )
        if reason is None:
            judged.append(check)
        else:
            skipped.append((check, reason))
    runs: dict[Role, PlannedRun] = {}
    for role in Role:
        # Whatever else a check needs, it is the asked run that it judges.
        readers = tuple(check.name for check in judged if role is Role.RUN or role in check.roles)
        if readers and (not commanded or role in REPEATED):
            runs[role] = PlannedRun(role, spec_of(role, spec), readers)
    return Plan(tuple(runs.values()), tuple(judged), tuple(skipped))
