"""The OpenAPI document in docs/ is what the API answers to, and the reference page draws it without foreign code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from django.test import Client

from plumbline_web.accounts.models import User
from plumbline_web.api.application import api

FILE = Path(__file__).parents[2] / "docs" / "openapi.json"


def test_the_document_in_docs_is_that_of_the_code() -> None:
    current = json.loads(json.dumps(api.get_openapi_schema()))
    command = "python manage.py export_openapi_schema --api plumbline_web.api.application.api --indent 2 --sorted"
    assert json.loads(FILE.read_text()) == current, f"run: {command} > docs/openapi.json"


def test_every_route_says_how_it_refuses() -> None:
    for address, methods in api.get_openapi_schema()["paths"].items():
        for method, details in methods.items():
            schema = {"schema": {"$ref": "#/components/schemas/Error"}}
            answers = {str(status): answer for status, answer in details["responses"].items()}
            assert answers["401"]["content"]["application/json"] == schema, f"{method} {address}"
            assert details["security"], f"{method} {address}"
            assert details["description"], f"{method} {address}"


@pytest.mark.django_db
def test_the_reference_page_names_every_route_and_runs_nothing(client: Client) -> None:
    client.force_login(User.objects.create(username="vera"))
    page = client.get("/api/docs").content.decode()
    schema = api.get_openapi_schema()
    for address, methods in schema["paths"].items():
        for method in methods:
            assert f"<strong>{method.upper()}</strong> {address}" in page
    for name in schema["components"]["schemas"]:
        assert f'id="document-{name}"' in page
    assert not re.findall(r"<script(?![^>]*\bsrc=\"/)", page)
    assert not re.findall(r"\sstyle=|\son\w+=|https?://(?!testserver)", page)


@pytest.mark.django_db
def test_the_document_is_served(client: Client) -> None:
    client.force_login(User.objects.create(username="vera"))
    served = client.get("/api/v1/openapi.json").json()
    assert served == json.loads(FILE.read_text())
