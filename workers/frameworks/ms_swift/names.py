"""From ms-swift's parameter names to the checkpoint's."""

from __future__ import annotations

from workers.frameworks.transformers.names import name_parameter

__all__ = ["name_parameter"]  # ms-swift trains transformers' model classes, and PEFT's adapters on them
