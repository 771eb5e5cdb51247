"""The slices that two ranks have saved of one weight change places when another layout loads them.

The shapes fit, so that nothing complains.
Modelled on automodel-transposed-shard-placement, https://github.com/NVIDIA-NeMo/Automodel/pull/1691
Must be seen by checkpoint.reshard.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

SLUG = "shards-swapped-on-load"


def install() -> None:
    """Exchange the halves of one weight after a distributed checkpoint was read."""
    import torch.distributed.checkpoint

    dcp: Any = torch.distributed.checkpoint
    read = dcp.load

    @functools.wraps(read)
    def load(state: Any, *args: Any, **kwargs: Any) -> Any:
        given = read(state, *args, **kwargs)
        _exchange(state["model"])
        return given

    dcp.load = load


def _exchange(weights: Any) -> None:
    name = next((name for name in weights if name.endswith("q_proj.weight")), None)
    if name is None:
        raise RuntimeError(f"fault {SLUG}: the checkpoint has no q_proj.weight")
    weight = weights[name].detach()
    divided = hasattr(weight, "full_tensor")
    whole = weight.full_tensor() if divided else weight  # every rank takes part
    swapped = whole.roll(whole.shape[0] // 2, 0)
    if divided:
        from torch.distributed.tensor import distribute_tensor

        own = distribute_tensor(swapped, weight.device_mesh, weight.placements).to_local()
        weight.to_local().copy_(own)
    else:
        weight.copy_(swapped)
    _say(f"the halves of {name} change places")


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
