"""Faults of saving, loading and resuming."""

from __future__ import annotations

from checks.faults.entries.fault import Fault
from checks.verdict import Pattern

CHECKPOINT_FAULTS: tuple[Fault, ...] = (
    Fault(
        slug="optimizer-not-restored",
        summary="a resumed run begins with an empty optimizer state",
        problem="automodel-optimizer-scheduler-state-not-restored",
        url="https://github.com/NVIDIA-NeMo/Automodel/issues/763",
        check="checkpoint.resume",
        pattern=Pattern.STATE_TRANSFER,
    ),
    Fault(
        slug="schedule-restarts",
        summary="the learning-rate schedule starts over when a run is resumed",
        problem="slime-lr-restarts-on-resume",
        url="https://github.com/THUDM/slime/pull/1152",
        check="checkpoint.resume",
        pattern=Pattern.STATE_TRANSFER,
        settings=("schedule=linear",),
    ),
    Fault(
        slug="data-restart",
        summary="a resumed run trains on the first rows of the epoch again",
        problem="verl-resume-sampler-epoch-zero",
        url="https://github.com/volcengine/verl/pull/4156",
        check="checkpoint.resume",
        pattern=Pattern.STATE_TRANSFER,
    ),
    Fault(
        slug="dropout-restarts",
        summary="the random number generators are not restored when a run is resumed",
        problem="automodel-rng-saved-per-dp-rank",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/3437",
        check="checkpoint.resume",
        pattern=Pattern.STATE_TRANSFER,
    ),
    Fault(
        slug="loaded-at-random",
        summary="one weight is at random after a run was resumed",
        problem="hf-missing-weights-left-uninitialised",
        url="https://github.com/huggingface/transformers/issues/35437",
        check="checkpoint.roundtrip",
        pattern=Pattern.STATE_TRANSFER,
        settings=("lora=false",),
    ),
    Fault(
        slug="saved-transposed",
        summary="one square weight matrix is saved transposed",
        problem="automodel-transposed-shard-placement",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/1691",
        check="checkpoint.roundtrip",
        pattern=Pattern.STATE_TRANSFER,
        settings=("lora=false",),
    ),
    Fault(
        slug="saved-in-bf16",
        summary="weights are saved in bf16, whatever they are held in",
        problem="miles-conversion-drops-fp32",
        url="https://github.com/radixark/miles/pull/524",
        check="checkpoint.roundtrip",
        pattern=Pattern.STATE_TRANSFER,
        settings=("precision=float32", "lora=false"),
    ),
    Fault(
        slug="tied-head-stale",
        summary="a tied head is saved beside its embedding, as it was when the model was loaded",
        problem="automodel-gemma4-moe-orphan-tie",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/2601",
        check="checkpoint.roundtrip",
        pattern=Pattern.STATE_TRANSFER,
        settings=("lora=false",),
    ),
    Fault(
        slug="adapter-alpha-saved",
        summary="adapters are saved with twice their lora_alpha",
        problem="peft-rslora-scale-reset",
        url="https://github.com/huggingface/peft/pull/2775",
        check="checkpoint.roundtrip",
        pattern=Pattern.STATE_TRANSFER,
        settings=("lora=true",),
    ),
)
