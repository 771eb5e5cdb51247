"""The API's reference as a page of this site, drawn from the OpenAPI document: no script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe


@dataclass(frozen=True)
class Field:
    """One parameter, or one field of a document; `depth` counts the documents around it."""

    name: str
    kind: str
    required: bool
    text: str
    place: str = ""
    depth: int = 0


@dataclass(frozen=True)
class Answer:
    """One status with the name of its document."""

    status: str
    document: str


@dataclass(frozen=True)
class Route:
    """One method of one address."""

    id: str
    method: str
    address: str
    title: str
    text: str
    parameters: tuple[Field, ...]
    body: tuple[Field, ...]
    binary: bool
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Group:
    """Routes of one subject."""

    name: str
    routes: tuple[Route, ...]


@dataclass(frozen=True)
class Document:
    """One named document with its fields."""

    name: str
    text: str
    fields: tuple[Field, ...]


@require_safe
def reference(request: HttpRequest) -> HttpResponse:
    """Every route and document."""
    from plumbline_web.api.application import api  # the routes import this module's neighbours

    schema = api.get_openapi_schema()
    ctx = {
        "description": schema["info"]["description"],
        "groups": _list_groups(schema),
        "documents": _list_documents(schema),
        "openapi_url": reverse("api:openapi-json"),
    }
    return render(request, "api/reference.html", ctx)


def _list_groups(schema: Mapping[str, Any]) -> list[Group]:
    groups: dict[str, list[Route]] = {}
    for address, methods in schema["paths"].items():
        for method, details in methods.items():
            groups.setdefault(details["tags"][0], []).append(_read_route(address, method, details))
    return [Group(name, tuple(routes)) for name, routes in groups.items()]


def _read_route(address: str, method: str, details: Mapping[str, Any]) -> Route:
    content = details.get("requestBody", {}).get("content", {})
    return Route(
        id=details["operationId"],
        method=method.upper(),
        address=address,
        title=details["summary"],
        text=details.get("description", ""),
        parameters=tuple(
            Field(
                each["name"],
                _name_kind(each["schema"]),
                bool(each.get("required")),
                each.get("description", ""),
                each["in"],
            )
            for each in details.get("parameters", ())
        ),
        body=tuple(_list_fields(content.get("application/json", {}).get("schema", {}))),
        binary="application/octet-stream" in content,
        answers=tuple(Answer(str(status), _name_document(each)) for status, each in details["responses"].items()),
    )


def _list_documents(schema: Mapping[str, Any]) -> list[Document]:
    return [
        Document(name, details.get("description", ""), tuple(_list_fields(details)))
        for name, details in sorted(schema["components"]["schemas"].items())
    ]


def _list_fields(schema: Mapping[str, Any], depth: int = 0) -> Iterator[Field]:
    required = schema.get("required", ())
    for name, details in schema.get("properties", {}).items():
        yield Field(name, _name_kind(details), name in required, details.get("description", ""), depth=depth)
        inner = details.get("items", {})
        if "properties" in inner:
            yield from _list_fields(inner, depth + 1)


def _name_document(answer: Mapping[str, Any]) -> str:
    schema = answer.get("content", {}).get("application/json", {}).get("schema")
    return _name_kind(schema) if schema else ""


def _name_kind(schema: Mapping[str, Any]) -> str:
    """A schema in a few words: `string or null`, `list of Result`."""
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[-1])
    if "anyOf" in schema:
        return " or ".join(_name_kind(each) for each in schema["anyOf"])
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_name_kind(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_name_kind(schema['additionalProperties'])}"
    if schema.get("format") == "date-time":
        return "time"
    return str(kind) if kind else "any"
