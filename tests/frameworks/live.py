"""Where frameworks that run live are found: environments by their names, as `plumbline env list` gives them."""

from __future__ import annotations

import os

from workers.environments.store import Store


def find_python(variable: str) -> str | None:
    """The Python of the environment that a variable names; None where the variable is unset.

    Raises:
        BadRequest: there is no such environment.
    """
    name = os.environ.get(variable)
    return str(Store().find(name).python) if name else None
