"""The catalogue of problems: loaded, kept, narrowed, shown, exported."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from checks.catalogue.problem import PROBLEMS, RECURRENCES
from checks.errors import BadRequest
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.tokens import create_token
from plumbline_web.problems.catalogue import load_catalogue, write_problems, write_recurrences
from plumbline_web.problems.filters import ProblemFilter
from plumbline_web.problems.models import Problem, Recurrence
from plumbline_web.timeline.models import Event, Subject
from tests.web.factories import make_user
from tests.web.pages import MOST_QUERIES, sign_in, text_of

COUNT = 415


@pytest.fixture(scope="module", autouse=True)
def _catalogue(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Loaded once for the file; each test's own changes are rolled back."""
    with django_db_blocker.unblock():
        load_catalogue()
    yield
    with django_db_blocker.unblock():
        Recurrence.objects.all().delete()
        Problem.objects.all().delete()


pytestmark = pytest.mark.django_db


def narrowed(**facets: str) -> set[str]:
    found = ProblemFilter(facets, queryset=Problem.objects.all())
    assert found.is_valid(), found.errors
    return {problem.slug for problem in found.qs}


def test_the_catalogue_that_ships_is_loaded_and_loading_it_again_changes_nothing() -> None:
    assert Problem.objects.count() == COUNT
    assert Recurrence.objects.count() == 30
    before = list(Problem.objects.values_list("pk", "updated_at"))
    loaded = load_catalogue()
    assert (loaded.created, loaded.updated, loaded.unchanged, loaded.kept) == (0, 0, COUNT, ())
    assert list(Problem.objects.values_list("pk", "updated_at")) == before
    assert not Event.objects.filter(subject=Subject.PROBLEM).exists()


def test_what_is_exported_is_what_was_loaded() -> None:
    assert sorted(write_problems()) == sorted(PROBLEMS.read_text().splitlines(keepends=True))
    given = {group["name"]: group for group in map(json.loads, RECURRENCES.read_text().splitlines())}
    for group in map(json.loads, write_recurrences()):
        assert set(group["slugs"]) == set(given[group["name"]]["slugs"])
        assert group["frameworks"] == given[group["name"]]["frameworks"]


def edit(tmp_path: Path, edited: str, /, **changes: object) -> Path:
    """The catalogue with one problem changed."""
    lines = [json.loads(line) for line in PROBLEMS.read_text().splitlines()]
    for line in lines:
        if line["slug"] == edited:
            line |= changes
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_a_newer_catalogue_is_followed_but_where_a_person_changed_a_field(tmp_path: Path) -> None:
    problem = Problem.objects.get(slug="hf-ga-mean-of-means")
    problem.title = "A better title"
    problem.save()
    newer = edit(tmp_path, "hf-ga-mean-of-means", title="Another title", fixed_in="PR #1, first tag v9")
    loaded = load_catalogue(newer)
    assert (loaded.created, loaded.updated, loaded.kept) == (0, 1, ("hf-ga-mean-of-means: title",))
    problem.refresh_from_db()
    assert (problem.title, problem.fixed_in, problem.version) == ("A better title", "PR #1, first tag v9", 2)
    event = Event.objects.get(subject=Subject.PROBLEM, subject_id=problem.pk)
    assert event.text == "followed the catalogue: fixed_in"
    again = load_catalogue(newer)
    assert (again.updated, again.kept) == (0, ())
    assert "Changed here, and kept when the catalogue is loaded again: title" in text_of(
        sign_in().get(f"/problems/P-{problem.pk}/")
    )


def test_a_problem_that_was_entered_here_first_stays_as_it_was_entered(tmp_path: Path) -> None:
    Problem.objects.filter(slug="hf-ga-mean-of-means").update(shipped=None, title="Ours")
    assert load_catalogue().kept == ("hf-ga-mean-of-means: title",)
    assert Problem.objects.get(slug="hf-ga-mean-of-means").title == "Ours"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"slug": "No Slug"}, r"problems.jsonl, line \d+, slug: 'No Slug' is no slug; write small letters"),
        ({"slug": "hf-gemma3-ga-loss"}, r"slug: 'hf-gemma3-ga-loss' stands in an earlier line too"),
        ({"pattern": "odd"}, r"problems.jsonl, line \d+, pattern: 'odd' is none of its values"),
    ],
)
def test_a_line_that_is_wrong_is_named_and_nothing_is_loaded(
    tmp_path: Path, changes: dict[str, str], told: str
) -> None:
    Problem.objects.filter(slug="trl-dpo-ga-scale").delete()
    with pytest.raises(BadRequest, match=told):
        load_catalogue(edit(tmp_path, "hf-ga-mean-of-means", **changes))
    assert Problem.objects.count() == COUNT - 1


def test_facets_narrow_and_combine() -> None:
    everything = [json.loads(line) for line in PROBLEMS.read_text().splitlines()]

    def expected(**values: object) -> set[str]:
        return {each["slug"] for each in everything if all(each[name] == value for name, value in values.items())}

    assert narrowed(framework="trl") == expected(framework="trl")
    assert narrowed(framework="trl", silent="yes", pattern="loss-mask") == expected(
        framework="trl", silent=True, pattern="loss-mask"
    )
    assert narrowed(status="open", stage="optimizer") == expected(status="open", stage="optimizer")
    assert narrowed(caught_by="resume") == {each["slug"] for each in everything if "resume" in each["caught_by"]}
    alone = {slug for group in RECURRENCES.read_text().splitlines() for slug in json.loads(group)["slugs"]}
    assert narrowed(recurs="yes") == alone
    assert narrowed(recurs="no") == {each["slug"] for each in everything} - alone
    assert narrowed(provenance="found") == set()


def test_a_release_finds_what_is_known_to_be_in_it() -> None:
    assert "accelerate-skip-batches-resets-epoch" in narrowed(affects="accelerate==1.14.0")
    assert "accelerate-skip-batches-resets-epoch" not in narrowed(affects="accelerate==1.15.0")
    assert narrowed(affects="accelerate==1.14.0") < narrowed(affects="accelerate")
    refused = ProblemFilter({"affects": "accelerate==new"}, queryset=Problem.objects.all())
    assert refused.errors["affects"] == [
        "'accelerate==new' is no release; write it as transformers==4.45.2, or a package alone"
    ]


def test_words_are_found_by_their_stems_a_number_and_a_slug_by_themselves() -> None:
    assert "hf-ga-mean-of-means" in narrowed(text="gradient accumulating")
    assert narrowed(text="hf-ga-mean-of-means") == {"hf-ga-mean-of-means"}
    pk = Problem.objects.get(slug="hf-ga-mean-of-means").pk
    assert narrowed(text=f"p-{pk}") == {"hf-ga-mean-of-means"}
    assert narrowed(text='"no such words at all" OR') == set()
    assert narrowed(text="') DROP TABLE problems_problem; --") == set()


def test_a_search_that_is_too_long_or_a_filter_that_is_none_gives_no_row() -> None:
    client = sign_in()
    too_long = client.get("/problems/", {"text": "x" * 10_000})
    assert too_long.status_code == 400
    assert "at most 200 characters" in text_of(too_long)
    misspelt = client.get("/problems/?framwork=trl")
    assert misspelt.status_code == 400
    assert "there is no such filter" in text_of(misspelt)


def test_the_list_the_matrices_and_the_recurrences_are_shown_in_few_queries() -> None:
    client = sign_in(Role.VIEWER)
    for address, words in {
        "/problems/": "1–50 of 415",
        "/problems/?page=9": "401–415 of 415",
        "/problems/matrix/": "Framework × pattern",
        "/problems/matrix/?silent=no": "Stage × pattern",
        "/problems/recurrences/": "Packed samples see each other",
    }.items():
        with CaptureQueriesContext(
            connection,
        ) as queries:
            response = client.get(address)
        assert response.status_code == 200
        assert words in text_of(response)
        assert len(queries) <= MOST_QUERIES, [query["sql"][:80] for query in queries]


def test_a_cell_of_the_matrix_leads_to_the_problems_that_it_counts() -> None:
    client = sign_in()
    page = client.get("/problems/matrix/?silent=yes").content.decode()
    assert "/problems/?silent=yes&amp;framework=trl&amp;pattern=loss-mask" in page
    count = len(narrowed(silent="yes", framework="trl", pattern="loss-mask"))
    assert f'title="{count} problems, {count} silent">{count}</a>' in page


def test_a_problem_is_told_with_its_checks_its_kin_and_its_releases() -> None:
    problem = Problem.objects.get(slug="hf-ga-mean-of-means")
    client = sign_in()
    with CaptureQueriesContext(connection) as queries:
        text = text_of(client.get(f"/problems/P-{problem.pk}/"))
    assert len(queries) <= MOST_QUERIES, [query["sql"][:80] for query in queries]
    for words in (
        problem.symptom,
        problem.root_cause,
        "convergence.curve",
        "Accumulation multiplies or shrinks loss or gradient",
        Problem.objects.get(slug="hf-gemma3-ga-loss").title,
        "loaded with the catalogue",
    ):
        assert words in text
    assert sign_in().get("/problems/P-0/").status_code == 404


def test_exports_and_api_give_the_rows_of_the_page() -> None:
    user = make_user(Role.VIEWER)
    client = sign_in(user)
    _, secret = create_token(user, name="t", scopes=["read"], days=1)
    headers = {"Authorization": f"Bearer {secret}"}
    for query in (
        "",
        "?framework=trl",
        "?text=packing&silent=yes",
        "?pattern=precision&sort=oldest",
        "?component=optimizer",
    ):
        slugs = [problem.slug for problem in ProblemFilter(_read(query), queryset=Problem.objects.all()).qs]
        exported = b"".join(client.get(f"/problems.json{query}").streaming_content)  # type: ignore[attr-defined]
        lines = b"".join(client.get(f"/problems.csv{query}").streaming_content)  # type: ignore[attr-defined]
        assert [each["slug"] for each in json.loads(exported)] == slugs
        assert [each["slug"] for each in csv.DictReader(io.StringIO(lines.decode()))] == slugs
        asked, cursor = [], ""
        while cursor is not None:
            address = f"/api/v1/problems{query or '?sort=newest'}&limit=200&cursor={cursor}"
            page = Client().get(address, headers=headers).json()
            asked += page["rows"]
            cursor = page["next_cursor"]
        assert [each["slug"] for each in asked] == slugs
        assert asked == json.loads(exported)


def _read(query: str) -> dict[str, str]:
    return dict(part.split("=") for part in query[1:].split("&")) if query else {}


def test_the_api_tells_one_problem_by_number_and_by_slug() -> None:
    client = sign_in()
    problem = Problem.objects.get(slug="hf-ga-mean-of-means")
    by_slug = client.get("/api/v1/problems/hf-ga-mean-of-means").json()
    assert by_slug == client.get(f"/api/v1/problems/{problem.number}").json()
    assert by_slug["root_cause"] == problem.root_cause
    assert by_slug["checks"] == ["environment.known_problems", "convergence.curve"]
    assert client.get("/api/v1/problems/nothing").status_code == 404
    forged = client.get("/api/v1/problems?cursor=WyJhIiwiYiJd")
    assert (forged.status_code, set(forged.json()["error"]["fields"])) == (400, {"cursor"})


def test_whoever_is_not_signed_in_sees_no_problem() -> None:
    assert Client().get("/problems/").status_code == 302
    assert Client().get("/problems.json").status_code == 302
    assert Client().get("/api/v1/problems").status_code == 401


def test_facets_are_counted_again_only_when_a_problem_has_changed() -> None:
    client = sign_in()
    client.get("/problems/")
    with CaptureQueriesContext(connection) as queries:
        assert "trl (25)" in client.get("/problems/").content.decode()
    assert not any("GROUPING SETS" in query["sql"] for query in queries)
    problem = Problem.objects.filter(framework="trl")[0]
    problem.framework = "nanotron"
    problem.save()
    page = client.get("/problems/").content.decode()
    assert "trl (24)" in page
    assert "nanotron (" in page


def test_recurrences_come_in_pages_the_largest_first_and_one_by_itself() -> None:
    problems = list(Problem.objects.order_by("pk")[:2])
    for number in range(15):
        Recurrence.objects.create(name=f"another fault {number}").problems.set(problems)
    client = sign_in()
    first, second = (client.get(f"/problems/recurrences/{query}").content.decode() for query in ("", "?page=2"))
    assert first.count('<details class="disclosure"') == 30
    assert second.count('<details class="disclosure"') == 15
    assert "another fault 14" in second
    sizes = [int(size) for size in re.findall(r'<span class="soft">(\d+) problem', first + second)]
    assert sizes == sorted(sizes, reverse=True)
    group = Recurrence.objects.get(name="another fault 3")
    alone = client.get(f"/problems/recurrences/?group={group.pk}").content.decode()
    assert alone.count('<details class="disclosure"') == 1
    assert "another fault 3" in alone
    assert f"/problems/recurrences/?group={group.pk}" in client.get(f"/problems/P-{problems[0].pk}/").content.decode()
