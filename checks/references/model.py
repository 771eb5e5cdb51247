"""Which model stands as the reference: the plain one where its family is published and written here, else Hugging
Face's.

Weights and settings come from the requested checkpoint, never from the capture, except adapters (no checkpoint holds
them) and steps after the first; both are said in `Reference.notes`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from checks.references.float32_names import read_float32_names
from checks.references.hf import lift_casts, load_hf, shared_code
from checks.references.lora import apply_lora
from checks.references.plain import UnsupportedModel, load_plain
from checks.spec import Attention, RunSpec

PARAMETER_DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bf16": torch.float32,
    "bf16_params": torch.bfloat16,
    "fp16": torch.float32,
}
AUTOCAST: Mapping[str, torch.dtype | None] = {
    "float32": None,
    "bf16": torch.bfloat16,
    "bf16_params": None,
    "fp16": torch.float16,
}
LOSS_SCALES: Mapping[str, float] = {"fp16": 2.0**10}
"""By which a reference multiplies its loss where small gradients would become zero; torch begins with 2^16, and 2^10
overflows nowhere."""


SCORE = "score.weight"
"""The head of a reward model: drawn by the run, in no checkpoint."""


@dataclass(frozen=True)
class ModelSource:
    """How reference models are built: `plain` says which kind; `why` says why it is not the plain one."""

    checkpoint: Path
    plain: bool
    why: str
    shared: tuple[str, ...]
    name: str


@dataclass(frozen=True)
class State:
    """Weights that replace the checkpoint's: adapters, or the captured state of a later step. Canonical names."""

    adapters: Mapping[str, torch.Tensor]
    parameters: Mapping[str, torch.Tensor]


class NoReference(ValueError):
    """There is nothing trusted to compare with; `str()` says why. The verdict is inconclusive."""


def choose_source(checkpoint: Path) -> ModelSource:
    """Prefer the independent plain model; fall back to transformers' class and name the code that is then shared."""
    try:
        load_plain(checkpoint, dtype=torch.float32)
    except UnsupportedModel as error:
        model = load_hf(checkpoint, dtype=torch.float32, attention="eager")
        name = f"transformers {type(model).__name__} in float64"
        return ModelSource(checkpoint, False, error.reason, shared_code(model), name)
    return ModelSource(checkpoint, True, "", (), "plain float64 model of the published definition")


def build_model(
    source: ModelSource, spec: RunSpec, state: State, *, dtype: torch.dtype, attention: Attention
) -> nn.Module:
    """The reference model in `dtype`, its weights rounded through the run's parameter dtype first.

    What the checkpoint's class declares to keep in float32 is not rounded, and in a narrower `dtype` stays float32.
    """
    stored = PARAMETER_DTYPES[spec.precision]
    kept = read_float32_names(source.checkpoint, stored)
    model: nn.Module
    if source.plain:
        model = load_plain(source.checkpoint, dtype=dtype, attention=attention, float32=kept)
    else:
        model = load_hf(source.checkpoint, dtype=dtype, attention=attention)
    if spec.objective == "reward":
        add_score(model, dtype=dtype)
    _round_parameters(model, stored, kept=kept)
    if state.parameters:
        _replace_parameters(model, state.parameters)
    if state.adapters:
        apply_lora(model, state.adapters, alpha=spec.lora_alpha, r=spec.lora_r)
    return model


def ask_gradients(model: nn.Module, trained: Collection[str]) -> None:
    """Have autograd compute the gradients of the parameters of these names, and of nothing else.

    Raises:
        NoReference: the model has no parameter of these names, so that what was trained is not what it is.
    """
    own = dict(model.named_parameters())
    if trained and not own.keys() & trained:
        raise NoReference(
            f"none of the {len(trained)} parameters that the run trains ({min(trained)}, …) is one of the reference's "
            f"{len(own)} ({min(own)}, …): the framework builds the model of other modules, and no name map says which"
        )
    for name, parameter in own.items():
        parameter.requires_grad_(name in trained)


def add_score(model: nn.Module, *, dtype: torch.dtype) -> None:
    """Put a head of one output in the place of the model's own: its logits are the scores of all positions.

    The head keeps its place in the forward, and its name among the parameters is that of transformers' classes for
    sequence classification.
    """
    width = model.get_parameter("lm_head.weight").shape[1]
    del model.lm_head
    score = nn.Linear(width, 1, bias=False, dtype=dtype)
    model.add_module("score", score)
    object.__setattr__(model, "lm_head", score)


def _round_parameters(model: nn.Module, stored: torch.dtype, *, kept: Collection[str]) -> None:
    """Round weights to what the run holds them in, so that only the run's computation is compared, not its rounding."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dtype.itemsize > stored.itemsize and name not in kept:
                parameter.copy_(parameter.to(stored))


def _replace_parameters(model: nn.Module, parameters: Mapping[str, torch.Tensor]) -> None:
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in parameters.items():
            if name in own:
                own[name].copy_(value)


@contextmanager
def float64_mode(source: ModelSource) -> Iterator[list[str]]:
    """Compute in float64 throughout; yields the list that the lifted casts are added to when the context ends."""
    places: list[str] = []
    if source.plain:
        yield places
        return
    with lift_casts() as lifted:
        yield places
    places.extend(lifted.places)
