"""Plain torch modules under the names of Transformer Engine, which is built for GPUs only.

Megatron's Transformer Engine layers, the only ones that mcore-bridge takes, then run on a CPU. A run with it says
nothing about Transformer Engine's kernels, its precision or its own parallel communication.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPLACES: tuple[str, ...] = ("transformer_engine.pytorch",)


def install() -> None:
    """Let `import transformer_engine` find the stand-in."""
    sys.path.insert(0, str(Path(__file__).with_name("stand_ins")))
