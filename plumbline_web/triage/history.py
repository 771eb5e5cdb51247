"""What a check said of one wish before: since when it fails, how often, and when it was last otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from plumbline_web.validations.enums import Status
from plumbline_web.validations.findings import list_before
from plumbline_web.validations.models import CheckResult, Finding

MOST_LOOKED_AT = 200


@dataclass(frozen=True)
class History:
    """Failures without a pass in between, up to a finding.

    `since`: the first of them; `count`: with this one; `is_bound`: there are more than were looked at;
    `last_different`: the verdict before them, None where there is none; `environments`: versions that failed.
    """

    since: CheckResult
    count: int
    is_bound: bool
    last_different: CheckResult | None
    environments: tuple[str, ...]


def read_history(finding: Finding) -> History:
    """One query, of the newest verdicts."""
    rows = list(list_before(finding.result).select_related("environment__framework").defer("document")[:MOST_LOOKED_AT])
    failures = [finding.result]
    different = None
    for row in rows:
        if row.status != Status.FAIL:
            different = row
            break
        failures.append(row)
    return History(
        since=failures[-1],
        count=len(failures),
        is_bound=different is None and len(rows) == MOST_LOOKED_AT,
        last_different=different,
        environments=tuple(dict.fromkeys(str(each.environment) for each in failures)),
    )
