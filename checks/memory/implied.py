"""What the shapes of a run imply for its memory: exact bytes of what stays, and a reference's forward and backward.

Parameters, gradients and optimizer states follow from the config and the run spec alone. Activations are counted on a
reference: the checkpoint's model class with the asked attention and checkpointing, in the run's dtypes, on the batches
that reached the run's model, with the loss from its definition (a float32 log-softmax).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from plumbline_capture.groups import describe_groups
from plumbline_capture.live import Block, LiveBytes, Place
from torch import nn

from checks.captures.capture import Capture
from checks.errors import BadRequest
from checks.memory.measured import Group, parse_groups
from checks.references.budget import BUDGET_SHARE, OverBudget, count_parameters, estimate_trace_bytes
from checks.references.hf import shared_code
from checks.references.lora import apply_lora
from checks.references.model import AUTOCAST, PARAMETER_DTYPES
from checks.references.scalars import build_empty
from checks.spec import RunSpec

STEP_BYTES = 4
"""AdamW keeps its count of steps as one float32 a parameter
(https://github.com/pytorch/pytorch/blob/main/torch/optim/adamw.py)."""


class NoBatch(ValueError):
    """The run's batches cannot be given to a reference; `str()` says why."""


@dataclass(frozen=True)
class Resident:
    """Bytes of what stays from step to step; `trainable`, `largest`: of what is trained, all and the largest tensor."""

    parameters: int
    gradients: int
    states: int
    trainable: int
    largest: int


@dataclass(frozen=True)
class ImpliedMicroBatch:
    """One forward and backward of the reference, in bytes above what was alive when its step began.

    `held`: alive between forward and backward, made in that forward; `forward_peak`, `backward_peak`, and what of them
    is as wide as the vocabulary; `logits`: bytes of one float32 copy of the logits; `groups`: of what is held.
    """

    micro_batch: int
    held: int
    forward_peak: int
    backward_peak: int
    forward_logits: int
    backward_logits: int
    logits: int
    positions: int
    vocabulary: int
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Implied:
    """`step`: that whose batches were computed; `resident` is of the whole run."""

    resident: Resident
    step: int
    micro_batches: tuple[ImpliedMicroBatch, ...]
    without_checkpointing: int | None
    """bytes that the first micro-batch would hold without gradient checkpointing, where it was asked for"""
    shared: tuple[str, ...]
    device: str
    model: str
    """name of the reference's class"""


def imply_resident(spec: RunSpec, *, adapters: Sequence[str], float32_names: frozenset[str]) -> Resident:
    """Bytes of parameters, gradients and optimizer states by config and run spec; tied parameters count once."""
    model = build_empty(spec.model)
    dtype = PARAMETER_DTYPES[spec.precision]
    sizes = {
        name: parameter.numel() * (torch.float32 if name in float32_names else dtype).itemsize
        for name, parameter in model.named_parameters()
    }
    trained = dict(sizes)
    if adapters:
        trained = {}
        for name in adapters:
            path, _, factor = name.removesuffix(".weight").rpartition(".")
            base = model.get_submodule(path)
            assert isinstance(base, nn.Linear)
            width = base.in_features if factor == "lora_A" else base.out_features
            trained[name] = spec.lora_r * width * dtype.itemsize
    total = sum(sizes.values()) + (sum(trained.values()) if adapters else 0)
    gradients = sum(trained.values())
    if spec.optimizer == "adamw":
        states = 2 * gradients + STEP_BYTES * len(trained)
    else:
        states = gradients if spec.momentum else 0
    return Resident(total, gradients, states, gradients, max(trained.values(), default=0))


def imply(
    spec: RunSpec, capture: Capture, *, adapters: Sequence[str], float32_names: frozenset[str], device: str
) -> Implied:
    """What the run's shapes imply; `capture`: of the measured run, `device`: that of its model.

    Raises:
        NoBatch: the batches were not recorded. OverBudget: the reference would not fit. BadRequest: no such model.
    """
    resident = imply_resident(spec, adapters=adapters, float32_names=float32_names)
    step = max(capture.steps)
    batches = [_read_batch(capture, step, micro.index) for micro in capture.micro_batches(step)]
    if not batches:
        raise NoBatch(f"the capture of step {step} holds no forward pass")
    _check_memory(spec, batches, resident)
    at = torch.device("cuda" if device.startswith("cuda") and torch.cuda.is_available() else "cpu")
    model = _build(spec, adapters).to(at)
    shared, name = shared_code(model), type(model).__name__
    without: int | None = None
    if spec.gradient_checkpointing:
        without = next(_run(model, batches[:1], spec, at)).held
        model.zero_grad(set_to_none=True)
        enable: Any = model.gradient_checkpointing_enable
        enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if adapters:  # else nothing before the first adapter asks for gradients, and nothing is recomputed
            require: Any = model.enable_input_require_grads
            require()
    return Implied(resident, step, tuple(_run(model, batches, spec, at)), without, shared, str(at), name)


def _read_batch(capture: Capture, step: int, index: int) -> dict[str, torch.Tensor]:
    """The arguments of the model's forward, without labels."""
    found: dict[str, torch.Tensor] = {}
    for name, record in capture.micro_batch_tensors(step, "batch", index).items():
        tensor = record.read("full")
        if tensor is not None and name not in ("labels", "num_items_in_batch") and "." not in name:
            found[name] = tensor
    if "input_ids" not in found:
        raise NoBatch(f"micro-batch {index} of step {step} holds no input_ids")
    return found


def _check_memory(spec: RunSpec, batches: Sequence[Mapping[str, torch.Tensor]], resident: Resident) -> None:
    tokens = max(batch["input_ids"].numel() for batch in batches)
    need = resident.parameters + resident.gradients + estimate_trace_bytes(spec.model, tokens=tokens)
    budget = int(psutil.virtual_memory().available * BUDGET_SHARE)
    if need > budget:
        raise OverBudget(
            f"the reference's activations need about {need / 1e9:.1f} GB with {count_parameters(spec.model):,} "
            f"parameters, and {budget / 1e9:.1f} GB are free; set a smaller batch or seq_len, or shrink the model"
        )


def _build(spec: RunSpec, adapters: Sequence[str]) -> nn.Module:
    """The checkpoint's model as a framework loads it, not as a float64 reference is: its own kernels are the point."""
    model = _load(spec.model, dtype=PARAMETER_DTYPES[spec.precision], attention=spec.attention)
    if adapters:
        dtype = PARAMETER_DTYPES[spec.precision]
        weights = {}
        for name in adapters:
            base = model.get_submodule(name.rsplit(".", 2)[0])
            assert isinstance(base, nn.Linear)
            a = name.endswith(".lora_A.weight")
            shape = (spec.lora_r, base.in_features) if a else (base.out_features, spec.lora_r)
            weights[name] = torch.full(shape, 0.01, dtype=dtype)
        apply_lora(model, weights, alpha=spec.lora_alpha, r=spec.lora_r)
    return model


def _load(checkpoint: Path, *, dtype: torch.dtype, attention: str) -> nn.Module:
    import transformers  # takes seconds, and only a model needs it

    try:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=dtype, attn_implementation=attention, trust_remote_code=False, local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BadRequest("model", f"transformers cannot load {checkpoint}", "give a complete checkpoint") from error
    model.config.use_cache = False
    return model.train()  # type: ignore[no-any-return]


def _run(
    model: nn.Module, batches: Sequence[Mapping[str, torch.Tensor]], spec: RunSpec, device: torch.device
) -> Iterator[ImpliedMicroBatch]:
    """Each micro-batch of a step, gradients accumulating as in the run."""
    found = []
    moved = [{name: tensor.to(device) for name, tensor in batch.items()} for batch in batches]
    with LiveBytes(device.type) as live:
        live.name_role(model.parameters(), "parameter")
        live.name_role(model.buffers(), "buffer")
        for batch in moved:
            live.name_role(batch.values(), "batch")
        start = live.live
        for index, batch in enumerate(moved):
            live.place = Place("forward", 1, index)
            live.restart_peak()
            with _autocast(spec, device):
                output: Any = model(**batch)
            loss, shape = _lose(output)
            del output
            forward_peak = live.peak - start
            held = [block for block in live.blocks() if block.micro_batch == index and block.phase == "forward"]
            groups = parse_groups(describe_groups(held))
            forward_logits = _sum(find_wide(live.at_peak(), shape[-1]))
            held_bytes = _sum(held)
            del held
            live.place = Place("backward", 1, index)
            live.restart_peak()
            loss.backward()  # type: ignore[no-untyped-call]
            backward_peak = live.peak - start
            backward_logits = _sum(find_wide(live.at_peak(), shape[-1]))
            del loss
            rows, positions, vocabulary = shape
            logits = rows * positions * vocabulary * torch.float32.itemsize
            found.append(
                ImpliedMicroBatch(
                    micro_batch=index,
                    held=held_bytes,
                    forward_peak=forward_peak,
                    backward_peak=backward_peak,
                    forward_logits=forward_logits,
                    backward_logits=backward_logits,
                    logits=logits,
                    positions=positions,
                    vocabulary=vocabulary,
                    groups=groups,
                )
            )
    model.zero_grad(set_to_none=True)
    yield from found


def find_wide(blocks: Sequence[Block], vocabulary: int) -> list[Block]:
    """The blocks that hold a number for every token of the vocabulary, and are no parameter or gradient of one."""
    return [block for block in blocks if block.role is None and block.shape[-1:] == (vocabulary,)]


def _sum(blocks: Sequence[Block]) -> int:
    return sum(block.bytes for block in blocks)


def _lose(output: Any) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """The loss from its definition, of some targets: their values take no memory, and they are every position's."""
    logits: torch.Tensor = output if isinstance(output, torch.Tensor) else output.logits
    rows, positions, vocabulary = logits.shape
    targets = torch.zeros(rows * positions, dtype=torch.int64, device=logits.device)
    loss = nn.functional.cross_entropy(logits.float().view(-1, vocabulary), targets)
    return loss, (rows, positions, vocabulary)


def _autocast(spec: RunSpec, device: torch.device) -> AbstractContextManager[Any]:
    dtype = AUTOCAST[spec.precision]
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
