"""The plain loop writes its log as the Trainer does, a record a step."""

from __future__ import annotations

from workers.frameworks.transformers.logs import parse_log, read_log

__all__ = ["parse_log", "read_log"]
