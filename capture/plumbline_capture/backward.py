"""The scalar that is really back-propagated, and the clipping of gradients."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
from torch.nn import utils
from torch.nn.utils import clip_grad

from plumbline_capture.calls import to_float
from plumbline_capture.given import settle_given
from plumbline_capture.loss import settle_losses
from plumbline_capture.mapped import keep_named
from plumbline_capture.represent import locate, norm_of
from plumbline_capture.roots import Root
from plumbline_capture.state import Recorder, inside_backward, is_compiling

_CLIP_EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_


def wrap_backward(recorder: Recorder) -> None:
    """Observe `torch.autograd.backward`; `Tensor.backward` calls it by attribute."""
    original: Callable[..., None] = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        # inside a backward it is re-entrant checkpointing that calls, with gradients of hidden states
        # of a model that its framework's hooks stated, they say what was back-propagated
        if is_compiling() or inside_backward() or recorder.joint:
            return original(tensors, *args, **kwargs)
        if not recorder.active or recorder.root is None:
            original(tensors, *args, **kwargs)
            recorder.now.backwards += 1
            return None
        gradient = args[0] if args else kwargs.get("grad_tensors")
        if recorder.now.open_micro_batch is not None:
            _observe_backward(recorder, tensors, gradient)
            original(tensors, *args, **kwargs)
        else:  # of another model, unless it reaches the parameters of this one
            marks = _gradient_marks(recorder.root)
            original(tensors, *args, **kwargs)
            if _gradient_marks(recorder.root) == marks:
                return None
            _observe_backward(recorder, tensors, gradient)
        recorder.now.backwards += 1
        recorder.now.open_micro_batch = None
        return None

    torch.autograd.backward = backward


def _gradient_marks(root: Root) -> List[Tuple[int, int]]:
    """Return what changes when a backward adds to any gradient of the model."""
    gradients = [parameter.grad for parameter in root.outer.parameters()]
    return [(id(gradient), gradient._version) for gradient in gradients if gradient is not None]


def _observe_backward(recorder: Recorder, tensors: Any, gradients: Any) -> None:
    with recorder.guarded("backward"):
        _record_backward(recorder, tensors, gradients)


def _record_backward(recorder: Recorder, tensors: Any, gradients: Any) -> None:
    micro_batch = recorder.micro_batch()
    given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if len(given) == 1:
        micro_batch.backward = to_float(given[0])
        micro_batch.backward_dtype = str(given[0].dtype)
        gradient = gradients[0] if isinstance(gradients, (list, tuple)) and gradients else gradients
        micro_batch.backward_gradient = to_float(gradient)
    if micro_batch.backward is None:
        recorder.note_missing(
            f"backward of micro-batch {micro_batch.index}", f"{len(given)} tensors were given to it, not one scalar"
        )
    if micro_batch.num_items_in_batch is None:
        micro_batch.num_items_in_batch = recorder.num_items_in_batch
    if recorder.meter is not None:
        return
    with recorder.guarded(f"target of micro-batch {micro_batch.index}"):
        settle_losses(recorder, micro_batch)
    with recorder.guarded(f"loss inputs of micro-batch {micro_batch.index}"):
        settle_given(recorder, micro_batch)


def wrap_clipping(recorder: Recorder) -> None:
    """Observe `clip_grad_norm_` and `clip_grads_with_norm_` in the modules that callers look them up in."""
    original_norm: Callable[..., torch.Tensor] = utils.clip_grad_norm_

    @functools.wraps(original_norm)
    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
        if recorder.scaling is not None and not is_compiling():
            recorder.scaling.clipped()
        if is_compiling() or not recorder.active or recorder.root is None:
            return original_norm(parameters, max_norm, norm_type, *args, **kwargs)
        clipped = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        keep_gradients(recorder, clipped)
        total_norm = original_norm((p for p in clipped), max_norm, norm_type, *args, **kwargs)
        record_clip(recorder, clipped, max_norm=max_norm, norm_type=norm_type, total_norm=total_norm)
        return total_norm

    utils.clip_grad_norm_ = clip_grad.clip_grad_norm_ = clip_grad_norm_
    if not hasattr(utils, "clip_grads_with_norm_"):  # torch < 2.6
        return
    original_scale: Callable[..., None] = utils.clip_grads_with_norm_

    @functools.wraps(original_scale)
    def clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any) -> None:
        if recorder.scaling is not None and not is_compiling():
            recorder.scaling.clipped()
        if is_compiling() or not recorder.active or recorder.root is None:
            return original_scale(parameters, max_norm, total_norm, *args, **kwargs)
        clipped = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        keep_gradients(recorder, clipped)
        original_scale((p for p in clipped), max_norm, total_norm, *args, **kwargs)
        record_clip(recorder, clipped, max_norm=max_norm, norm_type=2.0, total_norm=total_norm)
        return None

    utils.clip_grads_with_norm_ = clip_grads_with_norm_


def keep_gradients(recorder: Recorder, parameters: Sequence[torch.Tensor]) -> None:
    """Keep the gradients of the model's parameters as they are now; those kept before are replaced."""
    root = recorder.root
    assert root is not None
    for parameter in parameters:
        with recorder.guarded("gradient"):
            name = root.name_of(parameter)
            if name is None or parameter.grad is None:
                continue
            norm = keep_named(recorder, parameter.grad, kind="gradient", name=name)
            recorder.now.gradient_norms[name.canonical] = norm


def record_clip(
    recorder: Recorder, parameters: List[torch.Tensor], *, max_norm: float, norm_type: float, total_norm: Any
) -> None:
    """Keep one call of clipping; called after it, with the gradients before it kept already."""
    with recorder.guarded("clip"):
        total = to_float(total_norm)
        clip: Dict[str, Any] = {
            "after_backward": recorder.now.backwards,
            "max_norm": float(max_norm),
            "norm_type": float(norm_type),
            "total_norm": total,
            "factor": None,
            "factor_error": None,
            "parameters": len(parameters),
        }
        recorder.now.clips.append(clip)
        if total is None:
            recorder.note_missing("clip", "the total norm is distributed; reading it would need communication")
            return
        clip["factor"] = clip_factor(max_norm=float(max_norm), total_norm=total)
        clip["factor_error"] = _factor_error(recorder, parameters, factor=clip["factor"])


def clip_factor(*, max_norm: float, total_norm: float) -> float:
    """Return what torch's clipping multiplies gradients by: min(1, max_norm / (total_norm + 1e-6))."""
    return 1.0 if math.isinf(max_norm) else min(1.0, max_norm / (total_norm + _CLIP_EPSILON))


def _factor_error(recorder: Recorder, parameters: List[torch.Tensor], *, factor: float) -> float:
    """Return the largest relative deviation of a gradient's norm after the clip from factor × its norm before."""
    root = recorder.root
    assert root is not None
    largest = 0.0
    for parameter in parameters:
        name = root.name_of(parameter)
        expected = factor * recorder.now.gradient_norms.get(name.canonical, 0.0) if name is not None else 0.0
        if parameter.grad is not None and expected > 0.0:
            after = norm_of(locate(parameter.grad).local)
            largest = max(largest, abs(after - expected) / expected)
    return largest
