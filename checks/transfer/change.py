"""How far the log-probabilities of a model move when some of its weights are exchanged."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from plumbline_capture.probe import next_token_log_probs

from checks.captures.capture import TensorRecord
from checks.errors import BadRequest
from checks.probes.plan import plan_probes
from checks.references.budget import OverBudget, check_memory
from checks.references.model import State, build_model, choose_source
from checks.spec import RunSpec

ROWS = ("length 17", "length 33", "length 65")
"""probes of which the rows are asked; those that the model is too short for are left out"""


def measure_change(
    spec: RunSpec, records: Mapping[str, TensorRecord], exchanged: Mapping[str, torch.Tensor]
) -> Mapping[str, float] | None:
    """Nats between the trainer's weights and the same with `exchanged`, in float32: the mean and the largest; None
    where a weight was not recorded whole, or the model is too large to be computed here.
    """
    whole = {name: record.read("full") for name, record in records.items()}
    own = {name: tensor for name, tensor in whole.items() if tensor is not None}
    if len(own) < len(whole):
        return None
    try:
        source = choose_source(spec.model)
        check_memory(source.checkpoint)
    except (BadRequest, OverBudget):
        return None
    rows = [probe.inputs["input_ids"] for probe in plan_probes(spec.model) if probe.name in ROWS]
    answers = []
    for parameters in (own, {**own, **exchanged}):
        state = State({}, {name: tensor.float() for name, tensor in parameters.items()})
        model = build_model(source, spec, state, dtype=torch.float32, attention="eager").eval()
        with torch.no_grad():
            answers.append([_answer(model, torch.tensor(row)) for row in rows])
    moved = torch.cat([(a - b).abs().reshape(-1) for a, b in zip(*answers, strict=True)])
    if not moved.numel() or not bool(moved.isfinite().all()):
        return None
    return {"mean": float(moved.mean()), "largest": float(moved.max()), "tokens": float(moved.numel())}


def _answer(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    out = model(input_ids=ids)
    return next_token_log_probs(out if isinstance(out, torch.Tensor) else out.logits, ids)
