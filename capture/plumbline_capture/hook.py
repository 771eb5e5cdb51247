"""Hooks that leave no trace of the recorder in a model that is copied or saved."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Tuple


class Hook:
    """A module hook; a copied or pickled model has a function of the standard library in its place, that does nothing.

    Else `torch.save(model)` would fail on the recorder's closures, and a deep copy would be recorded as the model.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> None:
        self._function(*args)

    def __reduce__(self) -> Tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")  # takes any arguments and returns None
