"""Made-up validations: consistent with each other, and with what a judge would have written."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command
from django.db.models import Count, F, Q

from checks.registry import DEFAULT_CHECKS
from plumbline_web.validations.enums import Status
from plumbline_web.validations.models import Cell, CheckResult, Finding, Validation
from plumbline_web.validations.seed import OPEN_COUNT, seed
from tests.web.pages import sign_in

pytestmark = pytest.mark.django_db


def test_rows_agree_with_each_other() -> None:
    seeded = seed(2_000)
    done = Validation.objects.filter(state="done")
    assert seeded.validations == Validation.objects.count() == 2_000
    assert seeded.results == CheckResult.objects.count() == done.count() * len(DEFAULT_CHECKS)
    assert seeded.findings == Finding.objects.count() == CheckResult.objects.filter(status=Status.FAIL).count()
    assert seeded.cells == Cell.objects.count()
    counted = done.annotate(
        fails=Count("results", filter=Q(results__status="fail")),
        passes=Count("results", filter=Q(results__status="pass")),
    )
    assert not counted.exclude(fails=F("failed"), passes=F("passed")).exists()
    assert not done.filter(verdict="fail", failed=0).exists()
    assert Validation.objects.filter(state__in=["queued", "running"]).count() == OPEN_COUNT


def test_cells_name_their_latest_good_and_bad() -> None:
    seed(500)
    for cell in Cell.objects.select_related("latest", "conclusive", "last_good", "first_bad"):
        assert cell.conclusive is None or cell.conclusive.pk <= cell.latest.pk
        assert cell.last_good is None or cell.last_good.verdict == "pass"
        if cell.first_bad is not None:
            assert cell.first_bad.verdict == "fail"
            assert cell.last_good is None or cell.last_good.pk < cell.first_bad.pk
        if cell.conclusive is not None:
            assert (cell.conclusive.verdict == "fail") == (cell.first_bad is not None)


def test_the_pages_of_a_made_up_validation_open() -> None:
    seed(40)
    client = sign_in()
    number = Validation.objects.filter(state="done").values_list("pk", flat=True)[0]
    for address in ("", "checks/step.gradients/", "result.json"):
        assert client.get(f"/validations/V-{number}/{address}").status_code == 200


def test_the_command_refuses_a_database_that_holds_validations() -> None:
    call_command("seed", validations=3)
    with pytest.raises(CommandError, match="the database holds validations"):
        call_command("seed", validations=3)
    call_command("seed", validations=2, beside=True)
    assert Validation.objects.count() == 5
