"""Both kinds of reference on one batch: loss and gradients in float64, and how far apart they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from checks.references.hf import lift_casts, load_hf
from checks.references.loss import count, objective, shift_labels, token_losses
from checks.references.plain import load_plain
from tests.references.checkpoints import draw_batch

TOLERANCE = 1e-10
SEEN = 1e3 * TOLERANCE
"""A changed constant must move some gradient by more."""

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
YARN_FULL = {**YARN, "beta_fast": 6.0, "beta_slow": 0.5, "truncate": False, "mscale": 1.4, "mscale_all_dim": 0.7}

Step = tuple[float, dict[str, torch.Tensor]]
"""The loss, and every gradient by its parameter's name."""


def run_step(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor, **inputs: Any) -> Step:
    """Loss and gradients of the mean over counted tokens, for either kind of model."""
    with lift_casts():
        output = model(ids, **inputs)
        logits = output if isinstance(output, torch.Tensor) else output.logits
        targets = shift_labels(labels)
        loss = objective(token_losses(logits, targets), targets, denominator=count(targets))
        loss.backward()  # type: ignore[no-untyped-call]
    assert logits.dtype == torch.float64
    return loss.item(), {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def run_plain(checkpoint: Path, ids: torch.Tensor, *, attention: Any = "eager", **inputs: Any) -> Step:
    """The plain model's step; every token but the first counts."""
    return run_step(load_plain(checkpoint, dtype=torch.float64, attention=attention), ids, ids, **inputs)


def run_class(checkpoint: Path, ids: torch.Tensor, *, attention: Any = "eager", **inputs: Any) -> Step:
    """The same by transformers' class."""
    return run_step(load_hf(checkpoint, dtype=torch.float64, attention=attention), ids, ids, **inputs)


def compare_steps(
    checkpoint: Path, attention: Any, ids: torch.Tensor, labels: torch.Tensor, **inputs: Any
) -> tuple[float, float]:
    """Relative difference of the loss, and the largest of any gradient, between the two references.

    Where transformers has no sdpa for the family, its eager attention is compared with both of the plain model's.
    """
    ours = run_step(load_plain(checkpoint, dtype=torch.float64, attention=attention), ids, labels, **inputs)
    kept: Any = "eager" if read_config_json(checkpoint)["model_type"] == "gpt_oss" else attention
    theirs = run_step(load_hf(checkpoint, dtype=torch.float64, attention=kept), ids, labels, **inputs)
    return differ(ours, theirs)


def differ(ours: Step, theirs: Step) -> tuple[float, float]:
    """Relative difference of the loss, and the largest of any gradient; every gradient must be there and not be 0."""
    assert list(ours[1]) != []
    assert sorted(ours[1]) == sorted(theirs[1])
    assert all(float(gradient.norm()) > 0 for gradient in theirs[1].values())
    errors = [float((ours[1][name] - gradient).norm() / gradient.norm()) for name, gradient in theirs[1].items()]
    return abs(ours[0] - theirs[0]) / abs(theirs[0]), max(errors)


def pad_batch(side: str, *, length: int = 24) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(2, length) ids, labels and mask, nine tokens of the second row padded on one side."""
    ids, mask = draw_batch(length=length), torch.ones(2, length, dtype=torch.long)
    padding = slice(0, 9) if side == "left" else slice(length - 9, length)
    ids[1, padding], mask[1, padding] = 0, 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[1, 9 if side == "left" else 0] = -100  # the token that only padding could predict
    return ids, labels, mask


def read_config_json(checkpoint: Path) -> dict[str, Any]:
    """The checkpoint's config.json."""
    raw: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    return raw


def edit_config(checkpoint: Path, **settings: Any) -> Path:
    """Change settings of the checkpoint's config.json; None takes one out."""
    raw = {**read_config_json(checkpoint), **settings}
    kept = {name: value for name, value in raw.items() if value is not None}
    (checkpoint / "config.json").write_text(json.dumps(kept))
    return checkpoint


def copy_checkpoint(checkpoint: Path, directory: Path, **settings: Any) -> Path:
    """A checkpoint with the same weights whose config.json has other settings; None takes one out."""
    (directory / "config.json").write_text((checkpoint / "config.json").read_text())
    (directory / "model.safetensors").symlink_to(checkpoint / "model.safetensors")
    return edit_config(directory, **settings)
