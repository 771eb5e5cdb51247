"""Made-up validations: consistent with each other, and with what a judge would have written."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command
from django.db.models import Count, F, Q

from checks.registry import DEFAULT_CHECKS
from plumbline_web.cli import main
from plumbline_web.problems.models import Problem, Recurrence
from plumbline_web.problems.seed import WORDS, make_word, seed_problems
from plumbline_web.seeding import scale
from plumbline_web.triage.models import Occurrence
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


def test_made_up_problems_are_of_the_catalogues_kinds_and_no_two_have_one_text() -> None:
    made = seed_problems(300)
    assert (made.problems, made.groups) == (300, 300 * 30 // 415)
    rows = list(Problem.objects.values_list("slug", "title", "symptom", "framework", "pattern", "provenance"))
    assert len({slug for slug, *_ in rows}) == len({title for _, title, *_ in rows}) == 300
    assert len({framework for *_, framework, _, _ in rows}) > 15
    assert {provenance for *_, provenance in rows} == {"imported", "reproduced", "found", "first-raised"}
    assert Recurrence.objects.annotate(size=Count("problems")).filter(size__lt=2).count() == 0
    with_range = Problem.objects.exclude(affected_spec=[])
    assert 60 < with_range.count() < 180
    assert seed_problems(5).problems == 5  # beside the first ones
    assert Problem.objects.count() == 305


def test_made_up_words_are_all_different_and_are_found_whole() -> None:
    words = [make_word(number) for number in range(WORDS)]
    assert len(set(words)) == WORDS
    seed_problems(20)
    first = Problem.objects.order_by("pk")[0]
    word = first.title.split()[-1]
    assert Problem.objects.filter(search=word).contains(first)


def test_a_scale_makes_problems_validations_and_what_people_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "PROBLEMS", 20)
    monkeypatch.setattr(scale, "VALIDATIONS", 400)
    made = scale.seed_scale(2)
    assert (made.problems.problems, made.validations.validations) == (40, 800)
    assert made.occurrences == Occurrence.objects.count() > 0
    for occurrence in Occurrence.objects.select_related("finding", "problem", "action"):
        assert (occurrence.finding.state, occurrence.finding.decision) == ("decided", "known")
        assert occurrence.problem.slug.startswith("made-up-")
        assert occurrence.action.actor_id == occurrence.finding.decided_by_id


def test_the_command_says_what_it_made_and_refuses_what_it_cannot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scale, "PROBLEMS", 10)
    monkeypatch.setattr(scale, "VALIDATIONS", 30)
    assert main(["seed", "--scale", "1"]) == 0
    assert capsys.readouterr().out.startswith("10 problems in 0 groups, 30 validations, ")
    assert main(["seed"]) == 3
    assert "the database holds validations" in capsys.readouterr().err
    assert main(["seed", "--scale", "0"]) == 3
    assert "0 is out of bounds; give 1 to 1,000" in capsys.readouterr().err
