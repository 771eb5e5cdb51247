"""The rule by which devices are lent: to whoever asked first, all that were asked for or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Name = TypeVar("Name")


@dataclass(frozen=True)
class Wish(Generic[Name]):
    """Somebody who waits."""

    name: Name
    count: int


def share(free: Iterable[str], waiting: Sequence[Wish[Name]]) -> Iterator[tuple[Name, tuple[str, ...]]]:
    """Who gets which devices now; `waiting` in the order of asking.

    Nobody overtakes: a wish that does not fit holds up those behind it, or a large one would wait for ever while small
    ones come and go.

    >>> list(share(["0", "1", "2"], [Wish("a", 2), Wish("b", 2), Wish("c", 1)]))
    [('a', ('0', '1'))]
    """
    left = list(free)
    for wish in waiting:
        if wish.count > len(left):
            return
        yield wish.name, tuple(left[: wish.count])
        del left[: wish.count]
