"""Faults of precision: the mathematics is right, the numbers are not."""

from __future__ import annotations

from checks.faults.entries.fault import Fault
from checks.verdict import Pattern

NUMERICS_FAULTS: tuple[Fault, ...] = (
    Fault(
        slug="rope-bf16",
        summary="rotary frequencies are rounded to bf16",
        problem="automodel-rope-frequencies-rounded-to-bf16",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/2549",
        check="step.precision",
        pattern=Pattern.PRECISION,
    ),
    Fault(
        slug="rope-angles-bf16",
        summary="rotary angles are computed in bf16",
        problem="hf-rope-bf16-positions",
        url="https://github.com/huggingface/transformers/pull/29285",
        check="step.precision",
        pattern=Pattern.PRECISION,
    ),
    Fault(
        slug="softmax-bf16",
        summary="the attention softmax is computed in bf16",
        problem="automodel-dsv4-router-softmax-bf16",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/2201",
        check="step.precision",
        pattern=Pattern.PRECISION,
        settings=("attention=eager",),
    ),
    Fault(
        slug="gradients-bf16",
        summary="gradients are rounded to bf16 after every micro-batch",
        problem="automodel-gradient-reduction-bf16-default",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/2237",
        check="step.precision",
        pattern=Pattern.PRECISION,
    ),
    Fault(
        slug="decay-rounded",
        summary="decay parameters of linear attention are rounded to bf16",
        problem="automodel-gdn-decay-rounded-to-bf16",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/2484",
        check="step.precision",
        pattern=Pattern.PRECISION,
    ),
    Fault(
        slug="master-weights-bf16",
        summary="float32 was asked and parameters are held in bf16",
        problem="automodel-fp32-master-weights-lost",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/1896",
        check="step.precision",
        pattern=Pattern.PRECISION,
    ),
    Fault(
        slug="no-autocast",
        summary="bf16 mixed precision was asked and autocast is off",
        problem="accelerate-tp-bf16-no-autocast",
        url="https://github.com/huggingface/accelerate/pull/3610",
        check="step.precision",
        pattern=Pattern.PRECISION,
        settings=("precision=bf16",),
    ),
    Fault(
        slug="noisy-layer",
        summary="one layer's output differs by noise from call to call",
        problem="automodel-router-recompute-mismatch",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/2635",
        check="step.determinism",
        pattern=Pattern.PRECISION,
    ),
    Fault(
        slug="clip-of-scaled-gradients",
        summary="gradients are clipped while they are multiplied by the loss scale",
        problem=None,
        url="https://github.com/Lightning-AI/pytorch-lightning/issues/9599",
        check="step.scaler",
        pattern=Pattern.OBJECTIVE_SCALE,
        settings=("precision=fp16",),
    ),
    Fault(
        slug="schedule-advances-on-skipped-step",
        summary="the schedule goes on with a step that was skipped for an overflow",
        problem=None,
        url="https://github.com/Lightning-AI/pytorch-lightning/issues/18828",
        check="step.scaler",
        pattern=Pattern.OBJECTIVE_SCALE,
        settings=("precision=fp16", "schedule=linear", "steps=4"),
    ),
    Fault(
        slug="scale-never-updated",
        summary="the loss scale stays what it is after an overflow",
        problem=None,
        url="https://github.com/Azure/MS-AMP/pull/45",
        check="step.scaler",
        pattern=Pattern.PRECISION,
        settings=("precision=fp16",),
    ),
)
