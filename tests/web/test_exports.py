"""CSV and JSON of the filtered list."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from django.test import Client

from plumbline_web.tables.exports import CHUNK_ROWS
from plumbline_web.validations.models import Validation
from plumbline_web.validations.presentation import COLUMNS
from plumbline_web.validations.seed import seed
from tests.web import factories
from tests.web.pages import sign_in

pytestmark = pytest.mark.django_db


def fetch(client: Client, address: str) -> str:
    response: Any = client.get(address)
    assert response.status_code == 200
    return b"".join(response.streaming_content).decode()


def test_csv_has_a_header_and_a_line_a_validation() -> None:
    owner = factories.make_user(username="petra")
    validation = factories.make_validation(owner=owner)
    header, line = csv.reader(io.StringIO(fetch(sign_in(), "/validations.csv")))
    assert tuple(header) == COLUMNS
    row = dict(zip(header, line, strict=True))
    assert row["id"] == f"V-{validation.pk}"
    assert (row["verdict"], row["passed"], row["failed"], row["skipped"]) == ("fail", "5", "3", "1")
    assert (row["framework"], row["framework_version"], row["model"]) == ("transformers", "5.24.0", "tiny:qwen3")
    assert (row["owner"], row["profile"], row["duration_s"]) == ("petra", "", "44.0")
    assert row["created_at"] == validation.created_at.isoformat()


def test_json_has_the_same_fields_typed() -> None:
    validation = factories.make_validation(profile=factories.make_profile())
    (row,) = json.loads(fetch(sign_in(), "/validations.json"))
    assert tuple(row) == COLUMNS
    assert (row["number"], row["failed"], row["duration_s"]) == (validation.pk, 3, 44.0)
    assert row["profile"] == "nightly v1"


def test_an_empty_set_is_an_empty_array_and_a_header() -> None:
    client = sign_in()
    assert json.loads(fetch(client, "/validations.json")) == []
    assert fetch(client, "/validations.csv").splitlines() == [",".join(COLUMNS)]


def test_a_text_that_a_spreadsheet_would_run_is_defused() -> None:
    factories.make_validation(data='=HYPERLINK("http://example.org")')
    assert """'=HYPERLINK(""http://example.org"")""" in fetch(sign_in(), "/validations.csv")


def test_every_row_is_exported_however_many() -> None:
    seed(CHUNK_ROWS + 1)
    assert len(json.loads(fetch(sign_in(), "/validations.json"))) == Validation.objects.count() == CHUNK_ROWS + 1


def test_a_wrong_filter_is_refused_and_another_format_not_found() -> None:
    client = sign_in()
    response = client.get("/validations.csv?verdict=perhaps")
    assert response.status_code == 400
    assert response.content.decode().startswith("verdict: ")
    assert client.get("/validations.xml").status_code == 404
