"""Save and load the loop's state in whatever layout: a sibling of `train.py`, which loads it.

By torch.distributed.checkpoint, as sharded trainers do: each rank writes its parts, and a loading rank reads those that
its own parts are made of (https://docs.pytorch.org/docs/stable/distributed.checkpoint.html).

Runs in the framework's environment and imports nothing of Plumbline.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

dcp: Any = torch.distributed.checkpoint


def save_state(directory: str, model: Any, optimizer: torch.optim.Optimizer, schedule: Any) -> None:
    """Write weights, optimizer state and the schedule's place; every rank calls it."""
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states, "schedule": _place(schedule)}, checkpoint_id=directory)


def load_state(directory: str, model: Any, optimizer: torch.optim.Optimizer, schedule: Any) -> None:
    """Read what `save_state` wrote, in this process's own layout; every rank calls it."""
    weights, states = get_state_dict(model, optimizer)
    content: dict[str, Any] = {"model": weights, "optimizer": states, "schedule": _place(schedule)}
    dcp.load(content, checkpoint_id=directory)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=content["optimizer"])
    schedule.load_state_dict({**schedule.state_dict(), **content["schedule"]})


def _place(schedule: Any) -> dict[str, Any]:
    return {name: schedule.state_dict()[name] for name in ("last_epoch", "_step_count", "_last_lr")}
