"""A finding as lists, exports and the API write it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from plumbline_web.validations.models import Finding


@dataclass(frozen=True)
class FindingRow:
    """The columns of the exports, in their order."""

    id: str
    validation: str
    check: str
    framework: str
    version: str
    model: str
    sentence: str
    pattern: str
    first_wrong: str
    silent: bool
    regressed: bool
    state: str
    decision: str
    reason: str
    decided_by: str
    decided_at: datetime | None
    assignee: str
    due: str
    snoozed_until: str
    group: str
    created_at: datetime


def row(finding: Finding) -> FindingRow:
    """`finding`: `with_names`."""
    validation = finding.validation
    return FindingRow(
        id=finding.number,
        validation=validation.number,
        check=finding.check_name,
        framework=validation.framework.name,
        version=validation.environment.version,
        model=validation.model.name,
        sentence=finding.result.sentence,
        pattern=finding.pattern,
        first_wrong=finding.result.first_wrong,
        silent=finding.silent,
        regressed=finding.regressed,
        state=finding.state,
        decision=finding.decision,
        reason=finding.reason,
        decided_by=finding.decided_by.username if finding.decided_by else "",
        decided_at=finding.decided_at,
        assignee=finding.assignee.username if finding.assignee else "",
        due=finding.due.isoformat() if finding.due else "",
        snoozed_until=finding.snoozed_until.isoformat() if finding.snoozed_until else "",
        group=finding.group,
        created_at=finding.created_at,
    )
