"""Loss scaling: every attempt at an update that goes through a `GradScaler`, what became of it and of the scale."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Optional

import torch

from plumbline_capture.calls import to_float
from plumbline_capture.state import Recorder, is_compiling


class Scaling:
    """What is known of the attempt in progress; an attempt ends with the scaler's `update`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.attempts: List[Dict[str, Any]] = []
        """of every attempt so far, as they are written"""
        self.published = 0
        """of `attempts`, those that the JSON file holds"""
        self._unscaled = False
        self._clips = {"before_unscale": 0, "after_unscale": 0}
        self._open: Optional[Dict[str, Any]] = None

    def scaled(self, scale: Optional[float]) -> None:
        """A loss was multiplied by the scale; its backward follows."""
        if self._recorder.active and self._recorder.now.open_micro_batch is not None:
            self._recorder.now.open_micro_batch.loss_scale = scale

    def unscaled(self) -> None:
        """The gradients of the model's optimizer were divided by the scale."""
        self._unscaled = True

    def clipped(self) -> None:
        """Gradients were clipped."""
        self._clips["after_unscale" if self._unscaled else "before_unscale"] += 1

    def attempted(self, optimizer: Any, *, stepped: bool) -> None:
        """The scaler's `step` has returned; what was recorded of a step that the optimizer did not take is dropped."""
        self._open = {
            "step": self._recorder.step - stepped,
            "stepped": stepped,
            "fused": bool(getattr(optimizer, "_step_supports_amp_scaling", False)),
            "clips": dict(self._clips),
            "rates": [to_float(group.get("lr")) for group in optimizer.param_groups],
        }
        if not stepped:
            self._recorder.restart_step()
            if self._recorder.meter is not None:
                self._recorder.meter.step_restarts()

    def updated(self, before: Dict[str, Any], after: Dict[str, Any], *, scaler: Any, set_to: Optional[float]) -> None:
        """The scaler's `update` has returned."""
        attempt = self._open
        self._open, self._unscaled = None, False
        self._clips = {"before_unscale": 0, "after_unscale": 0}
        if attempt is None:
            return
        attempt.update(
            found_inf=before["found_inf"],
            scale=before["scale"],
            growth_tracker=before["growth_tracker"],
            next_scale=after["scale"],
            next_growth_tracker=after["growth_tracker"],
            set_to=set_to,
            growth_factor=float(scaler.get_growth_factor()),
            backoff_factor=float(scaler.get_backoff_factor()),
            growth_interval=int(scaler.get_growth_interval()),
        )
        self.attempts.append(attempt)


def wrap_scaler(recorder: Recorder) -> None:
    """Observe `scale`, `unscale_`, `step` and `update` of torch's scaler; one that is not enabled does nothing."""
    cls: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler  # torch < 2.3 has CUDA's only
    recorder.scaling = scaling = Scaling(recorder)
    original_scale, original_unscale = cls.scale, cls.unscale_
    original_step, original_update = cls.step, cls.update

    @functools.wraps(original_scale)
    def scale(self: Any, outputs: Any) -> Any:
        result = original_scale(self, outputs)
        if _observes(recorder, self):
            with recorder.guarded("loss scale"):
                scaling.scaled(to_float(self._scale))
        return result

    @functools.wraps(original_unscale)
    def unscale_(self: Any, optimizer: Any) -> None:
        original_unscale(self, optimizer)
        if _observes(recorder, self):
            scaling.unscaled()

    @functools.wraps(original_step)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not _observes(recorder, self) or not _holds_the_model(recorder, optimizer):
            return original_step(self, optimizer, *args, **kwargs)
        number = recorder.step
        result = original_step(self, optimizer, *args, **kwargs)
        with recorder.guarded("loss scaling"):
            scaling.attempted(optimizer, stepped=recorder.step > number)
        return result

    @functools.wraps(original_update)
    def update(self: Any, new_scale: Any = None) -> None:
        if not _observes(recorder, self):
            original_update(self, new_scale)
            return
        before: Optional[Dict[str, Any]] = None
        with recorder.guarded("loss scaling"):
            before = _read(self)
        original_update(self, new_scale)
        with recorder.guarded("loss scaling"):
            if before is not None:
                scaling.updated(before, _read(self), scaler=self, set_to=to_float(new_scale))

    cls.scale, cls.unscale_, cls.step, cls.update = scale, unscale_, step, update


def _observes(recorder: Recorder, scaler: Any) -> bool:
    return (
        not is_compiling() and bool(scaler.is_enabled()) and recorder.root is not None and recorder.scaling is not None
    )


def _holds_the_model(recorder: Recorder, optimizer: Any) -> bool:
    if recorder.finished:
        return False
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return recorder.root is not None and recorder.root.owns_any(own)


def _read(scaler: Any) -> Dict[str, Any]:
    found = [
        float(found_inf)
        for state in scaler._per_optimizer_states.values()
        for found_inf in state["found_inf_per_device"].values()
    ]
    return {
        "scale": to_float(scaler._scale),
        "growth_tracker": to_float(scaler._growth_tracker),
        "found_inf": sum(found) if found else None,
    }
