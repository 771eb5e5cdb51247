"""The adapters by name: those of this tree, and those that other distributions bring."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from checks.errors import BadRequest
from checks.suggesting import nearest
from workers.frameworks.automodel.adapter import AutoModelAdapter
from workers.frameworks.base import Adapter
from workers.frameworks.command.adapter import CommandAdapter
from workers.frameworks.megatron_core.adapter import MegatronCoreAdapter
from workers.frameworks.megatron_swift.adapter import MegatronSwiftAdapter
from workers.frameworks.miles.adapter import MilesAdapter
from workers.frameworks.ms_swift.adapter import MsSwiftAdapter
from workers.frameworks.plain.adapter import PlainAdapter
from workers.frameworks.transformers.adapter import TransformersAdapter
from workers.frameworks.trl.adapter import TrlAdapter

GROUP = "plumbline.frameworks"
"""entry points of other distributions: `name = "module:AdapterClass"` (docs/adapters.md)"""

MEMBERS = ("check", "prepare", "read_log")

_ADAPTERS: tuple[Adapter, ...] = (
    TransformersAdapter(),
    TrlAdapter(),
    MsSwiftAdapter(),
    MegatronCoreAdapter(),
    MegatronSwiftAdapter(),
    PlainAdapter(),
    AutoModelAdapter(),
    MilesAdapter(),
    CommandAdapter(),
)


def names() -> tuple[str, ...]:
    """Return the frameworks that can be validated, in alphabetical order."""
    return tuple(sorted({item.name for item in _ADAPTERS} | set(_find_brought())))


def adapter(name: str) -> Adapter:
    """Return the adapter called `name`.

    Raises:
        BadRequest: there is none, offering the nearest names; or the distribution that brings it cannot be loaded.
    """
    for item in _ADAPTERS:
        if item.name == name:
            return item
    brought = _find_brought().get(name)
    if brought is not None:
        return _load(brought)
    near = nearest(name, names()) or names()
    raise BadRequest("framework", f"{name!r} is not known", "use " + " or ".join(near))


def _find_brought() -> dict[str, EntryPoint]:
    """Entry points by name; a name of this tree stays this tree's, so that nothing installed beside it replaces it."""
    own = {item.name for item in _ADAPTERS}
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in own}


@cache
def _load(point: EntryPoint) -> Adapter:
    source = point.value if point.dist is None else f"{point.value} of {point.dist.name}"
    try:
        made = point.load()()
    except Exception as error:  # whatever another distribution's import raises is that distribution's
        said = f"{type(error).__name__}: {error}"
        raise BadRequest("framework", f"{source} cannot be loaded ({said})", "mend or uninstall it") from error
    missing = [member for member in MEMBERS if not callable(getattr(made, member, None))]
    if missing or getattr(made, "name", None) != point.name:
        found = f"has no {', '.join(missing)}" if missing else f"calls itself {getattr(made, 'name', None)!r}"
        raise BadRequest("framework", f"{source} {found}", f"make it an adapter called {point.name!r}")
    adapter: Adapter = made
    return adapter
