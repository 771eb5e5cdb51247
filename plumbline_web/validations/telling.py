"""What people are told of a validation's end: failures that nothing else shows, and what had passed before."""

from __future__ import annotations

from collections.abc import Sequence

from django.urls import reverse

from plumbline_web.accounts.people import list_triagers
from plumbline_web.notifications.domain import notify
from plumbline_web.notifications.enums import Kind
from plumbline_web.validations.enums import FindingState
from plumbline_web.validations.models import Finding, Validation

MOST_NAMED = 3
"""Checks that a sentence names."""


def tell_findings(validation: Validation) -> None:
    """Tell the owner and the triagers of what needs a person; call it in the transaction that wrote the verdicts.

    One message a validation and kind, however many checks failed. Findings that only repeat one that was decided, and
    those that an earlier judgement had, are told of no more; nor are those of a fault that was injected.
    """
    if validation.inject:
        return
    findings = list(Finding.objects.filter(validation=validation, state=FindingState.OPEN).order_by("pk"))
    regressed = [finding for finding in findings if finding.regressed]
    silent = [finding for finding in findings if finding.silent and not finding.regressed]
    for kind, rows, words in (
        (Kind.REGRESSION, regressed, "had passed before and fails"),
        (Kind.SILENT, silent, "fails, and nothing else shows it"),
    ):
        if rows:
            _tell(validation, kind, rows, words)


def _tell(validation: Validation, kind: Kind, findings: Sequence[Finding], words: str) -> None:
    names = [finding.check_name for finding in findings]
    more = len(names) - MOST_NAMED
    named = ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    if len(names) > 1:
        words = words.replace("fails", "fail").replace("shows it", "shows them")
    notify(
        kind,
        about=validation,
        text=f"{named}: {words} ({validation.framework.name} × {validation.model})",
        address=reverse("validation-detail", args=[validation.pk]),
        to=(validation.owner, *list_triagers()),
        key=f"{validation.number} {findings[-1].pk}",
    )
