"""Who may do what to a report."""

from __future__ import annotations

from hashlib import sha256

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.reports.models import Report
from plumbline_web.validations.domain import Refused


def check_role(person: User, role: Role, what: str) -> None:
    if not person.has_role(role):
        raise Refused("forbidden", f"{what} needs the role {role.value}, and you are {person.role}")


def may_run(report: Report, person: User) -> bool:
    """A script as Plumbline wrote it, or as an administrator had it run: triagers. Any other: administrators."""
    if person.has_role(Role.ADMINISTRATOR):
        return True
    return person.has_role(Role.TRIAGER) and (report.is_generated or was_approved(report))


def was_approved(report: Report) -> bool:
    """Whether an administrator asked for a run of the script as it stands."""
    return report.runs.filter(digest=digest_of(report.script), approved=True).exists()


def digest_of(script: str) -> str:
    return sha256(script.encode()).hexdigest()
