"""A command's log is read where it is in the Trainer's form: a file, or a printed record a step."""

from __future__ import annotations

from workers.frameworks.transformers.logs import parse_log, read_log

__all__ = ["parse_log", "read_log"]
