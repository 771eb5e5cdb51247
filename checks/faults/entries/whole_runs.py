"""Faults of evaluation, export, and of steps between the captured ones."""

from __future__ import annotations

from checks.faults.entries.fault import Fault
from checks.verdict import Pattern

WHOLE_RUN_FAULTS: tuple[Fault, ...] = (
    Fault(
        slug="eval-in-training-mode",
        summary="an evaluation leaves the model in training mode, so that dropout acts in it",
        problem="verl-megatron-logprob-in-train-mode",
        url="https://github.com/volcengine/verl/pull/4708",
        check="eval.loss",
        pattern=Pattern.MODEL_DEFINITION,
    ),
    Fault(
        slug="eval-covers-the-tail",
        summary="an evaluation begins behind the first rows of its data",
        problem="mswift-eval-sampler-uses-train-progress",
        url="https://github.com/modelscope/ms-swift/pull/7050",
        check="eval.loss",
        pattern=Pattern.LOSS_MASK,
    ),
    Fault(
        slug="every-third-update-lost",
        summary="the optimizer skips every third step, and the schedule goes on",
        problem=None,
        url="https://github.com/Lightning-AI/pytorch-lightning/issues/18828",
        check="convergence.curve",
        pattern=Pattern.OBJECTIVE_SCALE,
        settings=("steps=20",),
    ),
    Fault(
        slug="updates-stop",
        summary="after nine updates the weights no longer follow the optimizer",
        problem="verl-weight-sync-tied-to-cache-flag",
        url="https://github.com/volcengine/verl/pull/4248",
        check="convergence.overfit",
        pattern=Pattern.OBJECTIVE_SCALE,
    ),
    Fault(
        slug="export-lags",
        summary="a model is exported with its first layer as it was when it was loaded",
        problem="verl-weight-sync-tied-to-cache-flag",
        url="https://github.com/volcengine/verl/pull/4248",
        check="serving.logprobs",
        pattern=Pattern.STATE_TRANSFER,
        settings=("lora=false",),
    ),
    Fault(
        slug="export-rounded",
        summary="norm weights of an exported model are rounded to bf16",
        problem="miles-expert-bias-exported-in-bf16",
        url="https://github.com/radixark/miles/pull/811",
        check="serving.logprobs",
        pattern=Pattern.STATE_TRANSFER,
        settings=("precision=float32", "lora=false"),
    ),
)
