"""Keeping what a framework cannot do, for the overview's matrix to say so where nothing was validated."""

from __future__ import annotations

from plumbline_web.catalog.installed import get_framework
from plumbline_web.validations.models import Refusal
from plumbline_web.validations.submission import InvalidSubmission, Submission
from workers.frameworks.registry import names
from workers.report.as_json import to_plain


def keep_refusal(submission: Submission, refused: InvalidSubmission) -> None:
    """Remember, once for a wish, why it was refused; of no framework that is known here, nothing."""
    if submission.framework not in names():
        return
    Refusal.objects.update_or_create(
        framework=get_framework(submission.framework),
        model=submission.model,
        settings=to_plain(submission.settings),
        defaults={"sentence": str(refused)},
    )


def forget_refusal(submission: Submission) -> None:
    """What is accepted is refused no more."""
    Refusal.objects.filter(
        framework__name=submission.framework, model=submission.model, settings=to_plain(submission.settings)
    ).delete()
