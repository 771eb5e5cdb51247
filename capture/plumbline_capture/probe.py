"""Ask the model that the framework prepared about batches of the caller's choice, before its first training step.

Each probe is a forward without gradients; the answer is the log-probability of every next token, in float64. The
model's mode, its random number generators and its gradients are as before afterwards, but not its caches (a rotary
table that grew stays grown): a run with probes is a run of its own.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Mapping, Tuple

import torch
from torch import nn

from plumbline_capture.calls import output_field
from plumbline_capture.environment import cuda_in_use
from plumbline_capture.probe_file import DECODE, FORWARD, TRAINING, read_probes
from plumbline_capture.represent import keep_tensor
from plumbline_capture.state import Recorder, rank_of_process

_ROWS = 64
"""positions whose log-softmax is taken at once: (64, vocabulary) float64"""

LONGEST_AGAIN = 256
"""positions of a probe that is asked again after the last step, and of the exported model"""


def ask(recorder: Recorder, model: nn.Module) -> None:
    """Record the answers to all probes, as tensors of kind `probe` of the first step."""
    assert recorder.settings.probes is not None
    probes = read_probes(recorder.settings.probes)
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if distributed and torch.distributed.get_world_size() > 1:
        recorder.note_missing("probes", f"rank {rank_of_process()} is one of several; probe a run of one process")
        return
    device = next(model.parameters()).device
    with _as_before(model), torch.no_grad():
        for probe in probes:
            with recorder.shielded(f"probe {probe['name']}"):
                inputs = {name: torch.tensor(rows, device=device) for name, rows in probe["inputs"].items()}
                model.train(probe["kind"] == TRAINING)
                answer = _decode(model, inputs) if probe["kind"] == DECODE else _forward(model, inputs)
                for field, tensor in (*inputs.items(), ("log_probs", answer)):
                    keep_tensor(recorder, tensor, kind="probe", name=probe["name"], field=field)


def ask_after(recorder: Recorder, model: nn.Module) -> None:
    """Record what the model answers after the last recorded step, as tensors of kind `probe_after`; see `export`."""
    with _as_before(model), torch.no_grad():
        model.eval()
        answer_again(recorder, model, kind="probe_after")


def answer_again(recorder: Recorder, model: nn.Module, *, kind: str) -> None:
    """Keep the answers of a model in evaluation mode to every short probe that is one forward."""
    assert recorder.settings.probes is not None
    device = next(model.parameters()).device
    for probe in read_probes(recorder.settings.probes):
        if probe["kind"] != FORWARD or len(probe["inputs"]["input_ids"][0]) > LONGEST_AGAIN:
            continue
        with recorder.shielded(f"{kind} {probe['name']}"):
            inputs = {name: torch.tensor(rows, device=device) for name, rows in probe["inputs"].items()}
            keep_tensor(recorder, _forward(model, inputs), kind=kind, name=probe["name"], field="log_probs")


def _forward(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return next_token_log_probs(_logits(model(**inputs)), inputs["input_ids"])


def _decode(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Log-probabilities when each token is given alone, with the cache that the model returned before."""
    ids = inputs["input_ids"]
    argument, cache = "", None
    logits: List[torch.Tensor] = []
    for position in range(ids.shape[1] - 1):
        given: Dict[str, Any] = {"input_ids": ids[:, position : position + 1], "use_cache": True}
        if cache is not None:
            given[argument] = cache
        output = model(**given)
        argument, cache = _cache_of(output)
        if cache is None:
            raise ValueError(f"{type(model).__name__} returned no cache for use_cache=True")
        logits.append(_logits(output)[:, -1:])
    return next_token_log_probs(torch.cat(logits, dim=1), ids)


def _cache_of(output: Any) -> Tuple[str, Any]:
    """Return the cache that a forward handed out, and the argument by which the next one takes it."""
    for argument in ("cache", "past_key_values"):  # the second is the name before transformers 5
        cache = getattr(output, argument, None)
        if cache is not None:
            return argument, cache
    return "", None


def _logits(output: Any) -> torch.Tensor:
    logits = output if isinstance(output, torch.Tensor) else output_field(output, "logits")
    if logits is None:
        raise ValueError("the model returned no logits")
    return logits


def next_token_log_probs(logits: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """Return (B, S − 1) float64 on the CPU: log p(input_ids[:, t + 1]) by logits (B, ≥ S − 1, V) at position t."""
    rows: List[torch.Tensor] = []
    for start in range(0, input_ids.shape[1] - 1, _ROWS):
        stop = min(start + _ROWS, input_ids.shape[1] - 1)
        log_probs = torch.log_softmax(logits[:, start:stop].to(torch.float64), dim=-1)
        rows.append(log_probs.gather(-1, input_ids[:, start + 1 : stop + 1, None]).squeeze(-1))
    return torch.cat(rows, dim=1).cpu()


@contextlib.contextmanager
def _as_before(model: nn.Module) -> Iterator[None]:
    """Give every module its mode, and every generator its state, back."""
    modes = [(module, module.training) for module in model.modules()]
    devices = list(range(torch.cuda.device_count())) if cuda_in_use() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training
