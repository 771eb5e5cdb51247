"""The plain loop names parameters as transformers does: it trains transformers' models."""

from __future__ import annotations

from workers.frameworks.transformers.names import name_parameter

__all__ = ["name_parameter"]
