"""Call something right after a module was imported, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Callable, Dict, List, Optional, Sequence, Set

Callback = Callable[[ModuleType], None]


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find, and wraps the loader so that it reports once the module is executed.

    `importlib.util.find_spec("torch")` is often called as a probe and its result thrown away; so a callback is used up
    by the execution of the module, never by a look-up.
    """

    def __init__(self) -> None:
        self.callbacks: Dict[str, List[Callback]] = {}
        self._looking_up: Set[str] = set()

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if fullname not in self.callbacks or fullname in self._looking_up:
            return None
        self._looking_up.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking_up.discard(fullname)
        if spec is None or spec.loader is None:
            return None
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            waiting = self.callbacks.get(fullname, [])
            while waiting:  # a callback may register another for this very module
                waiting.pop(0)(module)
            self.callbacks.pop(fullname, None)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _Finder()


def after_import(name: str, callback: Callback) -> None:
    """Call `callback(module)` once, right after module `name` was imported; at once if it is imported already.

    An exception of the callback propagates out of the import statement.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        callback(module)
        return
    _finder.callbacks.setdefault(name, []).append(callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
