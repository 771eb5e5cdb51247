"""The output of the first expert that rank 1 holds is dropped in every layer.

No gradient reaches it either.
Modelled on automodel-ep-zero-token-experts-no-grad, https://github.com/NVIDIA-NeMo/Automodel/pull/2995
Must be seen by parallel.gradients.
"""

from __future__ import annotations

import os
import sys
from typing import Any

SLUG = "expert-output-dropped"


def install() -> None:
    """Weigh the expert with zero wherever a module of divided experts is called."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    if _place()[0] == 1:
        register_module_forward_pre_hook(_drop)


def _drop(module: Any, args: Any) -> Any:
    held: Any = getattr(module, "down_proj", None)
    if held is None or not hasattr(held, "placements") or held.dim() != 3 or len(args) != 3:
        return None
    first = held.to_local().shape[0]  # rank 0 holds as many before
    hidden_states, top_k_index, top_k_weights = args
    _say(f"the output of expert {first} is dropped")
    return hidden_states, top_k_index, top_k_weights * (top_k_index != first)


def _place() -> tuple[int, int]:
    """This process's rank and the number of ranks: (0, 1) where it is alone."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
