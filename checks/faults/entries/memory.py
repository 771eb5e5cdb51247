"""Faults of memory: the numbers are right, and a step holds what it does not need."""

from __future__ import annotations

from checks.faults.entries.fault import Fault
from checks.verdict import Pattern

MEMORY_FAULTS: tuple[Fault, ...] = (
    Fault(
        slug="losses-kept-with-graphs",
        summary="every loss is kept with its graph, so that memory grows by the step",
        problem=None,
        url="https://github.com/huggingface/transformers/pull/6999",
        check="memory.step",
        pattern=Pattern.MODEL_DEFINITION,
    ),
    Fault(
        slug="activations-kept",
        summary="a hook keeps every layer's output until the next forward",
        problem=None,
        url="https://github.com/deepspeedai/DeepSpeed/pull/1698",
        check="memory.step",
        pattern=Pattern.MODEL_DEFINITION,
    ),
    Fault(
        slug="checkpointing-not-in-force",
        summary="gradient checkpointing is on, and nothing is recomputed",
        problem="automodel-activation-checkpointing-skipped",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/1941",
        check="memory.step",
        pattern=Pattern.MODEL_DEFINITION,
        settings=("gradient_checkpointing=true",),
    ),
    Fault(
        slug="gradients-held-twice",
        summary="gradients are summed in float32 copies beside those of the parameters",
        problem=None,
        url="https://github.com/NVIDIA/Megatron-LM/issues/690",
        check="memory.step",
        pattern=Pattern.MODEL_DEFINITION,
    ),
    Fault(
        slug="mask-for-every-head",
        summary="every layer makes a dense float32 mask for each head",
        problem=None,
        url="https://github.com/ByteDance-Seed/Depth-Anything-3/pull/268",
        check="memory.step",
        pattern=Pattern.MODEL_DEFINITION,
        settings=("attention=sdpa",),
    ),
    Fault(
        slug="logits-copied",
        summary="the loss takes four float32 copies of the logits",
        problem="automodel-logits-fp32-oom",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/2603",
        check="memory.step",
        pattern=Pattern.MODEL_DEFINITION,
    ),
)
