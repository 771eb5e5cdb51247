"""Calls to CUDA land on the CPU: for frameworks that know no other device, on a machine without a GPU.

Streams and events do nothing, memory is 0, and whatever is to be made on, or moved to, `cuda` stays where it is. What
Megatron-core 0.16.1 needs beside that, with neither a GPU nor Transformer Engine, is mended when it is imported.
A run with it says nothing about CUDA's kernels, streams or memory.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from plumbline_capture.posthook import after_import
from torch.overrides import TorchFunctionMode

REPLACES: tuple[str, ...] = ("torch.cuda",)

CPU = torch.device("cpu")
NOTHING = (
    *("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated"),
    *("manual_seed", "manual_seed_all", "ipc_collect", "init"),
)
ZERO = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


class Quiet:
    """A stream or an event that everything has happened on already."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Quiet) -> float:
        return 0.0

    def record_event(self, *args: Any) -> Quiet:
        return Quiet()

    def record(self, *args: Any) -> None:
        pass

    wait = wait_stream = wait_event = synchronize = record


class CudaToCpu(TorchFunctionMode):
    """`device="cuda"` of any call means the CPU, `pin_memory` means nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.to:
            args = tuple(on_cpu(value) for value in args)
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            # Megatron sorts gradients by this name, and knows those of CUDA only.
            return func(*args).replace("torch.", "torch.cuda.", 1)
        return func(*args, **kwargs)


def on_cpu(value: Any) -> Any:
    """The CPU for any name of a GPU, else the value itself."""
    name = value.type if isinstance(value, torch.device) else value
    return CPU if isinstance(name, str) and name.split(":")[0] == "cuda" else value


def install() -> None:
    """Replace torch.cuda for the rest of this process; nothing is done where there is a GPU."""
    cuda: Any = torch.cuda
    if cuda.is_available():
        return
    for name in NOTHING:
        setattr(cuda, name, lambda *args, **kwargs: None)
    for name in ZERO:
        setattr(cuda, name, lambda *args, **kwargs: 0)
    cuda.current_device = lambda: CPU
    cuda.device_count = lambda: 1
    cuda.Stream = cuda.Event = Quiet
    cuda.current_stream = cuda.default_stream = lambda *args, **kwargs: Quiet()
    cuda.stream = lambda stream=None: contextlib.nullcontext()
    cuda.memory_stats = lambda *args, **kwargs: {}
    cuda.mem_get_info = lambda *args, **kwargs: (8 << 30, 16 << 30)
    cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    cuda.get_device_capability = lambda *args, **kwargs: (8, 0)
    cuda.get_device_name = lambda *args, **kwargs: "none"
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign,assignment]
    CudaToCpu().__enter__()
    for module, mend in MENDED.items():
        after_import(module, mend)


def _mend_random(module: Any) -> None:
    module._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    module._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)


def _mend_moe_utils(module: Any) -> None:
    if not hasattr(module, "te_general_gemm"):  # a name that 0.16.1 reads and, without Transformer Engine, never binds
        module.te_general_gemm = None
    _mend_dispatcher(module)


def _mend_dispatcher(module: Any) -> None:
    def stay(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.detach().numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    if hasattr(module, "maybe_move_tensor_to_cpu"):
        module.maybe_move_tensor_to_cpu = stay


def _mend_norm(module: Any) -> None:
    """Megatron's torch norm refuses sequence parallelism: its weight lacks the mark that its gradient is partial."""

    class MarkedNorm(torch.nn.RMSNorm):
        def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> None:
            super().__init__(hidden_size, eps=eps)
            self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[assignment]

    for name in ("WrappedTorchNorm", "LNImpl", "LayerNormImpl"):
        if getattr(getattr(module, name, None), "__name__", "") == "WrappedTorchNorm":
            setattr(module, name, MarkedNorm)


MENDED = {
    "megatron.core.tensor_parallel.random": _mend_random,
    "megatron.core.transformer.moe.moe_utils": _mend_moe_utils,
    "megatron.core.transformer.moe.token_dispatcher": _mend_dispatcher,
    "megatron.core.models.backends": _mend_norm,
    "megatron.core.models.gpt.gpt_layer_specs": _mend_norm,
    "megatron.core.transformer.transformer_block": _mend_norm,
}
