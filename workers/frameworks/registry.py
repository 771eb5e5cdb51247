"""The adapters by name."""

from __future__ import annotations

from difflib import get_close_matches

from checks.errors import BadRequest
from workers.frameworks.base import Adapter
from workers.frameworks.plain.adapter import PlainAdapter
from workers.frameworks.transformers.adapter import TransformersAdapter
from workers.frameworks.trl.adapter import TrlAdapter

_ADAPTERS: tuple[Adapter, ...] = (TransformersAdapter(), TrlAdapter(), PlainAdapter())


def names() -> tuple[str, ...]:
    """Return the frameworks that can be validated, in alphabetical order."""
    return tuple(sorted(item.name for item in _ADAPTERS))


def adapter(name: str) -> Adapter:
    """Return the adapter called `name`; raises BadRequest offering the nearest names."""
    for item in _ADAPTERS:
        if item.name == name:
            return item
    near = get_close_matches(name.lower(), names(), n=2, cutoff=0.4) or names()
    raise BadRequest("framework", f"{name!r} is not known", "use " + " or ".join(near))
