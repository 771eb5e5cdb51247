"""Python's collector of reference cycles, kept out of the way of a process's start and end.

Importing torch and Django makes millions of objects that stay. Going through them again and again takes a quarter of
the time of the imports, and a second more at the end, when the interpreter looks for cycles in what the system is about
to take back. https://docs.python.org/3/library/gc.html#gc.freeze
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Collect nothing meanwhile, and leave alone for good what is there afterwards."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def end_at_once() -> None:
    """Have the interpreter end without a last search through everything; files are closed and `atexit` runs."""
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
