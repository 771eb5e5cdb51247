"""The variables of the environment that name an endpoint to ask. Imports nothing that takes time."""

from __future__ import annotations

from collections.abc import Mapping

URL, MODEL, KEY, WEIGHTS = (f"PLUMBLINE_SERVING_{name}" for name in ("URL", "MODEL", "KEY", "WEIGHTS"))
VARIABLES = (URL, MODEL, KEY, WEIGHTS)


def serving_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those that are set: the computing process needs them, a framework's never sees them."""
    return {name: environment[name] for name in VARIABLES if environment.get(name)}
