"""What the recorder knows at a moment of the training: the step, the micro-batch, the root model, and what is kept."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import weakref
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch import nn
from torch.optim import Optimizer

from plumbline_capture.environment import cuda_in_use
from plumbline_capture.format import Missing, TensorEntry
from plumbline_capture.name_map import NameMap
from plumbline_capture.roots import Root, Transposed
from plumbline_capture.settings import Settings

# torch < 2.3 has it here only; under either name the compiler replaces it by True
_torch_is_compiling: Any = getattr(torch.compiler, "is_compiling", None) or getattr(torch._utils, "is_compiling")  # noqa: B009


@dataclass
class MicroBatch:
    """One forward and its backward: its entry in `micro_batches`, and what is still to be settled."""

    index: int
    model_loss: Optional[float] = None
    backward: Optional[float] = None
    backward_dtype: Optional[str] = None
    backward_gradient: Optional[float] = None
    loss_scale: Optional[float] = None
    num_items_in_batch: Optional[float] = None
    divided_by: Optional[float] = None
    """what the framework divides the gradients by after the backward"""
    loss_source: Optional[str] = None
    cross_entropy: List[Dict[str, Any]] = field(default_factory=list)
    arguments: Dict[str, Any] = field(default_factory=dict)
    forwards: int = 0
    rows_and_positions: Optional[Tuple[int, int]] = None
    losses: List[Tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """(targets, token losses) of each cross-entropy, in order"""
    fallback: Optional[Tuple[torch.Tensor, torch.Tensor]] = None
    """(logits, labels) to compute token losses from where no loss function was seen"""
    unlabelled: Optional[Tuple[torch.Tensor, torch.Tensor]] = None
    """(logits, token ids) of a forward without labels, should its loss be computed where no loss function is seen"""
    scores: Optional[torch.Tensor] = None
    """(rows,) what a model of one output says of each row, whose loss is none of tokens"""
    given: Dict[str, Any] = field(default_factory=dict)
    """what the trainer's loss was given"""

    def to_record(self) -> Dict[str, Any]:
        """Return the entry of the step record."""
        return {
            "index": self.index,
            "model_loss": self.model_loss,
            "backward": self.backward,
            "backward_dtype": self.backward_dtype,
            "backward_gradient": self.backward_gradient,
            "loss_scale": self.loss_scale,
            "num_items_in_batch": self.num_items_in_batch,
            "divided_by": self.divided_by,
            "loss_source": self.loss_source,
            "cross_entropy": self.cross_entropy,
            "arguments": self.arguments,
        }


@dataclass
class Filling:
    """A canonical tensor that is put together of the pieces of several parameters."""

    tensor: torch.Tensor
    filled: int = 0
    """elements that have come"""


@dataclass
class StepState:
    """Everything of the optimizer step in progress; replaced by a new one when the step ends."""

    begun: bool = False
    backwards: int = 0
    record: Dict[str, Any] = field(default_factory=dict)
    micro_batches: List[MicroBatch] = field(default_factory=list)
    open_micro_batch: Optional[MicroBatch] = None
    clips: List[Dict[str, Any]] = field(default_factory=list)
    tensors: Dict[str, torch.Tensor] = field(default_factory=dict)
    entries: Dict[str, TensorEntry] = field(default_factory=dict)
    gradient_norms: Dict[str, float] = field(default_factory=dict)
    """Euclidean norm of each recorded gradient, by canonical name"""
    fillings: Dict[str, Filling] = field(default_factory=dict)
    """canonical tensors of which a name map's pieces have come in part, by kind/name/field"""
    updated: int = 0
    """of `Recorder.joint`, the optimizers that have stepped"""
    seen_calls: Set[str] = field(default_factory=set)
    observed: Dict[str, Any] = field(default_factory=dict)
    """autocast and compute dtype, as seen inside the forward"""
    handles: List[Any] = field(default_factory=list)
    """hooks that live for this step only"""
    fingerprinted: int = 0
    """forwards of this step whose rows have a fingerprint"""
    fingerprinted_at: int = -1
    """backwards that had run when the last of them was seen"""


@dataclass
class Stepping:
    """A call of `optimizer.step()` in progress; one that raised is recognised by the backward that follows it."""

    optimizer: Optimizer
    backwards: int
    depth: int = 1


class Recorder:
    """The recorder of one process. Hooks read and write it; nothing of it outlives a step but what `writer` keeps."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.step = 1
        self.now = StepState()
        self.root: Optional[Root] = None
        self.names: Optional[NameMap] = None
        """what this rank's parameters are called in the checkpoint, where the adapter states it"""
        self.transposed: Tuple[Transposed, ...] = ()
        """parameters that the framework holds in another order of dimensions than the checkpoint"""
        self.joint: List[Optimizer] = []
        """optimizers that take one step together; empty where each step of an optimizer is one of its own"""
        self.flat = False
        """whether optimizers hold flat stretches of parameters, whose states have no name"""
        self.stated_scalars: Dict[str, Dict[str, Any]] = {}
        """settings that the framework's hooks state by the checkpoint's module paths"""
        self.stated_packages: Dict[str, str] = {}
        """what runs from a checkout, and so is no installed distribution: name → commit"""
        self.mesh: Optional[Dict[str, int]] = None
        """this rank's coordinate on each axis that the framework divides its work along"""
        self.root_confirmed = False
        """whether an optimizer of the root's parameters has stepped"""
        self.called: List["weakref.ref[nn.Module]"] = []
        """modules that were called under training and hold no language model, the outermost first"""
        self.root_handles: List[Any] = []
        """hooks that find the root, or that stand at its doors"""
        self.stepping: Optional[Stepping] = None
        self.stepped: Optional[Optimizer] = None
        self.doors: List[List[Any]] = []
        """stack of [module, whether another door was entered below it]: forward calls in progress"""
        self.num_items_in_batch: Optional[float] = None
        self.missing: List[Missing] = []
        self.step_records: List[Dict[str, Any]] = []
        self.entries: List[TensorEntry] = []
        self.files: List[Dict[str, Any]] = []
        self.rows: List[Dict[str, Any]] = []
        """fingerprints of the rows of every training forward"""
        self.rows_kept = 0
        self.rows_published = 0
        """of `rows`, those that the JSON file holds"""
        self.environment: Optional[Dict[str, Any]] = None
        self.stand_ins: List[Dict[str, Any]] = []
        """preloaded files that stand in for other code: name, and what each replaces"""
        self.rank_file: Optional[str] = None
        """name of the JSON file that this process owns, once it has recorded a step"""
        self.published = 0
        """notes of missing things that the JSON file holds"""
        self.probed = False
        """the model was asked the probes; a wrong root, found again, is not asked a second time"""
        self.finished = False
        """no step remains to be recorded"""
        self.active = self.step in settings.steps
        self.scaling: Any = None
        """follows loss scaling (`scaler.Scaling`); None in a process that is not recorded"""
        self.meter: Any = None
        """counts the memory of every step, where that was asked for (`memory.Meter`)"""
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """In a forked child: what was recorded belongs to the parent."""
        self.pid = os.getpid()
        self.missing, self.step_records, self.entries, self.files = [], [], [], []
        self.rows, self.rows_kept = [], 0
        self.rank_file = None
        self.meter, self.scaling = None, None
        self.now = StepState()

    def end_step(self) -> None:
        """Drop everything of this step and turn to the next."""
        for handle in self.now.handles:
            handle.remove()
        self.step += 1
        self.now = StepState()
        self.doors.clear()
        self.active = self.step in self.settings.steps and not self.finished

    def restart_step(self) -> None:
        """Drop everything of this step, which comes to no update, and begin it anew."""
        for handle in self.now.handles:
            handle.remove()
        self.now = StepState()
        self.doors.clear()

    def micro_batch(self) -> MicroBatch:
        """Return the micro-batch whose backward has not run yet; a new one where there is none."""
        if self.now.open_micro_batch is None:
            self.now.open_micro_batch = MicroBatch(index=len(self.now.micro_batches))
            self.now.micro_batches.append(self.now.open_micro_batch)
        return self.now.open_micro_batch

    def note_missing(self, what: str, why: str, *, step: Optional[int] = None) -> None:
        """State that something of this step, or of another, is not recorded; said once a step."""
        rank = rank_of_process()
        step = self.step if step is None else step
        if any((note.step, note.what) == (step, what) for note in self.missing):
            return
        self.missing.append(Missing(rank=rank, step=step, what=what, why=why))
        sys.stderr.write(f"plumbline-capture: rank {rank}, step {step}: {what} not recorded: {why}\n")

    @contextlib.contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Run a piece of recording neutrally: without gradients or autocast, and without ever stopping the training."""
        with self.shielded(what), torch.no_grad(), _autocast_off():
            yield

    @contextlib.contextmanager
    def shielded(self, what: str) -> Iterator[None]:
        """Turn what goes wrong in a piece of recording into a note of what is missing; nothing of it is counted."""
        try:
            with contextlib.nullcontext() if self.meter is None else self.meter.paused():
                yield
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(where.filename)}:{where.lineno}"
            self.note_missing(what, f"{type(error).__name__}: {error} ({place})")


@contextlib.contextmanager
def _autocast_off() -> Iterator[None]:
    with torch.autocast("cpu", enabled=False):
        if cuda_in_use():
            with torch.autocast("cuda", enabled=False):
                yield
        else:
            yield


def rank_of_process() -> int:
    """Return this process's rank: of the process group where there is one, else of the launcher's variable, else 0."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return int(os.environ.get("RANK", "0"))


def inside_backward() -> bool:
    """Return whether autograd runs: a forward seen then is a recomputation (checkpointing), not a new one."""
    return bool(torch._C._current_graph_task_id() != -1)


def is_compiling() -> bool:
    """Return whether torch.compile traces this code; a hook must then return at once."""
    return bool(_torch_is_compiling())
