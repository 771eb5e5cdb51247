"""From a failing verdict to the finding that a person decides about."""

from __future__ import annotations

from django.db.models import Case, Q, QuerySet, When

from checks.matching.signature import read_signature
from plumbline_web.validations.enums import FindingState, Status
from plumbline_web.validations.models import CheckResult, Finding

PENDING = (FindingState.OPEN, FindingState.WAITING)

SETTLED = (FindingState.DECIDED, FindingState.REPEATED)


def open_finding(result: CheckResult, *, silent: bool) -> Finding:
    """Write the finding of a failing verdict: whether it had passed before, and whether it only repeats another."""
    signature = read_signature(result.document).key
    before = list_before(result).first()
    decided = _find_decided(result, signature)
    return Finding.objects.create(
        validation=result.validation,
        result=result,
        check_name=result.check_name,
        pattern=result.pattern,
        silent=silent,
        signature=signature,
        group=_find_group(result, signature),
        regressed=before is not None and before.status == Status.PASS,
        repeats=decided,
        state=FindingState.OPEN if decided is None else FindingState.REPEATED,
    )


def _find_group(result: CheckResult, signature: str) -> str:
    """That of the last finding with the signature, of one on the same framework and model before all others: where
    people split or joined groups, what comes later follows."""
    is_same = Q(validation__framework=result.framework_id, validation__model=result.model_id)
    alike = Finding.objects.filter(signature=signature).alias(is_same=Case(When(is_same, then=1), default=0))
    group = alike.order_by("-is_same", "-pk").values_list("group", flat=True).first()
    return group or signature


def withdraw_finding(result: CheckResult) -> None:
    """A later judgement replaced the verdict: nobody needs to decide about it any more."""
    Finding.objects.filter(result=result, state__in=PENDING).update(state=FindingState.GONE)


def list_before(result: CheckResult) -> QuerySet[CheckResult]:
    """Earlier conclusive verdicts of the same check on the same wish, in whatever environment; the newest first."""
    validation = result.validation
    return CheckResult.objects.filter(
        check_name=result.check_name,
        framework=result.framework_id,
        model=result.model_id,
        validation__lt=result.validation_id,
        status__in=(Status.PASS, Status.FAIL),
        superseded_at__isnull=True,
        validation__data=validation.data,
        validation__settings=validation.settings,
        validation__inject=validation.inject,
    ).order_by("-validation")


def _find_decided(result: CheckResult, signature: str) -> Finding | None:
    """The finding that a person decided about, where the last run in this environment failed in just that way.

    Another release of the framework, another wish and a failure after a pass are asked about again: a silent failure
    is never confirmed without a person.
    """
    before = list_before(result).filter(environment=result.environment_id).first()
    if before is None or before.status != Status.FAIL:
        return None
    finding = Finding.objects.filter(result=before, signature=signature, state__in=SETTLED).first()
    return finding and (finding.repeats or finding)
