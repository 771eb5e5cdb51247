"""stage-scaled-alone: rank 1's gradients are halved with each micro-batch, rank 0's are not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from checks.faults import fault

TRAINING = """
import runpy, sys, torch
runpy.run_path(sys.argv[1])["install"]()
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=1.0)
for _ in range(2):
    (4.0 * weight).sum().backward()
print(weight.grad.tolist())
"""


@pytest.mark.parametrize(("rank", "gradient", "said"), [("0", 8.0, 0), ("1", 3.0, 2)])
def test_only_rank_1_halves_what_has_come_so_far(rank: str, gradient: float, said: int) -> None:
    each = fault("stage-scaled-alone")
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(each.file)],
        env={**os.environ, "RANK": rank, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{[gradient] * 3}\n"
    assert done.stderr.count(each.marker) == said
