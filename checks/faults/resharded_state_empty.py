"""Another layout loads the weights of a checkpoint, and leaves the moments of its optimizer at zero.

Modelled on automodel-optimizer-scheduler-state-not-restored, https://github.com/NVIDIA-NeMo/Automodel/issues/763
Must be seen by checkpoint.reshard.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

SLUG = "resharded-state-empty"


def install() -> None:
    """Put zeros for what was read of the optimizer's state after a distributed checkpoint was read."""
    import torch.distributed.checkpoint

    dcp: Any = torch.distributed.checkpoint
    read = dcp.load

    @functools.wraps(read)
    def load(state: Any, *args: Any, **kwargs: Any) -> Any:
        given = read(state, *args, **kwargs)
        tensors = [value for fields in state["optimizer"]["state"].values() for value in fields.values()]
        for tensor in tensors:
            own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            own.zero_()
        _say(f"{len(tensors)} states of the optimizer are zero")
        return given

    dcp.load = load


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
