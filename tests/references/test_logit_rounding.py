"""The reference of a loss whose gradient by the logits is rounded: by hand on a table of logits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from checks.references.batch import Document, MicroBatch
from checks.references.kept import IGNORED
from checks.references.step import LogitRounding, run_step

TARGETS = torch.tensor([[3, 1, 4, 1, IGNORED]])
IDS = torch.tensor([[2, 3, 1, 4, 1]])


class Table(nn.Module):
    """Logits that are parameters: (positions, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(5, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64))


def gradient_of(rounding: LogitRounding | None) -> torch.Tensor:
    micro = MicroBatch(IDS, TARGETS, TARGETS != IGNORED, None, None, (Document(0, 0, 5),), "mask", None)
    model = Table()
    result = run_step(
        model, (micro,), denominator=4, forward=lambda model, batch: model.logits[None], rounding=rounding
    )
    return result.gradients["logits"]


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_scaled_gradient_by_the_logits_is_rounded_and_nothing_else(scale: float) -> None:
    exact = gradient_of(None)
    logits = Table().logits.detach()
    by_hand = (torch.softmax(logits[:4], -1) - nn.functional.one_hot(TARGETS[0, :4], 7)) / 4
    assert torch.allclose(exact[:4], by_hand, atol=1e-15)
    found = gradient_of(LogitRounding(torch.bfloat16, scale))
    assert torch.equal(found, (exact * scale).to(torch.bfloat16).double() / scale)
    relative = ((found - exact).norm() / exact.norm()).item()
    assert 2.0**-12 < relative < 2.0**-8
