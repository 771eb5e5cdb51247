"""A filter gives the same rows in the same order on the page, through the API, and in every file."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.test import Client

from plumbline_web.accounts.enums import Scope
from plumbline_web.accounts.tokens import create_token
from plumbline_web.problems.catalogue import load_catalogue
from plumbline_web.problems.models import Problem, Recurrence
from plumbline_web.problems.presentation import COLUMNS
from plumbline_web.tables import parquet
from plumbline_web.validations.models import Validation
from plumbline_web.validations.presentation import COLUMNS as VALIDATION_COLUMNS
from plumbline_web.validations.seed import seed
from tests.web.factories import make_user
from tests.web.pages import sign_in

pytestmark = pytest.mark.django_db

PROBLEM_FILTERS = {
    "": 415,
    "sort=oldest": 415,
    "sort=number&silent=yes": 325,
    "framework=trl": 25,
    "framework=trl&pattern=loss-mask&silent=yes": 7,
    "status=open&stage=loss": 3,
    "text=gradient accumulation&sort=oldest": 27,
    "caught_by=resume&silent=no": 2,
    "affects=transformers==4.45.2": 6,
    "recurs=yes&sort=number": 259,
    "model=Qwen3&recurs=no": 1,
    "pattern=precision&provenance=found": 0,
}
"""Query → how many of the shipped problems it finds."""

VALIDATION_FILTERS = ("", "verdict=fail&sort=worst", "framework=trl&sort=slowest", "check=step.loss&status=fail")


@pytest.fixture(scope="module")
def _problems(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Loaded once for the file; no test of it changes them."""
    with django_db_blocker.unblock():
        load_catalogue()
    yield
    with django_db_blocker.unblock():
        Recurrence.objects.all().delete()
        Problem.objects.all().delete()


@pytest.fixture
def readers(_problems: None) -> tuple[Client, Client]:
    """A browser, and a client of the API."""
    person = make_user()
    api = Client(headers={"Authorization": f"Bearer {create_token(person, name='t', scopes=[Scope.READ], days=1)[1]}"})
    return sign_in(person), api


def read_pages(browser: Client, address: str) -> list[str]:
    """Numbers of all rows, over all pages."""
    found: list[str] = []
    next_address: str | None = address
    while next_address:
        response = browser.get(next_address, follow=True)
        assert response.status_code == 200
        html = response.content.decode()
        found += re.findall(r'<th scope="row".*?<a class="mono"[^>]*>([A-Z]-\d+)</a>', html, re.DOTALL)
        link = re.search(r'rel="next" href="([^"]+)"', html)
        next_address = f"{address.partition('?')[0]}{link[1].replace('&amp;', '&')}" if link else None
    return found


def read_api(api: Client, address: str) -> list[dict[str, Any]]:
    """All rows, over all cursors."""
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = api.get(f"{address}&limit=40&cursor={cursor}").json()
        found += answer["rows"]
        cursor = answer["next_cursor"]
    return found


def read_file(browser: Client, address: str) -> bytes:
    response: Any = browser.get(address)
    assert response.status_code == 200
    return b"".join(response.streaming_content)


def read_parquet(browser: Client, address: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(read_file(browser, address))).to_pylist()
    return rows


def as_cell(value: Any) -> str:
    """A value of the API as the CSV has it."""
    if isinstance(value, list):
        value = "; ".join(value)
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value
    return "" if value is None else str(value)


@pytest.mark.parametrize(("query", "count"), PROBLEM_FILTERS.items())
def test_problems_are_the_same_everywhere(readers: tuple[Client, Client], query: str, count: int) -> None:
    browser, api = readers
    rows = read_api(api, f"/api/v1/problems?{query}")
    assert len(rows) == count
    assert read_pages(browser, f"/problems/?{query}") == [row["id"] for row in rows]
    assert json.loads(read_file(browser, f"/problems.json?{query}")) == rows
    assert read_parquet(browser, f"/problems.parquet?{query}") == rows
    header, *lines = csv.reader(io.StringIO(read_file(browser, f"/problems.csv?{query}").decode(), newline=""))
    assert tuple(header) == COLUMNS
    assert lines == [[as_cell(row[name]) for name in COLUMNS] for row in rows]


@pytest.mark.parametrize("query", VALIDATION_FILTERS)
def test_validations_are_the_same_everywhere(readers: tuple[Client, Client], query: str) -> None:
    seed(130)
    browser, api = readers
    rows = read_api(api, f"/api/v1/validations?{query}")
    ids = [row["id"] for row in rows]
    assert ids
    assert len(set(ids)) == len(ids)
    assert read_pages(browser, f"/validations/?{query}") == ids
    exported = json.loads(read_file(browser, f"/validations.json?{query}"))
    assert [row["id"] for row in exported] == ids
    lines = csv.DictReader(io.StringIO(read_file(browser, f"/validations.csv?{query}").decode(), newline=""))
    assert [line["id"] for line in lines] == ids
    typed = read_parquet(browser, f"/validations.parquet?{query}")
    assert [{name: as_json(value) for name, value in row.items()} for row in typed] == exported


def as_json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def test_a_parquet_file_has_typed_columns_and_comes_in_row_groups(
    readers: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(130)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 50)
    response: Any = readers[0].get("/validations.parquet")
    assert response["Content-Type"] == "application/vnd.apache.parquet"
    assert response["Content-Disposition"] == 'attachment; filename="validations.parquet"'
    parts = list(response.streaming_content)
    assert len(parts) == 4  # 50, 50 and 30 rows, and the footer
    file = pq.ParquetFile(pa.BufferReader(b"".join(parts)))
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [50, 50, 30]
    assert tuple(file.schema_arrow.names) == VALIDATION_COLUMNS
    assert file.schema_arrow.field("created_at").type == pa.timestamp("us", tz="UTC")
    assert file.schema_arrow.field("failed").type == pa.int64()
    assert file.schema_arrow.field("duration_s").type == pa.float64()
    assert not file.schema_arrow.field("owner").nullable
    assert file.schema_arrow.field("profile").nullable
    first = file.read().to_pylist()[0]
    assert isinstance(first["created_at"], datetime)
    assert first["created_at"].astimezone(UTC) == Validation.objects.order_by("-created_at", "-pk")[0].created_at


def test_a_parquet_file_of_nothing_has_its_columns(readers: tuple[Client, Client]) -> None:
    table = pq.read_table(
        pa.BufferReader(read_file(readers[0], "/problems.parquet?pattern=precision&provenance=found"))
    )
    assert (table.num_rows, tuple(table.column_names)) == (0, COLUMNS)
    assert table.schema.field("models").type == pa.list_(pa.string())
    assert table.schema.field("silent").type == pa.bool_()


def test_a_search_of_ten_thousand_characters_is_refused_with_a_sentence(readers: tuple[Client, Client]) -> None:
    browser, api = readers
    query = f"text={'a' * 10_000}"
    told = "Ensure this value has at most 200 characters (it has 10000)."
    page = browser.get(f"/problems/?{query}")
    assert page.status_code == 400
    assert told in page.content.decode()
    file = browser.get(f"/problems.parquet?{query}")
    assert (file.status_code, file.content.decode()) == (400, f"text: {told}\n")
    answer = api.get(f"/api/v1/problems?{query}")
    assert answer.status_code == 400
    assert told in answer.content.decode()
