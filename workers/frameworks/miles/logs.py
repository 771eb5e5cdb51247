"""Reading the log of the loop around Miles' training step, which writes the Trainer's trainer_state.json."""

from __future__ import annotations

from workers.frameworks.transformers.logs import STATE_FILE, parse_log, read_log

__all__ = ["STATE_FILE", "parse_log", "read_log"]
