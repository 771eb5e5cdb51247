"""The state that a captured step begins from, where the checkpoint does not hold it."""

from __future__ import annotations

from checks.captures.capture import Capture
from checks.references.model import SCORE, NoReference, State
from checks.spec import RunSpec


def captured_state(spec: RunSpec, capture: Capture, step: int) -> State:
    """What the checkpoint cannot give: adapters, the head of a reward model, and every parameter of a step after the
    first.

    Raises:
        NoReference: they were not recorded whole.
    """
    records = capture.tensors(step, "parameter_before")
    adapters, parameters = {}, {}
    for name, record in records.items():
        if ".lora_" in name:
            full = record.read("full")
            if full is None:
                raise NoReference(f"the adapter {name} was not recorded in full; record with --full-parameters lora_")
            adapters[name] = full
        elif name == SCORE and spec.objective == "reward":
            full = record.read("full")
            if full is None:
                raise NoReference(f"the head {name} was not recorded in full; record with --full-parameters score")
            parameters[name] = full
        elif step > 1:
            full = record.read("full")
            if full is None:
                raise NoReference(
                    f"step {step} starts from captured weights, and they were recorded as sketches; use --full"
                )
            parameters[name] = full
    return State(adapters, parameters)
