"""The JSON object that a request carries, read without trusting it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from django.http import HttpRequest
from ninja import Schema

from plumbline_web.api.errors import ApiError, invalid
from plumbline_web.validations.submission import explain_text

LARGEST_KEY = 100
"""Characters of an idempotency key."""


def read_object(request: HttpRequest, *, known: tuple[str, ...] | None = None) -> dict[str, object]:
    """The request's body as an object; none is an empty one. `known`: any other field is refused by name.

    Raises:
        ApiError: 400, it is not a JSON object; Django raises RequestDataTooBig, 413, before more than 2.5 MB are read.
    """
    raw = request.body
    if not raw:
        return {}
    try:
        value: object = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        found = "is nested too deeply" if isinstance(error, RecursionError) else f"is no JSON ({error})"
        raise ApiError(400, f"The body {found}; send one JSON object.") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"The body is a JSON {type(value).__name__}; send one JSON object.")
    unknown = [name for name in value if known is not None and name not in known]
    if unknown:
        names = ", ".join(known or ())
        raise invalid({name[:60]: f"there is no such field; the fields are {names}" for name in unknown[:20]})
    return value


def read_key(request: HttpRequest, values: dict[str, object]) -> str:
    """The idempotency key, of the header or else the field, which is taken out of `values`."""
    given = values.pop("idempotency_key", None)
    key = request.headers.get("Idempotency-Key", given)
    if key is None:
        return ""
    if not isinstance(key, str) or not 0 < len(key) <= LARGEST_KEY or not key.isprintable():
        raise invalid({"idempotency_key": f"is not a text of 1 to {LARGEST_KEY} characters; a UUID is a good one"})
    return key


def take_text(values: Mapping[str, object], name: str, errors: dict[str, str], *, longest: int) -> str:
    """A text that must be there; what is wrong goes into `errors`."""
    value = values.get(name)
    if not isinstance(value, str) or not 0 < len(value.strip()) <= longest or explain_text(value):
        errors[name] = f"is not a text of 1 to {longest} characters; give one"
        return ""
    return value.strip()


def take_whole(values: Mapping[str, object], name: str, errors: dict[str, str], *, low: int, high: int) -> int:
    """A whole number within bounds that must be there; what is wrong goes into `errors`."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        errors[name] = f"is not a whole number from {low:,} to {high:,}; give one"
        return low
    return value


def describe_body(schema: type[Schema], *, required: bool = True) -> dict[str, Any]:
    """What `openapi_extra` takes, for a body that `read_object` reads; nested documents are written out in place."""
    document = schema.model_json_schema(ref_template="{model}")
    whole = _inline(document, document.pop("$defs", {}))
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": whole}}}}


def _inline(value: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_inline(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return _inline(definitions[value["$ref"]], definitions)
    return {key: _inline(item, definitions) for key, item in value.items()}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
