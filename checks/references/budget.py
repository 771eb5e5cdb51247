"""What a reference costs in memory, stated before it is computed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from checks.captures.files import read_header
from checks.spec import POLICY_OBJECTIVES, Objective

REFERENCE_BYTES = 32
"""A parameter's weight, float64 gradient, its copy for comparison, and one own-precision model with gradient and
rounding.
"""

INITIAL_BYTES = 12
"""More where the objective compares with the initial model: its weights in float64, and in the run's own precision."""

TRACED_TENSORS = 3
"""Input, output and output gradient of a module."""

FLOAT32_BYTES = 4

BUDGET_SHARE = 0.8
"""Of the memory that is free now."""

CURVE_STEPS = 20
"""From so many steps on a run is there for its curve; that of a shorter one is watched where it costs little."""

TRAINING_WORK = 100_000_000
"""Steps times parameters of a reference that is trained about ten times over."""

SHORT_WORK = 10_000_000
"""The same of a run that is too short to be there for its curve."""


class OverBudget(ValueError):
    """The reference would not fit; `str()` says by how much and what to do."""


def count_parameters(checkpoint: Path) -> int:
    """Number of stored parameters of a checkpoint's safetensors files."""
    return sum(
        stored.numel for file in sorted(checkpoint.glob("*.safetensors")) for stored in read_header(file).values()
    )


def reference_memory(checkpoint: Path, *, objective: Objective = "sft") -> int:
    """Bytes that a whole-model float64 reference is expected to need, without activations."""
    more = INITIAL_BYTES if objective in ("dpo", "kto", *POLICY_OBJECTIVES) else 0
    return count_parameters(checkpoint) * (REFERENCE_BYTES + more)


def estimate_trace_bytes(checkpoint: Path, *, tokens: int) -> int:
    """Bytes of every module's input, output and output gradient over one step, from the config's sizes.

    A decoder layer holds about 14 tensors of hidden_size and 5 of intermediate_size a token.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    config = config.get("text_config", config)
    hidden = _read_size(config, "hidden_size", "n_embd", "d_model")
    wide = _read_size(config, "intermediate_size", "n_inner", "ffn_dim", default=4 * hidden)
    layers = _read_size(config, "num_hidden_layers", "n_layer")
    return tokens * layers * (14 * hidden + 5 * wide) * TRACED_TENSORS * FLOAT32_BYTES


def _read_size(config: Mapping[str, Any], *names: str, default: int = 1) -> int:
    """A size under one of the names that families give it: GPT-2's `n_embd` is the `hidden_size` of later ones."""
    return next((int(config[name]) for name in names if config.get(name)), default)


def check_memory(checkpoint: Path, *, objective: Objective = "sft") -> None:
    """Refuse a reference that would not fit into the free memory.

    Raises:
        OverBudget: with the need, the budget and the remedy.
    """
    need = reference_memory(checkpoint, objective=objective)
    budget = int(psutil.virtual_memory().available * BUDGET_SHARE)
    if need > budget:
        raise OverBudget(
            f"the float64 reference needs about {need / 1e9:.1f} GB, and {budget / 1e9:.1f} GB are free; "
            "validate a shrunk model: give its config with fewer layers and smaller sizes as --model"
        )


def check_work(checkpoint: Path, *, steps: int) -> None:
    """Refuse to train a reference over so many steps that it would take hours, or minutes where nobody asked for it.

    Raises:
        OverBudget: with the work, the budget and the remedy.
    """
    parameters = count_parameters(checkpoint)
    budget = TRAINING_WORK if steps >= CURVE_STEPS else SHORT_WORK
    if steps * parameters > budget:
        raise OverBudget(
            f"a reference trained over {steps} steps of {parameters:,} parameters is beyond the budget of "
            f"{budget:.0e} steps × parameters; set steps={max(TRAINING_WORK // parameters, 1)}, or validate a "
            "shrunk model: give its config with fewer layers and smaller sizes as --model"
        )
