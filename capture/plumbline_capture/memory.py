"""The memory of every training step: how many bytes are alive in each phase of it, and what they are.

A step is a forward and a backward for each micro-batch, then the update; what lies between them (loading, clipping,
`zero_grad`) is a phase too. Nothing of the recorder itself is counted. The numbers of the run are not changed; on a
device with torch's caching allocator its peak statistics are reset at the beginning of each phase.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import Any, ContextManager, Dict, Iterable, List, Optional, Tuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import _get_current_dispatch_mode

from plumbline_capture.calls import named_tensors
from plumbline_capture.format import memory_file_name, write_json
from plumbline_capture.groups import count_copies, describe_groups, describe_moment, is_no_number
from plumbline_capture.live import LiveBytes, Place, storages_are_kept
from plumbline_capture.state import Recorder, inside_backward, is_compiling, rank_of_process

FORWARD, BACKWARD, UPDATE, BETWEEN = "forward", "backward", "update", "between"


class Meter:
    """Follows one process's steps from its first training forward to the last step that was asked for."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._mode: Optional[LiveBytes] = None
        self._device = torch.device("cpu")
        self._paths: Dict[int, str] = {}
        self._handles: List[Any] = []
        self._phases: List[Dict[str, Any]] = []
        self._settled: List[Dict[str, Any]] = []
        self._zeroed: List[Dict[str, Any]] = []
        self._micro_batch = 0
        self._began: Dict[str, Any] = {}
        self._finished = False

    def paused(self) -> ContextManager[None]:
        """Return a context in which what is made is not counted."""
        return contextlib.nullcontext() if self._mode is None else self._mode.paused()

    def forward_begins(self, module: nn.Module) -> None:
        """The outermost module of the model is called for training."""
        if self._finished or inside_backward():
            return
        if self._mode is None:
            self._begin(module)
        mode = self._mode
        if mode is None or mode.place.phase == FORWARD:  # a second forward before the backward
            return
        self._enter(FORWARD, self._micro_batch)

    def backward_begins(self) -> None:
        """A loss is about to be back-propagated."""
        if self._mode is not None and self._mode.place.phase == FORWARD:
            self._enter(BACKWARD, self._micro_batch)

    def backward_ends(self) -> None:
        """The backward has returned."""
        if self._mode is not None and self._mode.place.phase == BACKWARD:
            self._name_roles(None)
            self._enter(BETWEEN, self._micro_batch)
            self._micro_batch += 1

    def update_begins(self, optimizer: Optimizer) -> None:
        """The model's optimizer is about to step."""
        if self._mode is not None:
            self._settle(optimizer, "before the update")
            self._enter(UPDATE, None)

    def update_ends(self, optimizer: Optimizer) -> None:
        """The model's optimizer has stepped; the step ends."""
        if self._mode is None:
            return
        self._close()
        self._settle(optimizer, "after the update")
        self._micro_batch = 0
        if self._recorder.step >= max(self._recorder.settings.steps):
            self.finish()
            return
        self._open(BETWEEN, None, step=self._recorder.step + 1)

    def step_restarts(self) -> None:
        """The step comes to no update: its micro-batches are counted anew."""
        self._micro_batch = 0

    def gradients_zeroed(self, *, set_to_none: bool) -> None:
        """A `zero_grad` has returned; between a backward and the next forward what it left is of interest."""
        mode = self._mode
        if mode is None or mode.place.phase != BETWEEN or self._recorder.root is None:
            return
        left = [block for block in mode.blocks() if block.role == "gradient"]
        self._zeroed.append(
            {
                "step": mode.place.step,
                "set_to_none": set_to_none,
                "alive_bytes": sum(block.bytes for block in left),
                "groups": describe_groups(left),
            }
        )

    def finish(self) -> None:
        """Stop counting and write what was seen; called again, or where nothing was seen, it does nothing."""
        mode, self._mode, self._finished = self._mode, None, True
        if mode is None:
            return
        for handle in self._handles:
            handle.remove()
        mode.counting = False
        if _get_current_dispatch_mode() is mode:  # else another one stands above it, and it stays without counting
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        rank = rank_of_process()
        content = {
            "rank": rank,
            "device": str(self._device),
            "operations": mode.operations,
            **self._began,
            "phases": self._phases,
            "settled": self._settled,
            "zeroed": self._zeroed,
        }
        write_json(Path(self._recorder.settings.out) / memory_file_name(rank), content)

    def _begin(self, module: nn.Module) -> None:
        recorder = self._recorder
        assert recorder.root is not None
        if recorder.root.compiled:
            recorder.note_missing("memory", "the model is compiled: what compiled code takes is not seen")
            self._finished = True
            return
        if not storages_are_kept():
            recorder.note_missing("memory", f"torch {torch.__version__} does not say when a storage is freed")
            self._finished = True
            return
        self._device = next(recorder.root.outer.parameters()).device
        self._paths = {id(inner): path for path, inner in recorder.root.outer.named_modules()}
        self._mode = mode = LiveBytes(self._device.type)
        mode.sweep()
        self._began = {"alive_before": describe_moment(mode.blocks())}

        def enter(inner: nn.Module, args: Tuple[Any, ...]) -> None:
            if not is_compiling():
                mode.modules.append(self._paths.get(id(inner)) or type(inner).__name__)

        def leave(inner: nn.Module, args: Tuple[Any, ...], output: Any) -> None:
            if not is_compiling() and mode.modules:
                mode.modules.pop()

        self._handles = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
        ]
        mode.modules.append(self._paths.get(id(module)) or type(module).__name__)  # whose hooks called this
        mode.__enter__()  # type: ignore[no-untyped-call]
        self._open(BETWEEN, None, step=recorder.step)

    def _enter(self, phase: str, micro_batch: Optional[int]) -> None:
        self._close()
        self._open(phase, micro_batch, step=self._recorder.step)

    def _open(self, phase: str, micro_batch: Optional[int], *, step: int) -> None:
        mode = self._mode
        assert mode is not None
        mode.place = Place(phase, step, micro_batch)
        mode.restart_peak()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._phases.append({"step": step, "micro_batch": micro_batch, "phase": phase, "begin_bytes": mode.live})

    def _close(self) -> None:
        mode = self._mode
        assert mode is not None
        if not self._phases:
            return
        record, place = self._phases[-1], mode.place
        alive = mode.blocks()
        record.update(end_bytes=mode.live, peak_bytes=mode.peak)
        if self._device.type == "cuda":
            record.update(
                allocator_bytes=_requested(self._device), allocator_peak_bytes=_requested(self._device, "peak")
            )
        own = [b for b in alive if (b.phase, b.step, b.micro_batch) == (place.phase, place.step, place.micro_batch)]
        record["left_bytes"] = sum(block.bytes for block in own if block.role is None)
        if place.step in self._recorder.settings.steps:
            record["at_peak"] = describe_moment(mode.at_peak())
            record["left"] = describe_groups([block for block in own if block.role is None])

    def _settle(self, optimizer: Optimizer, moment: str) -> None:
        """Take stock of what is alive by what it is."""
        mode, root = self._mode, self._recorder.root
        assert mode is not None
        assert root is not None
        sums = self._name_roles(optimizer)
        step = self._recorder.step
        others = [block for block in mode.blocks() if block.role is None]
        shapes = {
            kind: [tuple(p.shape) for p in root.outer.parameters() if kind == "parameters" or p.requires_grad]
            for kind in ("parameters", "trainable")
        }
        old = [block for block in others if block.phase in (FORWARD, BACKWARD, UPDATE, BETWEEN) and block.step < step]
        self._settled.append(
            {
                "step": step,
                "moment": moment,
                "live_bytes": mode.live,
                **sums,
                "other_bytes": sum(block.bytes for block in others),
                "others": describe_groups(others),
                "copies": {kind: count_copies(others, wanted) for kind, wanted in shapes.items()},
                "survivors": [
                    {"made_in": made, "bytes": sum(b.bytes for b in blocks), "groups": describe_groups(blocks)}
                    for made in sorted({block.step for block in old})
                    for blocks in [[block for block in old if block.step == made and is_no_number(block)]]
                ],
                **({"allocator_bytes": _requested(self._device)} if self._device.type == "cuda" else {}),
            }
        )

    def _name_roles(self, optimizer: Optional[Optimizer]) -> Dict[str, int]:
        mode, root = self._mode, self._recorder.root
        assert mode is not None
        assert root is not None
        with mode.paused():
            for block in mode.blocks():
                block.role = None if block.role == "state" and optimizer is not None else block.role
            parameters = list(root.outer.parameters())
            sums = {
                "buffer_bytes": mode.name_role(root.outer.buffers(), "buffer"),
                "gradient_bytes": mode.name_role([p.grad for p in parameters if p.grad is not None], "gradient"),
            }
            if optimizer is not None:
                sums["state_bytes"] = mode.name_role(_states(optimizer), "state")
            sums["parameter_bytes"] = mode.name_role(parameters, "parameter")
        return sums


def _requested(device: torch.device, which: str = "current") -> int:
    """Return what was asked of the caching allocator; before torch 2.0 what it gave, rounded up."""
    stats = torch.cuda.memory_stats(device)
    return int(stats.get(f"requested_bytes.all.{which}", stats.get(f"allocated_bytes.all.{which}", 0)))


def _states(optimizer: Optimizer) -> Iterable[torch.Tensor]:
    for state in list(optimizer.state.values()):
        for _, value in named_tensors(state) if isinstance(state, dict) else ():
            yield value


def hook_memory(recorder: Recorder) -> Meter:
    """Install what tells the meter of backwards and of `zero_grad`; forwards and updates the recorder tells it of."""
    meter = Meter(recorder)
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        if is_compiling() or inside_backward():
            return original(*args, **kwargs)
        with recorder.shielded("memory"):
            meter.backward_begins()
        original(*args, **kwargs)
        with recorder.shielded("memory"):
            meter.backward_ends()
        return None

    torch.autograd.backward = backward
    for cls in (Optimizer, nn.Module):
        _wrap_zero_grad(recorder, meter, cls)
    return meter


def _wrap_zero_grad(recorder: Recorder, meter: Meter, cls: Any) -> None:
    original = cls.zero_grad

    @functools.wraps(original)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        original(self, set_to_none)
        if os.getpid() == recorder.pid:
            with recorder.shielded("memory"):
                meter.gradients_zeroed(set_to_none=set_to_none)

    cls.zero_grad = zero_grad
