"""From Megatron's parameter names to the checkpoint's: Megatron-SWIFT builds Megatron-core's GPTModel."""

from __future__ import annotations

from workers.frameworks.megatron_core.names import build_name_map, read_shapes

__all__ = ["build_name_map", "read_shapes"]
