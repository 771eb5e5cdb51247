"""Miles' training step without the engine and the launcher that it imports: sglang, and Megatron-LM's own scripts.

Miles imports sglang for its rollouts, and Megatron-LM's `megatron.training`, which the megatron-core distribution does
not hold, for arguments, checkpoints and tokenizers. Neither is part of a step on recorded rollouts. A run with it says
nothing about either.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

REPLACES: tuple[str, ...] = ("sglang", "megatron.training", "torch_memory_saver")

ABSENT = ("sglang", "sglang_router", "megatron.training", "torch_memory_saver", "kubernetes_asyncio")


class Absent:
    """Any class, function or object of a module that is not there; it can be named and decorated, not used."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{self.__name__} is not there: a step on recorded rollouts does not take it")


class DumperConfig:
    """Of sglang's dumper of activations, which Miles asks in every step: it is off."""

    @staticmethod
    def _kv_pairs_to_dict(pairs: Any) -> dict[str, Any]:
        if pairs:
            raise RuntimeError("sglang's dumper is not there: nothing can be dumped")
        return {}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers the import of what is absent."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in ABSENT):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module: Any = ModuleType(spec.name)
        if spec.name == "megatron.training.global_vars":
            held: list[Any] = []
            module.set_args, module.get_args = held.append, lambda: held[-1]
        if spec.name == "sglang.srt.debug_utils.dumper":
            module.DumperConfig = DumperConfig
        module.__getattr__ = lambda name: _answer(spec.name, name)
        return module  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        pass


def _answer(module: str, name: str) -> Absent:
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent(f"{module}.{name}")


def install() -> None:
    """Let the absent modules be imported."""
    sys.meta_path.insert(0, Finder())
