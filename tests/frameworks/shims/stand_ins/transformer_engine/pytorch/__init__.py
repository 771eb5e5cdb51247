from unittest.mock import MagicMock

from . import attention, distributed, fp8, module, tensor, utils
from .attention import DotProductAttention
from .fp8 import fp8_autocast, fp8_model_init
from .module.linear import GroupedLinear, LayerNorm, LayerNormLinear, Linear, RMSNorm

__all__ = [
    "DotProductAttention",
    "GroupedLinear",
    "LayerNorm",
    "LayerNormLinear",
    "Linear",
    "RMSNorm",
    "attention",
    "distributed",
    "fp8",
    "fp8_autocast",
    "fp8_model_init",
    "module",
    "ops",
    "tensor",
    "utils",
]
ops = MagicMock(name="transformer_engine.pytorch.ops")  # named when Megatron is imported, and never called
