"""Miles trains Megatron-core's GPTModel with Transformer Engine's layers under Megatron's own names."""

from __future__ import annotations

from workers.frameworks.megatron_core.names import build_name_map, read_shapes

__all__ = ["build_name_map", "read_shapes"]
