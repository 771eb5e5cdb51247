"""Optimizer and scheduler states of a saved checkpoint, as Hugging Face's Trainer and many loops save them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from plumbline_capture.format import canonical_name, json_value

OPTIMIZER_FILE = "optimizer.pt"
SCHEDULER_FILE = "scheduler.pt"


def read_optimizer(directory: Path, groups: Sequence[Sequence[str]]) -> Iterator[Tuple[str, str, torch.Tensor]]:
    """Yield (parameter, field, value) of every state of `optimizer.state_dict()`; nothing where there is no file.

    A state dict numbers parameters through its groups (https://pytorch.org/docs/stable/generated/
    torch.optim.Optimizer.state_dict.html). Names are its own where it has them, else those of the recorded optimizer's
    `groups`, else `unnamed.GROUP.INDEX`. Raises what `torch.load(weights_only=True)` raises.
    """
    path = directory / OPTIMIZER_FILE
    if not path.is_file():
        return
    loaded = _load(path)
    names = _names(loaded["param_groups"], groups)
    for number, state in loaded["state"].items():
        for field, value in state.items():
            if isinstance(value, (int, float)):
                value = torch.tensor(value, dtype=torch.float64)
            if isinstance(value, torch.Tensor):
                yield names.get(number, f"unnamed.{number}"), str(field), value


def read_scheduler(directory: Path) -> Optional[Dict[str, Any]]:
    """Return the numbers of `scheduler.state_dict()`, or None where there is no file."""
    path = directory / SCHEDULER_FILE
    if not path.is_file():
        return None
    kept: Dict[str, Any] = {}
    for key, value in _load(path).items():
        values: List[Any] = value if isinstance(value, list) else [value]
        if all(isinstance(item, (bool, int, float)) for item in values):
            kept[str(key)] = json_value(value)
    return kept


def _names(saved: Sequence[Dict[str, Any]], recorded: Sequence[Sequence[str]]) -> Dict[Any, str]:
    names: Dict[Any, str] = {}
    for position, group in enumerate(saved):
        own = group.get("param_names")
        known = recorded[position] if position < len(recorded) else ()
        for index, number in enumerate(group["params"]):
            if own is not None:
                names[number] = canonical_name(str(own[index]))
            elif len(known) == len(group["params"]):
                names[number] = known[index]
            else:
                names[number] = f"unnamed.{position}.{index}"
    return names


def _load(path: Path) -> Any:
    # mmap: moments are twice the parameters, and are looked at one by one
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
