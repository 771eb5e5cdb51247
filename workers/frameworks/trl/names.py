"""TRL trains transformers' models under their own names, through PEFT's wrappers where there are adapters."""

from __future__ import annotations

from workers.frameworks.transformers.names import name_parameter

__all__ = ["name_parameter"]
