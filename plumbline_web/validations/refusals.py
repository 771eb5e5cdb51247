"""Keeping what a framework cannot do, for the overview's matrix to say so where nothing was validated."""

from __future__ import annotations

from plumbline_web.catalog.installed import get_framework
from plumbline_web.validations.models import Refusal
from plumbline_web.validations.planning import Resolved, resolve
from plumbline_web.validations.submission import InvalidSubmission, Submission
from workers.frameworks.registry import names
from workers.report.as_json import to_plain


def resolve_or_keep(submission: Submission) -> Resolved:
    """As `resolve`, and remember, once for a wish, why it was refused; what is accepted is refused no more.

    Raises:
        InvalidSubmission: as `resolve`; of a framework that is not known here nothing is kept.
    """
    wish = {"model": submission.model, "settings": to_plain(submission.settings)}
    try:
        resolved = resolve(submission)
    except InvalidSubmission as refused:
        if submission.framework in names():
            framework = get_framework(submission.framework)
            Refusal.objects.update_or_create(framework=framework, **wish, defaults={"sentence": str(refused)})
        raise
    Refusal.objects.filter(framework__name=submission.framework, **wish).delete()
    return resolved
