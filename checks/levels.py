"""The levels of checks, from the environment to whole runs, in reading order; a check's name begins with its level."""

from __future__ import annotations

from collections.abc import Mapping

LEVELS: Mapping[str, str] = {
    "run": "The run as a whole",
    "environment": "Environment",
    "data": "Data",
    "step": "Training step",
    "model": "Model definition",
    "checkpoint": "Checkpoints and resuming",
    "eval": "Evaluation",
    "serving": "Serving",
    "transfer": "Weights on their way to an engine",
    "parallel": "Parallel layouts",
    "memory": "Memory",
    "convergence": "Whole runs",
}
"""level → its title"""
