"""Reading TRL's log: SFTTrainer is a Trainer and writes the same trainer_state.json, with more numbers an entry."""

from __future__ import annotations

from workers.frameworks.transformers.logs import STATE_FILE, parse_log, read_log

__all__ = ["STATE_FILE", "parse_log", "read_log"]
