"""Find the language model among the modules that are called, and name its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import nn

from plumbline_capture.format import canonical_name


@dataclass(frozen=True)
class Name:
    """How a parameter is called: canonically, and by the outermost module that holds it."""

    canonical: str
    source: str
    order: Optional[Tuple[int, ...]] = None
    """which of the parameter's dimensions is each of the checkpoint's; None where they are the same"""


@dataclass(frozen=True)
class Transposed:
    """Parameters whose names end in `source` are the checkpoint's `target`, with their dimensions in another order."""

    source: str
    target: str
    order: Tuple[int, ...]

    def rename(self, canonical: str) -> Optional[str]:
        """Return the checkpoint's name of a parameter, None for another one."""
        if not canonical.endswith(self.source):
            return None
        return canonical[: len(canonical) - len(self.source)] + self.target


def rename(canonical: str, transposed: Sequence[Transposed]) -> Tuple[str, Optional[Tuple[int, ...]]]:
    """Return the checkpoint's name of a parameter, and the order of its dimensions there, None where it is the same."""
    for each in transposed:
        target = each.rename(canonical)
        if target is not None:
            return target, each.order
    return canonical, None


class Root:
    """The language model under training, and the modules through which it is called.

    `outer` is the module that the training loop calls (perhaps a wrapper), `model` the innermost language model,
    `doors` the modules from the one to the other: the innermost of them that is *called* receives the batch as the
    model sees it (PEFT's LoraModel runs the model's `forward` without calling the module, so it may never be called).
    """

    def __init__(self, outer: nn.Module) -> None:
        self.outer = outer
        self.transposed: Tuple[Transposed, ...] = ()
        """parameters that the framework holds in another order of dimensions, as its hooks state"""
        self.model, path = _innermost_language_model(outer)
        self.compiled = any(_is_compiled_wrapper(module) for module in path)
        self.doors = _until_compiled(path)
        self._names: Dict[int, Name] = {}

    @property
    def class_name(self) -> str:
        """Class of the model; FSDP2's dynamic subclass reads as the class that it was made of."""
        for cls in type(self.model).__mro__:
            if not cls.__name__.startswith("FSDP"):
                return cls.__name__
        return type(self.model).__name__

    def name_of(self, parameter: torch.Tensor) -> Optional[Name]:
        """Return the names of a parameter, or None if the model does not hold it.

        The table is made again when a parameter is unknown: FSDP2 and adapters exchange parameters during the run.
        """
        name = self._names.get(id(parameter))
        if name is None:
            found = _names_of_parameters(self.outer, self.model)
            self._names = {key: self._order(each) for key, each in found.items()}
            name = self._names.get(id(parameter))
        return name

    def _order(self, name: Name) -> Name:
        canonical, order = rename(name.canonical, self.transposed)
        return name if order is None else Name(canonical, name.source, order)

    def owns_any(self, parameters: List[torch.Tensor]) -> bool:
        """Return whether any of the parameters is the model's."""
        own = {id(parameter) for parameter in self.outer.parameters()}
        return any(id(parameter) in own for parameter in parameters)

    def named_modules(self) -> Iterator[Tuple[str, nn.Module]]:
        """Yield (canonical path, module) of the model, itself as ""; two wrappers' layers can share a path."""
        for path, module in self.model.named_modules():
            yield canonical_name(path), module


def find_root(module: nn.Module) -> Optional[Root]:
    """Return the root if the module is, or holds, a language model under training; else None.

    A language model has output embeddings (Hugging Face's interface) or, in other code, an embedding among its parts.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return None
    has_model = any(_is_language_model(inner) for inner in module.modules())
    has_embedding = any(isinstance(inner, nn.Embedding) for inner in module.modules() if inner is not module)
    return Root(module) if has_model or has_embedding else None


def _is_language_model(module: nn.Module) -> bool:
    get_output_embeddings: Any = getattr(module, "get_output_embeddings", None)
    if not callable(get_output_embeddings) or not hasattr(module, "config"):
        return False
    try:
        return isinstance(get_output_embeddings(), nn.Module)
    except (AttributeError, NotImplementedError):  # transformers 4: base classes that have none
        return False


def _innermost_language_model(outer: nn.Module) -> Tuple[nn.Module, List[nn.Module]]:
    """Return the model and the modules from `outer` down to it, both included.

    Wrappers are gone through; a model that is composed of others is not: what it gives its language model are
    embeddings, and the loss may be its own.
    """
    path, model = "", outer
    for name, module in outer.named_modules():
        inside = name.startswith(f"{path}.") if path else True
        if inside and module is not outer and _is_language_model(module) and not _is_composed(model, of=module):
            path, model = name, module
    if model is outer:
        path, model = _unwrapped(outer)
    modules = [outer]
    for part in path.split(".") if path else []:
        modules.append(getattr(modules[-1], part))
    return model, modules


def _is_composed(model: nn.Module, *, of: nn.Module) -> bool:
    """Return whether the config of `of` is a part of the model's, as with text_config in multimodal models."""
    config, inner = getattr(model, "config", None), getattr(of, "config", None)
    if config is None or inner is None or config is inner:
        return False
    return any(type(part) is type(inner) for part in vars(config).values()) if hasattr(config, "__dict__") else False


def _unwrapped(module: nn.Module) -> Tuple[str, nn.Module]:
    """Follow wrappers that hold one module: torch.compile's `_orig_mod`, DistributedDataParallel's `module`."""
    parts: List[str] = []
    while True:
        for part in ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"):
            inner = module._modules.get(part)
            if inner is not None and len(module._modules) == 1:
                parts.append(part)
                module = inner
                break
        else:
            return ".".join(parts), module


def _is_compiled_wrapper(module: nn.Module) -> bool:
    return "_orig_mod" in module._modules


def _until_compiled(path: List[nn.Module]) -> List[nn.Module]:
    """Return the modules down to torch.compile's wrapper: below it, hooks would be traced instead of run."""
    doors: List[nn.Module] = []
    for module in path:
        doors.append(module)
        if _is_compiled_wrapper(module):
            break
    return doors


def _names_of_parameters(outer: nn.Module, model: nn.Module) -> Dict[int, Name]:
    inner = {id(parameter): name for name, parameter in model.named_parameters()}
    names: Dict[int, Name] = {}
    taken: Dict[str, int] = {}
    for source, parameter in outer.named_parameters():
        within = inner.get(id(parameter), source)
        canonical = canonical_name(within)
        if taken.setdefault(canonical, id(parameter)) != id(parameter):
            canonical = within  # a second adapter on the same layer keeps its own name
        names[id(parameter)] = Name(canonical=canonical, source=source)
    return names
