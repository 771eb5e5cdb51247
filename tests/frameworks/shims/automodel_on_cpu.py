"""NeMo AutoModel's calls to CUDA land on the CPU: its recipe and its models know no other device.

Their modules see a `torch` whose `device("cuda…")` is the CPU and whose `torch.cuda` counts no memory; torch itself
stays as it is. A run with it says nothing about CUDA's kernels, streams or memory.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from plumbline_capture.posthook import after_import

REPLACES: tuple[str, ...] = ("torch.cuda",)
FRAMEWORKS: tuple[str, ...] = ("automodel",)

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "glm4_moe", "gpt_oss")
MODULES = (
    "nemo_automodel.recipes.llm.train_ft",
    "nemo_automodel._transformers.auto_model",
    "nemo_automodel._transformers.model_init",
    *(f"nemo_automodel.components.models.{family}.model" for family in FAMILIES),
)
CPU = torch.device("cpu")


class _IsDevice(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch.device)


class Device(metaclass=_IsDevice):
    """`torch.device`, but for CUDA's."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else None
        if isinstance(first, str) and first.startswith("cuda"):
            return CPU
        return first if isinstance(first, torch.device) else torch.device(*args, **kwargs)


class Cuda(types.ModuleType):
    """`torch.cuda` of a machine whose only device is the CPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    def current_device(self) -> torch.device:
        return CPU

    def max_memory_allocated(self, *args: Any) -> int:
        return 0

    def reset_peak_memory_stats(self, *args: Any) -> None:
        pass

    empty_cache = synchronize = reset_peak_memory_stats


class Torch(types.ModuleType):
    """The package, with these two in place."""

    device = Device
    cuda = Cuda("torch.cuda")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def install() -> None:
    """Have AutoModel's modules see another torch, as they are imported; nothing is done where there is a GPU."""
    if torch.cuda.is_available():
        return
    for name in MODULES:
        after_import(name, _show_cpu)


def _show_cpu(module: types.ModuleType) -> None:
    if getattr(module, "torch", None) is torch:
        module.torch = Torch("torch")  # type: ignore[attr-defined]
