"""Around `optimizer.step()`: settings, states, parameters before and after, and the end of the step."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from plumbline_capture.backward import keep_gradients
from plumbline_capture.calls import to_float
from plumbline_capture.format import json_value
from plumbline_capture.forward import adopt_optimizer, finish
from plumbline_capture.mapped import canonical_names, keep_named
from plumbline_capture.probe import ask_after
from plumbline_capture.roots import Name
from plumbline_capture.scalars import describe_scalars
from plumbline_capture.state import Recorder, Stepping
from plumbline_capture.writer import publish, write_step


def hook_optimizers(recorder: Recorder) -> None:
    """Observe the steps of every optimizer; one step of the model's optimizer is one step of the recorder."""

    def before(optimizer: Optimizer, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if recorder.finished:
            return
        stepping = recorder.stepping
        if stepping is not None and stepping.optimizer is optimizer and stepping.backwards == recorder.now.backwards:
            stepping.depth += 1  # a subclass's step that calls the class's
            return
        with recorder.guarded("optimizer"):
            recorder.stepping = None
            if _is_the_models(recorder, optimizer):
                recorder.stepping = Stepping(optimizer, backwards=recorder.now.backwards)
                if recorder.meter is not None:
                    recorder.meter.update_begins(optimizer)
                if recorder.active:
                    _record_before(recorder, optimizer)

    def after(optimizer: Optimizer, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        stepping = recorder.stepping
        if stepping is None or stepping.optimizer is not optimizer:
            return
        stepping.depth -= 1
        if stepping.depth > 0:
            return
        recorder.now.updated += 1
        if recorder.joint and recorder.now.updated < len(recorder.joint):
            if recorder.active:
                _record_after(recorder, optimizer)
            recorder.stepping = None
            return
        if recorder.meter is not None:
            with recorder.shielded("memory"):
                recorder.meter.update_ends(optimizer)
        if recorder.active:
            _record_after(recorder, optimizer)
            if recorder.settings.export is not None and recorder.step == max(recorder.settings.steps):
                assert recorder.root is not None
                with recorder.shielded("probes after the last step"):
                    ask_after(recorder, recorder.root.outer)
            with recorder.guarded("step file"):
                write_step(recorder)
            with recorder.guarded("rank file"):
                publish(recorder)
        recorder.stepping = None
        recorder.stepped = optimizer
        recorder.end_step()
        if recorder.step > max(recorder.settings.steps):
            finish(recorder)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _is_the_models(recorder: Recorder, optimizer: Optimizer) -> bool:
    if recorder.joint:
        return any(optimizer is one for one in recorder.joint)
    if optimizer is recorder.stepped:
        return True
    if not adopt_optimizer(recorder, _parameters(optimizer)):
        return False
    if recorder.stepped is not None and recorder.now.backwards == 0:
        recorder.note_missing(
            f"second optimizer ({type(optimizer).__name__})",
            "it stepped after another one without a backward between them; only the first is recorded",
            step=recorder.step - 1,
        )
        return False
    return True


def _parameters(optimizer: Optimizer) -> List[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _record_before(recorder: Recorder, optimizer: Optimizer) -> None:
    parameters = _parameters(optimizer)
    if recorder.meter is None:
        keep_gradients(recorder, [parameter for parameter in parameters if not _is_clipped(recorder, parameter)])
    with recorder.guarded("optimizer settings"):
        described = _describe_optimizer(recorder, optimizer)
        recorder.now.record["optimizer"] = _add_optimizer(recorder.now.record.get("optimizer"), described)
    with recorder.guarded("trainable"):
        recorder.now.record.update(_trainable_and_frozen(recorder))
    with recorder.guarded("scalars"):
        assert recorder.root is not None
        recorder.now.record["scalars"] = recorder.stated_scalars or describe_scalars(recorder.root)
    if recorder.meter is not None:
        return
    for parameter, name in () if recorder.flat else _named(recorder, optimizer):
        if parameter.grad is not None:
            with recorder.guarded("gradient_clipped"):
                _keep(recorder, parameter.grad, kind="gradient_clipped", name=name)
        with recorder.guarded("parameter_before"):
            _keep(recorder, parameter, kind="parameter_before", name=name)
        with recorder.guarded("optimizer_state_before"):
            _keep_state(recorder, optimizer, parameter, kind="optimizer_state_before", name=name)
    if recorder.joint and optimizer is not recorder.joint[0]:
        return
    with recorder.guarded("frozen parameters"):
        _keep_unheld(recorder, recorder.joint or [optimizer])


def _add_optimizer(first: Optional[Dict[str, Any]], second: Dict[str, Any]) -> Dict[str, Any]:
    """Return the description of two optimizers that take one step together; they are of one class."""
    if first is None:
        return second
    lists = {key: [*first[key], *second[key]] for key in ("groups", "without_gradient")}
    return {"class": second["class"], **lists}


def _keep_unheld(recorder: Recorder, optimizers: Sequence[Optimizer]) -> None:
    """Parameters that the optimizer does not hold enter the forward all the same: a frozen base, a frozen adapter."""
    assert recorder.root is not None
    held = {id(parameter) for optimizer in optimizers for parameter in _parameters(optimizer)}
    for parameter in recorder.root.outer.parameters():
        name = recorder.root.name_of(parameter)
        if id(parameter) not in held and name is not None:
            _keep(recorder, parameter, kind="parameter_before", name=name)


def _record_after(recorder: Recorder, optimizer: Optimizer) -> None:
    if recorder.meter is not None:
        return
    for parameter, name in () if recorder.flat else _named(recorder, optimizer):
        with recorder.guarded("parameter_after"):
            _keep(recorder, parameter, kind="parameter_after", name=name)
        with recorder.guarded("optimizer_state"):
            _keep_state(recorder, optimizer, parameter, kind="optimizer_state", name=name)


def _is_clipped(recorder: Recorder, parameter: torch.Tensor) -> bool:
    name = recorder.root.name_of(parameter) if recorder.root is not None else None
    return name is not None and name.canonical in recorder.now.gradient_norms


def _named(recorder: Recorder, optimizer: Optimizer) -> Iterator[Tuple[torch.Tensor, Name]]:
    """Yield the optimizer's parameters with their names; one that the model does not hold is called by its place."""
    for position, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            name = recorder.root.name_of(parameter) if recorder.root is not None else None
            if name is None:
                place = f"unnamed.{position}.{index}"
                name = Name(canonical=place, source=place)
            yield parameter, name


def _keep(recorder: Recorder, tensor: torch.Tensor, *, kind: str, name: Name) -> None:
    keep_named(recorder, tensor, kind=kind, name=name)


def _keep_state(recorder: Recorder, optimizer: Optimizer, parameter: torch.Tensor, *, kind: str, name: Name) -> None:
    for key, value in optimizer.state.get(parameter, {}).items():
        if isinstance(value, (int, float)):
            value = torch.tensor(value, dtype=torch.float64, device="cpu")
        if isinstance(value, torch.Tensor):
            keep_named(recorder, value, kind=kind, name=name, field=str(key))


def _describe_optimizer(recorder: Recorder, optimizer: Optimizer) -> Dict[str, Any]:
    names = {id(parameter): name.canonical for parameter, name in _named(recorder, optimizer)}
    groups = []
    for group in optimizer.param_groups:
        settings = {
            key: to_float(value) if isinstance(value, torch.Tensor) else json_value(value)
            for key, value in group.items()
            if key not in ("params", "param_names")
        }
        held = canonical_names(recorder.names, [names[id(p)] for p in group["params"]])
        groups.append({"settings": settings, "parameters": held})
    cls = type(optimizer)
    return {
        "class": f"{cls.__module__}.{cls.__qualname__}",
        "groups": groups,
        "without_gradient": canonical_names(
            recorder.names, [names[id(p)] for p in _parameters(optimizer) if p.grad is None]
        ),
    }


def _trainable_and_frozen(recorder: Recorder) -> Dict[str, List[str]]:
    found: Dict[str, List[str]] = {"trainable": [], "frozen": []}
    assert recorder.root is not None
    for parameter in recorder.root.outer.parameters():
        name = recorder.root.name_of(parameter)
        if name is not None:
            found["trainable" if parameter.requires_grad else "frozen"].append(name.canonical)
    return {key: canonical_names(recorder.names, sources) for key, sources in found.items()}
