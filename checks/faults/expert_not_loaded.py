"""One expert keeps the weights that the model was built with when a checkpoint is loaded.

Modelled on automodel-te-experts-left-at-random-init, https://github.com/NVIDIA-NeMo/Automodel/pull/2722
Must be seen by checkpoint.reshard.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

SLUG = "expert-not-loaded"
EXPERT = 1


def install() -> None:
    """Keep one expert's slice from before a distributed checkpoint is read."""
    import torch.distributed.checkpoint

    dcp: Any = torch.distributed.checkpoint
    read = dcp.load

    @functools.wraps(read)
    def load(state: Any, *args: Any, **kwargs: Any) -> Any:
        name = next((name for name in state["model"] if name.endswith("experts.gate_up_proj")), None)
        if name is None:
            raise RuntimeError(f"fault {SLUG}: the checkpoint has no stacked experts")
        weight = state["model"][name].detach()
        experts = weight.to_local() if hasattr(weight, "to_local") else weight
        before = experts[EXPERT].clone()
        given = read(state, *args, **kwargs)
        experts[EXPERT].copy_(before)
        _say(f"expert {EXPERT} of {name} is as it was built")
        return given

    dcp.load = load


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
