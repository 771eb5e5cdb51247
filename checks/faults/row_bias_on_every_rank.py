"""The bias of each row-parallel layer is added once a rank, not once.

With one rank nothing is wrong.
Modelled on https://github.com/huggingface/text-generation-inference/issues/1036
Must be seen by parallel.gradients.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

SLUG = "row-bias-on-every-rank"


def install() -> None:
    """Add the bias again, behind each layer as it is divided by its columns."""
    import torch
    import torch.distributed.tensor.parallel as parallel

    prepare = parallel.RowwiseParallel._apply

    @functools.wraps(prepare)
    def _apply(self: Any, module: Any, mesh: Any) -> Any:
        divided = prepare(self, module, mesh)
        if isinstance(divided, torch.nn.Linear) and divided.bias is not None:
            divided.register_forward_hook(_add_again)
        return divided

    setattr(parallel.RowwiseParallel, "_apply", _apply)  # noqa: B010 (a method of a typed class)


def _add_again(module: Any, args: Any, output: Any) -> Any:
    ranks = _place()[1]
    _say(f"a bias of {module.bias.numel()} elements is added {ranks} times")
    return output + (ranks - 1) * module.bias.to_local()


def _place() -> tuple[int, int]:
    """This process's rank and the number of ranks: (0, 1) where it is alone."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
