"""Inside the model's forward, on captured steps only: router choices, chosen modules, and the precision in force."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn

from plumbline_capture.calls import first_floating, first_output
from plumbline_capture.hook import Hook
from plumbline_capture.represent import keep_tensor
from plumbline_capture.state import Recorder, inside_backward, is_compiling

# Qwen3MoeTopKRouter, DeepseekV3TopkRouter, MixtralTopKRouter, Gate, MoEGate …
_ROUTER_CLASS = re.compile(r".*(Router|TopkRouter|Gate).*")
# DeepseekV32Indexer, GlmMoeDsaIndexer …: sparse attention's choice of keys
_INDEXER_CLASS = re.compile(r".*Indexer")


def hook_modules(recorder: Recorder) -> None:
    """Install this step's hooks; they go when the step ends."""
    root = recorder.root
    assert root is not None
    pattern = recorder.settings.modules
    if root.compiled:
        if pattern is not None:
            recorder.note_missing("modules", "the model is compiled: hooks inside it would be traced, not run")
        return
    named: Dict[str, nn.Module] = {}
    for path, module in root.named_modules():
        named.setdefault(path, module)  # a wrapper comes before what it wraps, and is what the model calls
    handles = recorder.now.handles
    for path, module in named.items():
        if _ROUTER_CLASS.fullmatch(type(module).__name__):
            handles.append(module.register_forward_hook(Hook(_router_hook(recorder, path))))
        elif _INDEXER_CLASS.fullmatch(type(module).__name__):
            handles.append(module.register_forward_hook(Hook(_indexer_hook(recorder, path))))
        if pattern is not None and re.fullmatch(pattern, path):
            handles.append(module.register_forward_hook(Hook(_module_hook(recorder, path)), with_kwargs=True))
    probe = _first_product(root.model)
    if probe is not None:
        handles.append(probe.register_forward_hook(Hook(_precision_hook(recorder))))


def _first_product(model: nn.Module) -> Optional[nn.Module]:
    """Return the first linear layer inside the model: its output has the dtype that products are computed in."""
    get_output_embeddings: Any = getattr(model, "get_output_embeddings", None)
    head = get_output_embeddings() if callable(get_output_embeddings) else None
    return next((module for module in model.modules() if isinstance(module, nn.Linear) and module is not head), None)


def _precision_hook(recorder: Recorder) -> Any:
    def observe(module: nn.Module, args: Tuple[Any, ...], output: Any) -> None:
        if is_compiling() or inside_backward() or recorder.now.observed or not isinstance(output, torch.Tensor):
            return
        recorder.now.observed = {"autocast": autocast_dtype(output.device.type), "compute_dtype": str(output.dtype)}

    return observe


def autocast_dtype(device_type: str) -> Optional[str]:
    """Return the dtype of the autocast in force, or None outside of one."""
    torch_: Any = torch
    try:
        enabled, dtype = torch_.is_autocast_enabled(device_type), torch_.get_autocast_dtype(device_type)
    except (TypeError, AttributeError):  # torch < 2.4 has one function a device
        if device_type == "cpu":
            enabled, dtype = torch_.is_autocast_cpu_enabled(), torch_.get_autocast_cpu_dtype()
        else:
            enabled, dtype = torch_.is_autocast_enabled(), torch_.get_autocast_gpu_dtype()
    return str(dtype) if enabled else None


def _first_call(recorder: Recorder, what: str, path: str) -> bool:
    """Return whether this is the first such call of a module in this micro-batch, within the model's own forward."""
    if is_compiling() or inside_backward() or not recorder.doors:
        return False
    call = f"{what} {recorder.micro_batch().index} {path}"
    if call in recorder.now.seen_calls:
        recorder.note_missing(f"{what} of {path}", "called again in one micro-batch; only its first call is recorded")
        return False
    recorder.now.seen_calls.add(call)
    return True


def _router_hook(recorder: Recorder, path: str) -> Any:
    def observe(module: nn.Module, args: Tuple[Any, ...], output: Any) -> None:
        if is_compiling():
            return
        tensors: List[torch.Tensor] = (
            [item for item in output if isinstance(item, torch.Tensor)] if isinstance(output, (list, tuple)) else []
        )
        indices = next((t for t in tensors if not t.is_floating_point() and t.dtype is not torch.bool), None)
        if indices is None or not _first_call(recorder, "router", path):
            return
        with recorder.guarded(f"router {path}"):
            index = recorder.micro_batch().index
            keep_tensor(recorder, indices, kind="router", name=path, field="indices", micro_batch=index)
            weights = next((t for t in tensors if t.is_floating_point() and t.shape == indices.shape), None)
            if weights is not None:
                keep_tensor(recorder, weights, kind="router", name=path, field="weights", micro_batch=index)

    return observe


def _indexer_hook(recorder: Recorder, path: str) -> Any:
    """Record the keys that an indexer of sparse attention chose: (rows, queries, k) positions in the row."""

    def observe(module: nn.Module, args: Tuple[Any, ...], output: Any) -> None:
        if is_compiling() or not isinstance(output, torch.Tensor) or output.dim() != 3:
            return
        if output.is_floating_point() or output.dtype is torch.bool or not _first_call(recorder, "router", path):
            return
        with recorder.guarded(f"indexer {path}"):
            index = recorder.micro_batch().index
            keep_tensor(recorder, output, kind="router", name=path, field="keys", micro_batch=index)

    return observe


def _module_hook(recorder: Recorder, path: str) -> Any:
    def observe(module: nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any], output: Any) -> None:
        if is_compiling():
            return
        with recorder.shielded(f"module {path}"):
            record(args, kwargs, first_output(output))

    def record(args: Tuple[Any, ...], kwargs: Dict[str, Any], result: Optional[torch.Tensor]) -> None:
        if inside_backward():
            _await_gradient(recorder, path, result)  # re-entrant checkpointing builds the graph only now
            return
        if not _first_call(recorder, "module", path):
            return
        with recorder.guarded(f"module {path}"):
            index = recorder.micro_batch().index
            given = first_floating(args, kwargs)
            if given is not None:
                keep_tensor(recorder, given, kind="module_input", name=path, micro_batch=index)
            if result is not None:
                keep_tensor(recorder, result, kind="module_output", name=path, micro_batch=index)
        _await_gradient(recorder, path, result)

    return observe


def _await_gradient(recorder: Recorder, path: str, output: Optional[torch.Tensor]) -> None:
    """Keep the gradient of a module's output when the backward reaches it."""
    index = recorder.micro_batch().index
    awaited = f"gradient {index} {path}"
    if output is None or not output.requires_grad or awaited in recorder.now.seen_calls:
        return
    recorder.now.seen_calls.add(awaited)
    step = recorder.step

    def keep(gradient: torch.Tensor) -> None:
        if recorder.step == step:
            with recorder.guarded(f"module {path}"):
                keep_tensor(recorder, gradient, kind="module_output_gradient", name=path, micro_batch=index)

    tensor: Any = output
    tensor.register_hook(keep)
