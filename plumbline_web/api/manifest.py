"""The manifest of an uploaded capture, field by field: what a program of unknown origin wrote.

`checks.captures` reads what the recorder writes and is strict about its files; here every number that goes into the
database, and every container that is walked, is looked at first, so that an error names the manifest's field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from plumbline_web.api.errors import ApiError

KNOWN = ("plumbline-capture", 1)
"""Format and version whose fields these are, as docs/capture-format.md says; any other is refused by the reader."""

LARGEST_COUNT = 2**31 - 1
"""Steps and ranks; the column that takes them has four bytes."""

LARGEST_EXTENT = 2**63 - 1
MOST_ERRORS = 20

MOST_DEPTH = 64
"""Of objects and lists in each other; the recorder writes nine."""

_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)

Errors = dict[str, str]


def refuse_deep(file: Path) -> None:
    """Refuse JSON that nests deeper than any manifest, before a parser builds it.

    Raises:
        ApiError: 400.
    """
    depth = 0
    for token in _BRACKETS.finditer(file.read_bytes()):
        opened = token.group()
        if opened in (b"[", b"{"):
            depth += 1
            if depth > MOST_DEPTH:
                found = f"{file.name} nests deeper than {MOST_DEPTH} levels; record it again"
                raise ApiError(400, f"This is no capture that can be read: {found}.")
        elif opened in (b"]", b"}"):
            depth -= 1


def check_manifest(file: Path) -> None:
    """Refuse a manifest with a field of another kind, or out of bounds. What is no JSON object is left to the reader.

    Raises:
        ApiError: 400, naming the fields as `manifest.json: tensors.0.step`.
    """
    try:
        manifest = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return
    if not isinstance(manifest, dict) or (manifest.get("format"), manifest.get("version")) != KNOWN:
        return
    errors: Errors = {}
    _check_environment(manifest.get("environment"), errors)
    for place, rank in _objects(manifest, "ranks", errors):
        _check_whole(rank, "rank", place, errors)
        for inner, step in _objects(rank, "steps", errors, place=f"{place}."):
            _check_whole(step, "step", inner, errors)
    for place, tensor in _objects(manifest, "tensors", errors):
        _check_tensor(tensor, place, errors)
    for place, entry in _objects(manifest, "files", errors):
        _check_whole(entry, "bytes", place, errors, high=LARGEST_EXTENT)
    if errors:
        fields = {f"{file.name}: {name}": sentence for name, sentence in list(errors.items())[:MOST_ERRORS]}
        name, sentence = next(iter(fields.items()))
        raise ApiError(400, f"This is no capture that can be read: {name} {sentence}.", fields=fields)


def _check_environment(environment: object, errors: Errors) -> None:
    if not environment:
        return
    if not isinstance(environment, dict):
        errors["environment"] = f"is {_describe(environment)}; give an object"
        return
    packages = environment.get("packages", {})
    if not isinstance(packages, dict):
        errors["environment.packages"] = f"is {_describe(packages)}; give an object of name: version"


def _check_tensor(tensor: Mapping[str, object], place: str, errors: Errors) -> None:
    _check_whole(tensor, "step", place, errors)
    _check_whole(tensor, "rank", place, errors)
    if tensor.get("micro_batch") is not None:
        _check_whole(tensor, "micro_batch", place, errors)
    shape = tensor.get("global_shape", [])
    if not isinstance(shape, list) or not all(_is_whole(extent, LARGEST_EXTENT) for extent in shape):
        errors[f"{place}.global_shape"] = f"is {_describe(shape)}; give a list of whole numbers, 0 or more"
    for name in ("representations", "stats"):
        if not isinstance(tensor.get(name, {}), dict):
            errors[f"{place}.{name}"] = f"is {_describe(tensor[name])}; give an object"


def _objects(
    parent: Mapping[str, object], name: str, errors: Errors, *, place: str = ""
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The entries of a list of objects with their places; what is none of it goes into `errors`."""
    entries = parent.get(name)
    if not isinstance(entries, list):
        errors[f"{place}{name}"] = f"is {_describe(entries)}; give a list of objects"
        return
    for number, entry in enumerate(entries):
        if len(errors) >= MOST_ERRORS:
            return
        if isinstance(entry, dict):
            yield f"{place}{name}.{number}", entry
        else:
            errors[f"{place}{name}.{number}"] = f"is {_describe(entry)}; give an object"


def _check_whole(
    entry: Mapping[str, object], name: str, place: str, errors: Errors, *, high: int = LARGEST_COUNT
) -> None:
    value = entry.get(name)
    if not _is_whole(value, high):
        errors[f"{place}.{name}"] = f"is {_describe(value)}; give a whole number from 0 to {high:,}"


def _is_whole(value: object, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= high


def _describe(value: object) -> str:
    if value is None:
        return "missing or null"
    if isinstance(value, dict):
        return "an object"
    text = json.dumps(value) if not isinstance(value, list) else f"a list of {len(value):,}"
    return text if len(text) <= 40 else f"{text[:37]}…"
