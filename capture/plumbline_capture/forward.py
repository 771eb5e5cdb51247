"""The model's door: discovery of the root model, and the batch exactly as its forward receives it."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any, Dict, List, Tuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from plumbline_capture.calls import bind_arguments, named_tensors, output_field, rows_and_positions, to_float
from plumbline_capture.environment import describe_rng
from plumbline_capture.fingerprints import record_rows
from plumbline_capture.hook import Hook
from plumbline_capture.loss import defer_logits, take_log_probs
from plumbline_capture.modules import hook_modules
from plumbline_capture.probe import ask
from plumbline_capture.represent import keep_tensor
from plumbline_capture.roots import Root, find_root
from plumbline_capture.state import Recorder, inside_backward, is_compiling


def watch_for_root(recorder: Recorder) -> None:
    """Look at every module that is called under training until one is, or holds, the language model.

    The global hook is taken away then: with none in force, torch calls modules on its fast path.
    """
    rejected: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()

    def discover(module: nn.Module, args: Tuple[Any, ...]) -> None:
        if is_compiling() or recorder.root is not None or module in rejected:
            return
        if not module.training or not torch.is_grad_enabled() or inside_backward():
            return
        with recorder.guarded("model"):
            root = find_root(module)
            if root is None:
                rejected.add(module)
                recorder.called.append(weakref.ref(module))
                return
            _adopt_root(recorder, root)
        if recorder.root is not None:  # outside of the guard, under which a forward does not look like training
            if recorder.settings.probes is not None and not recorder.probed:
                recorder.probed = True
                with recorder.shielded("probes"):
                    ask(recorder, module)
            with recorder.shielded("batch"):
                _enter_door(recorder, module)

    recorder.root_handles = [register_module_forward_pre_hook(discover)]


def _adopt_root(recorder: Recorder, root: Root) -> None:
    """Hook the doors of the root model; the hooks stay as long as a step remains to be recorded."""

    def enter(module: nn.Module, args: Tuple[Any, ...]) -> None:
        if not is_compiling():
            with recorder.shielded("batch"):
                _enter_door(recorder, module)

    def leave(module: nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any], output: Any) -> None:
        if not is_compiling():
            with recorder.shielded("batch"):
                _leave_door(recorder, module, args, kwargs, output)

    _release(recorder)
    recorder.root = root
    root.transposed = recorder.transposed
    for door in root.doors:
        recorder.root_handles.append(door.register_forward_pre_hook(Hook(enter)))
        recorder.root_handles.append(door.register_forward_hook(Hook(leave), with_kwargs=True))


def drop_doors(recorder: Recorder) -> None:
    """Look for no model any more, or take the hooks off the one that was found: the framework's own hooks take over."""
    _release(recorder)


def _release(recorder: Recorder) -> None:
    for handle in recorder.root_handles:
        handle.remove()
    recorder.root_handles = []
    recorder.called.clear()


def finish(recorder: Recorder) -> None:
    """Take all hooks off the modules: no step remains to be recorded."""
    recorder.finished = True
    recorder.active = False
    recorder.stepped = None
    _release(recorder)


def _gradients_are_zero(parameters: List[torch.Tensor]) -> bool:
    """Return whether no parameter has a gradient, on this rank, that is not zero everywhere."""
    gradients: List[Any] = [parameter.grad for parameter in parameters if parameter.grad is not None]
    own = [each.to_local() if hasattr(each, "to_local") else each for each in gradients]
    return not any(bool(each.any()) for each in own)


def adopt_optimizer(recorder: Recorder, parameters: List[torch.Tensor]) -> bool:
    """Return whether an optimizer with these parameters is the root model's.

    Where no language model was found, the module called that holds most of them becomes the root, from the next step.
    A root that no optimizer has stepped yet and that holds none of them was the wrong one: the search begins again.
    """
    if recorder.root is None:
        own = {id(parameter) for parameter in parameters}
        called = [module for module in (reference() for reference in recorder.called) if module is not None]
        held = [(sum(id(p) in own for p in module.parameters()), module) for module in called]
        most = max((count for count, _ in held), default=0)
        if most == 0:
            # torch.distributed.checkpoint steps on zeros, to make the state that it loads into.
            if _gradients_are_zero(parameters):
                return False
            recorder.note_missing("step", "an optimizer stepped parameters of no module that was seen under training")
            return False
        _adopt_root(recorder, Root(next(module for count, module in held if count == most)))
        recorder.note_missing(
            "batch", "the model holds no embedding; it was known by its optimizer only after this step"
        )
    assert recorder.root is not None
    if recorder.root.owns_any(parameters):
        recorder.root_confirmed = True
        return True
    if not recorder.root_confirmed:
        recorder.note_missing("step", f"the optimizer that stepped owns no parameter of {recorder.root.class_name}")
        _release(recorder)
        recorder.root = None
        watch_for_root(recorder)
    return False


def _trains(recorder: Recorder) -> bool:
    """Return whether a forward of the root belongs to training: not evaluation, and not a recomputation."""
    root = recorder.root
    return root is not None and root.model.training and torch.is_grad_enabled() and not inside_backward()


def _enter_door(recorder: Recorder, module: nn.Module) -> None:
    if recorder.finished or not _trains(recorder):
        return
    assert recorder.root is not None
    if module is recorder.root.outer:
        recorder.doors.clear()  # left over where a forward raised
        if recorder.meter is not None:
            recorder.meter.forward_begins(module)
    if recorder.doors:
        recorder.doors[-1][1] = True
    recorder.doors.append([module, False])
    if recorder.active and not recorder.now.begun:
        recorder.now.begun = True
        with recorder.guarded("rng"):
            recorder.now.record["rng"] = describe_rng()
        if recorder.meter is None:
            with recorder.guarded("modules"):
                hook_modules(recorder)


def _leave_door(recorder: Recorder, module: nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any], out: Any) -> None:
    innermost = False
    while recorder.doors:
        entered, had_inner = recorder.doors.pop()
        if entered is module:
            innermost = not had_inner
            break
    if innermost and torch.is_grad_enabled():
        assert recorder.root is not None
        arguments = bind_arguments(recorder.root.model, args, kwargs)
        with recorder.guarded("rows"):
            record_rows(recorder, arguments)
        if recorder.active:
            with recorder.guarded("batch"):
                _record_forward(recorder, arguments, out)


def _record_forward(recorder: Recorder, arguments: Dict[str, Any], output: Any) -> None:
    root = recorder.root
    assert root is not None
    micro_batch = recorder.micro_batch()
    micro_batch.forwards += 1
    if micro_batch.forwards > 1:
        recorder.note_missing(
            f"batch of forward {micro_batch.forwards} in micro-batch {micro_batch.index}",
            "only the first forward before a backward is recorded",
        )
        return
    if "model" not in recorder.now.record:
        recorder.now.record["model"] = describe_model(root)
    for name, value in named_tensors(arguments):
        keep_tensor(recorder, value, kind="batch", name=name, micro_batch=micro_batch.index)
    micro_batch.arguments = {
        name: value for name, value in arguments.items() if value is None or isinstance(value, (bool, int, float, str))
    }
    micro_batch.rows_and_positions = rows_and_positions(arguments)
    micro_batch.num_items_in_batch = recorder.num_items_in_batch
    if micro_batch.num_items_in_batch is None:
        micro_batch.num_items_in_batch = to_float(arguments.get("num_items_in_batch"))
    micro_batch.model_loss = to_float(output_field(output, "loss"))
    if recorder.meter is not None:
        return
    with recorder.guarded(f"target of micro-batch {micro_batch.index}"):
        take_log_probs(micro_batch, arguments=arguments, output=output)
        defer_logits(micro_batch, arguments=arguments, output=output)


def describe_model(root: Root) -> Dict[str, Any]:
    """Return the step record's `model`."""
    parameters: List[nn.Parameter] = list(root.model.parameters())
    floating = [parameter.dtype for parameter in parameters if parameter.is_floating_point()]
    return {
        "class": root.class_name,
        "training": root.model.training,
        "attention": getattr(getattr(root.model, "config", None), "_attn_implementation", None),
        "parameter_dtypes": dict(Counter(str(parameter.dtype) for parameter in parameters)),
        "autocast": None,
        "compute_dtype": str(floating[0]) if floating else None,
        "gradient_checkpointing": any(
            bool(getattr(module, "gradient_checkpointing", False)) for module in root.model.modules()
        ),
    }
