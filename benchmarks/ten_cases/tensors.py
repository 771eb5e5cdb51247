"""The 51 tensors of one step that the published rules compare: module outputs, parameter gradients, and the loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from checks.captures.capture import Capture, TensorRecord

STEP = 1
LEFT_OUT = frozenset({"", "model", "model.rotary_emb"})
"""the root, whose output is lm_head's; the decoder, whose output is model.norm's; the table of rotary angles"""


@dataclass(frozen=True)
class Tensors:
    """`outputs`: module → (B, S, …) in order of completion; `gradients`: parameter → gradient before clipping; `loss`:
    the scalar that was back-propagated, summed over micro-batches. Dtypes are the run's own."""

    outputs: Mapping[str, torch.Tensor]
    gradients: Mapping[str, torch.Tensor]
    loss: torch.Tensor

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor, in the order in which a step produces them: outputs, the loss, gradients."""
        for module, output in self.outputs.items():
            yield f"output of {module}", output
        yield "loss", self.loss
        for parameter, gradient in self.gradients.items():
            yield f"gradient of {parameter}", gradient

    def pairs(self, baseline: Tensors) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """(name, candidate, baseline) of every tensor; both must hold the same."""
        for (name, candidate), (other, reference) in zip(self.named(), baseline.named(), strict=True):
            if name != other:
                raise ValueError(f"{name} of one run stands against {other} of the other")
            yield name, candidate, reference


def read_tensors(capture: Capture) -> Tensors:
    """Read one captured step; the outputs of its micro-batches are put together along the batch."""
    indices = [record.index for record in capture.micro_batches(STEP)]
    parts = [capture.micro_batch_tensors(STEP, "module_output", index) for index in indices]
    outputs = {
        module: torch.cat([_whole(part[module]) for part in parts]) for module in parts[0] if module not in LEFT_OUT
    }
    gradients = {name: _whole(record) for name, record in capture.tensors(STEP, "gradient").items()}
    losses = [record.backward for record in capture.micro_batches(STEP) if record.backward is not None]
    return Tensors(outputs, gradients, torch.tensor(sum(losses), dtype=torch.float32))


def _whole(record: TensorRecord) -> torch.Tensor:
    full = record.read("full")
    if full is None:
        raise ValueError(f"{record.name} was not recorded in full")
    return full
