"""The optimizer's state is read when a run is resumed, and never put into the optimizer.

Moments and step counts begin at zero again, and the groups keep the settings that they were made with.

Modelled on automodel-optimizer-scheduler-state-not-restored, https://github.com/NVIDIA-NeMo/Automodel/issues/763
Must be seen by checkpoint.resume.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

SLUG = "optimizer-not-restored"


def install() -> None:
    """Let `load_state_dict` of every optimizer drop a state that holds anything."""
    import torch

    load = torch.optim.Optimizer.load_state_dict

    @functools.wraps(load)
    def load_state_dict(self: Any, state_dict: Any) -> None:
        if state_dict["state"]:
            _say(f"the state of {len(state_dict['state'])} parameters is dropped")
        else:  # an optimizer that has not stepped is moved to its device in this way
            load(self, state_dict)

    setattr(torch.optim.Optimizer, "load_state_dict", load_state_dict)  # noqa: B010 (a method of a typed class)


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
