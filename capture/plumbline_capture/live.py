"""Which tensors' storages are alive, counted operation by operation: how many bytes, and where each was made.

A dispatch mode sees the result of every operation, forward and backward, on any device; a weak reference says when its
storage is freed. Views share a storage and count once. Memory that a kernel takes for itself while it runs, or that
compiled code takes, is not seen. The same method as torch's own tracker
(https://github.com/pytorch/pytorch/blob/main/torch/distributed/_tools/mem_tracker.py).
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import weakref
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_PLAIN = torch.Tensor.__torch_dispatch__
_OWN = os.path.dirname(os.path.abspath(__file__))

BEFORE = "before"
"""phase of a storage that was there when the counting began"""


@dataclass
class Place:
    """Where the run is: what a storage that is made now was made in."""

    phase: str = BEFORE
    step: int = 0
    micro_batch: Optional[int] = None


@dataclass(eq=False)
class Block:
    """One storage. `shape` and `dtype` are those of the tensor by which it was first seen."""

    bytes: int
    shape: Tuple[int, ...]
    dtype: str
    operation: str
    module: Optional[str]
    """path of the innermost module in whose forward it was made; None outside of modules"""
    caller: Optional[str]
    """`file:function:line` outside of torch that asked for it"""
    phase: str
    step: int
    micro_batch: Optional[int]
    role: Optional[str] = None
    """parameter, buffer, gradient or state, once that is known"""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages of one device type while it is entered; `live` and `peak` are bytes."""

    def __init__(self, device_type: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device_type = device_type
        self.place = Place()
        self.modules: List[str] = []
        """paths of the modules whose forward runs, the innermost last"""
        self.live = 0
        self.peak = 0
        self.counting = True
        self.operations = 0
        self._blocks: Dict[int, Tuple[Any, Block]] = {}
        self._at_peak: List[Block] = []
        self._peak_stands = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if any(kind.__torch_dispatch__ is not _PLAIN for kind in types):  # takes itself apart; its parts come by here
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if self.counting:
            self.operations += 1
            for tensor in _tensors(args):
                self.see(tensor, operation=None)
            for tensor in _tensors((result,)):
                self.see(tensor, operation=str(func))
        return result

    def blocks(self) -> List[Block]:
        """Return all storages that are alive."""
        return [block for _, block in self._blocks.values()]

    def see(self, tensor: torch.Tensor, *, operation: Optional[str]) -> Optional[Block]:
        """Count the storage of a tensor unless it is counted already; None for one of another device, or without one.

        `operation`: that made it; None where nobody saw it made.
        """
        if tensor.device.type != self.device_type:
            return None
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse, or of a compiler's tracing
            return None
        key, size = storage._cdata, storage.nbytes()
        found = self._blocks.get(key)
        if found is not None and found[0]() is not None:
            block = found[1]
            if block.bytes != size:  # it was resized
                self._add(size - block.bytes)
                block.bytes = size
            return block
        block = Block(
            bytes=size,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype),
            operation=operation or "unseen",
            module=self.modules[-1] if operation and self.modules else None,
            caller=find_caller() if operation else None,
            phase=self.place.phase,
            step=self.place.step,
            micro_batch=self.place.micro_batch,
        )
        self._blocks[key] = (weakref.ref(storage, lambda reference: self._free(key, reference)), block)
        self._add(size)
        return block

    def sweep(self) -> None:
        """Count every tensor that Python knows of, made before the counting began."""
        with self.paused():
            for thing in gc.get_objects():
                # A subclass with a dispatch of its own consists of tensors that are found themselves.
                if issubclass(type(thing), torch.Tensor) and type(thing).__torch_dispatch__ is _PLAIN:
                    self.see(thing, operation=None)

    def name_role(self, tensors: Iterable[torch.Tensor], role: str) -> int:
        """State what these tensors are and return the bytes of their storages, each counted once."""
        total, seen = 0, set()
        for tensor in tensors:
            block = self.see(tensor, operation=None)
            if block is not None and id(block) not in seen:
                seen.add(id(block))
                block.role = role
                total += block.bytes
        return total

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is made meanwhile is not the run's."""
        before, self.counting = self.counting, False
        try:
            yield
        finally:
            self.counting = before

    def restart_peak(self) -> None:
        """Let the peak begin anew at what is alive."""
        self.peak, self._at_peak, self._peak_stands = self.live, [], True

    def at_peak(self) -> List[Block]:
        """Return what was alive at the peak."""
        if self._peak_stands:
            self._keep_peak()
        return self._at_peak

    def _keep_peak(self) -> None:
        self._at_peak = self.blocks()
        self._peak_stands = False

    def _add(self, size: int) -> None:
        if size < 0 and self._peak_stands:
            self._keep_peak()
        self.live += size
        if self.live > self.peak:
            self.peak, self._peak_stands = self.live, True

    def _free(self, key: int, reference: Any) -> None:
        found = self._blocks.get(key)
        if found is None or found[0] is not reference:
            return
        # Before it is taken out: it was there at the peak.
        if self._peak_stands:
            self._keep_peak()
        del self._blocks[key]
        self.live -= found[1].bytes


def storages_are_kept() -> bool:
    """Return whether a storage's Python object lives as long as the storage; before torch 2.1 it did not."""
    tensor = torch.empty(1)
    reference = weakref.ref(tensor.untyped_storage())
    return reference() is not None


def find_caller() -> Optional[str]:
    """Return `file:function:line` of the innermost frame outside of torch and of the recorder."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _OWN)) and not file.startswith("<"):
            return f"{os.path.basename(file)}:{frame.f_code.co_name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
