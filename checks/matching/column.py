"""One field of many problems, compared at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray


class Column:
    """The values of a field, one a problem, as numbers of the different ones."""

    def __init__(self, values: Sequence[str]) -> None:
        self._codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
        self._rows = np.array([self._codes[value] for value in values], dtype=np.int64)

    def holds(self, values: Collection[str]) -> NDArray[np.float64]:
        """(problems,) float64: 1 where the field has one of the values, else 0."""
        wanted = np.zeros(len(self._codes))
        wanted[[self._codes[value] for value in values if value in self._codes]] = 1.0
        return wanted[self._rows]
