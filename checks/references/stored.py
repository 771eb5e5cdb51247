"""References kept on disk: one safetensors file each, named by all that decides it.

A reference depends on the checkpoint, the batch with its documents and counted targets, the routers' choices, what is
trained, the config in force, adapters and later weights, the precision, and on this code and its libraries. Their
SHA-256 is the key: the same model, batch and settings give the same reference, whichever framework ran.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from checks import tolerance
from checks.captures.blocks import Blocks
from checks.captures.capture import Capture
from checks.captures.differences import Difference, Projection
from checks.references.batch import MicroBatch
from checks.references.model import ModelSource, State
from checks.references.reference import Reference, compute_reference, refuse_dropout, root_config, rounding_of
from checks.references.router_weights import WeightError, read_weights
from checks.references.routing import ChoiceError, read_choices
from checks.references.selection import read_selections
from checks.references.variants import Variant
from checks.spec import RunSpec

FORMAT = 4
"""Raised when the file or what a reference means changes: older files are then computed again."""

_SCALARS = ("error", "norm", "other_norm", "dot", "square", "other_square")
_SPEC_FIELDS = (
    *("precision", "attention", "lora_r", "lora_alpha", "objective", "beta"),
    *("grpo_loss", "temperature", "max_completion_length"),
)
"""What of a run spec reaches the reference beside the batch and the weights."""


class ReferenceStore:
    """A directory of references. Called like `compute_reference`, it computes only what it does not hold.

    `used`: step → (key, whether it was there already), in the order of the calls.
    """

    def __init__(self, directory: Path, *, revision: str) -> None:
        self.directory = directory
        self.revision = revision
        self.used: dict[int, tuple[str, bool]] = {}

    def __call__(
        self,
        spec: RunSpec,
        capture: Capture,
        micro_batches: Sequence[MicroBatch],
        *,
        source: ModelSource,
        state: State,
        step: int,
        notes: Sequence[str] = (),
    ) -> Reference:
        """The stored reference of this step, else a computed one that is then stored. Raises as compute_reference."""
        refuse_dropout(capture, step)  # one that is stored was computed on a run without
        key = reference_key(
            spec, capture, micro_batches, source=source, state=state, step=step, notes=notes, revision=self.revision
        )
        file = self.locate(key)
        held = file.is_file()
        if held:
            reference = read_reference(file, source=source, micro_batches=micro_batches)
        else:
            reference = compute_reference(
                spec, capture, micro_batches, source=source, state=state, step=step, notes=notes
            )
            write_reference(reference, file)
        self.used[step] = (key, held)
        return reference

    def locate(self, key: str) -> Path:
        return self.directory / f"{key}.safetensors"


def reference_key(
    spec: RunSpec,
    capture: Capture,
    micro_batches: Sequence[MicroBatch],
    *,
    source: ModelSource,
    state: State,
    step: int,
    notes: Sequence[str],
    revision: str,
) -> str:
    """SHA-256 in hex of everything that the reference of this step is computed from."""
    digest = hashlib.sha256()

    def add(name: str, value: object) -> None:
        digest.update(json.dumps([name, value], sort_keys=True, default=str).encode())

    def add_tensor(name: str, tensor: torch.Tensor) -> None:
        add(name, [str(tensor.dtype), list(tensor.shape)])
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())

    add("format", [FORMAT, tolerance.VERSION, version("plumbline"), torch.__version__, version("transformers")])
    add("model", [revision, source.plain, source.name])
    add("spec", {name: getattr(spec, name) for name in _SPEC_FIELDS})
    add("step", [step, sorted(capture.step(step).trainable), dict(root_config(capture, step)), list(notes)])
    rounding = rounding_of(spec, capture, step)
    add("rounding", None if rounding is None else [str(rounding.dtype), rounding.scale])
    for index, micro in enumerate(micro_batches):
        add("documents", [index, [asdict(document) for document in micro.documents], micro.boundaries])
        add_tensor("input_ids", micro.input_ids)
        add_tensor("counted", micro.counted)
        for name, tensor in sorted(micro.given.items()):
            add_tensor(name, tensor)
    chosen = {**read_choices(capture, step, micro_batches), **read_selections(capture, step, micro_batches)}
    for path, parts in sorted(chosen.items()):
        for part in parts:
            add_tensor(path, part)
    for path, weights in sorted(read_weights(capture, step, micro_batches).items()):
        for part in weights:
            add_tensor(path, part)
    for group in (state.adapters, state.parameters):
        for name, tensor in sorted(group.items()):
            add_tensor(name, tensor)
    return digest.hexdigest()


def write_reference(reference: Reference, file: Path) -> None:
    """Write a reference whole or not at all. The routers' scores of the variants are left out: they were judged."""
    tensors: dict[str, torch.Tensor] = {}
    for index, losses in enumerate(reference.token_losses):
        tensors[f"token_losses/{index}"] = losses
    described: dict[str, Any] = {
        "step": reference.step,
        "denominator": reference.denominator,
        "loss": reference.loss.hex(),
        "auxiliary": reference.auxiliary.hex(),
        "token_losses": len(reference.token_losses),
        "choices": [asdict(choice) for choice in reference.choices],
        "router_weights": [asdict(weights) for weights in reference.router_weights],
        "lifted_casts": reference.lifted_casts,
        "notes": reference.notes,
        "epsilon": reference.epsilon,
        "variants": [{"name": variant.name, "loss": variant.loss.hex()} for variant in reference.variants],
    }
    for group in ("gradients", "weights", "auxiliary_gradients", "rounded_gradients"):
        described[group] = [_take(tensors, group, projection) for projection in getattr(reference, group).values()]
    for number, variant in enumerate(reference.variants):
        _take_variant(tensors, f"variant/{number}", variant, list(reference.gradients))
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.tmp-{os.getpid()}")
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in tensors.items()},
        aside,
        metadata={"reference": json.dumps(described)},
    )
    aside.replace(file)


def _take(tensors: dict[str, torch.Tensor], group: str, projection: Projection) -> dict[str, Any]:
    prefix = f"{group}/{projection.name}"
    if projection.full is not None:
        tensors[f"{prefix}/full"] = projection.full
    tensors[f"{prefix}/sketch"] = projection.sketch
    tensors[f"{prefix}/block_norms"] = projection.block_norms
    return {"name": projection.name, "blocks": asdict(projection.blocks), "norm": projection.norm.hex()}


def _take_variant(tensors: dict[str, torch.Tensor], prefix: str, variant: Variant, names: Sequence[str]) -> None:
    tensors[f"{prefix}/token_errors"] = variant.token_errors
    for name in names:
        found = variant.differences.get(name)
        if found is not None:
            scalars = [getattr(found, field) for field in _SCALARS]
            tensors[f"{prefix}/{name}/scalars"] = torch.tensor(scalars, dtype=torch.float64)
            tensors[f"{prefix}/{name}/block_errors"] = found.block_errors
            tensors[f"{prefix}/{name}/block_norms"] = found.block_norms


def read_reference(file: Path, *, source: ModelSource, micro_batches: Sequence[MicroBatch]) -> Reference:
    """Read what `write_reference` wrote, for the batch and model that its key was made from."""
    with safe_open(file, framework="pt") as stored:
        described = json.loads(stored.metadata()["reference"])
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  # not a mapping
    return Reference(
        source=source,
        step=described["step"],
        micro_batches=tuple(micro_batches),
        denominator=described["denominator"],
        loss=float.fromhex(described["loss"]),
        auxiliary=float.fromhex(described["auxiliary"]),
        token_losses=tuple(tensors[f"token_losses/{index}"] for index in range(described["token_losses"])),
        gradients=_give(tensors, "gradients", described["gradients"]),
        weights=_give(tensors, "weights", described["weights"]),
        variants=tuple(
            _give_variant(tensors, f"variant/{number}", entry, described["gradients"])
            for number, entry in enumerate(described["variants"])
        ),
        choices=tuple(ChoiceError(**choice) for choice in described["choices"]),
        lifted_casts=tuple(described["lifted_casts"]),
        notes=tuple(described["notes"]),
        epsilon=described["epsilon"],
        router_weights=tuple(WeightError(**weights) for weights in described["router_weights"]),
        auxiliary_gradients=_give(tensors, "auxiliary_gradients", described["auxiliary_gradients"]),
        rounded_gradients=_give(tensors, "rounded_gradients", described["rounded_gradients"]),
    )


def _give(
    tensors: Mapping[str, torch.Tensor], group: str, entries: Sequence[Mapping[str, Any]]
) -> dict[str, Projection]:
    found = {}
    for entry in entries:
        prefix = f"{group}/{entry['name']}"
        found[entry["name"]] = Projection(
            name=entry["name"],
            blocks=Blocks(**entry["blocks"]),
            full=tensors.get(f"{prefix}/full"),
            sketch=tensors[f"{prefix}/sketch"],
            norm=float.fromhex(entry["norm"]),
            block_norms=tensors[f"{prefix}/block_norms"],
        )
    return found


def _give_variant(
    tensors: Mapping[str, torch.Tensor], prefix: str, entry: Mapping[str, Any], gradients: Sequence[Mapping[str, Any]]
) -> Variant:
    differences = {}
    for gradient in gradients:
        name = gradient["name"]
        scalars = tensors.get(f"{prefix}/{name}/scalars")
        if scalars is not None:
            differences[name] = Difference(
                **dict(zip(_SCALARS, scalars.tolist(), strict=True)),
                block_errors=tensors[f"{prefix}/{name}/block_errors"],
                block_norms=tensors[f"{prefix}/{name}/block_norms"],
            )
    return Variant(
        entry["name"], float.fromhex(entry["loss"]), tensors[f"{prefix}/token_errors"], differences, scores={}
    )
