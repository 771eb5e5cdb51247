"""Faults of what reaches the model: labels, packing, padding, and rows over ranks."""

from __future__ import annotations

from checks.faults.entries.fault import Fault
from checks.verdict import Pattern

BATCHES_FAULTS: tuple[Fault, ...] = (
    Fault(
        slug="labels-shifted-twice",
        summary="the collator shifts the labels and the model shifts them again",
        problem="hf-encdec-double-shift",
        url="https://github.com/huggingface/transformers/pull/46903",
        check="step.loss",
        pattern=Pattern.LOSS_MASK,
    ),
    Fault(
        slug="label-masked",
        summary="the loss ignores one label that should count in every micro-batch",
        problem="trl-sft-eos-masked-as-pad",
        url="https://github.com/huggingface/trl/pull/3200",
        check="step.loss",
        pattern=Pattern.LOSS_MASK,
    ),
    Fault(
        slug="packed-positions",
        summary="position ids run on from one packed document into the next",
        problem="automodel-rope-ignores-position-values",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/2377",
        check="data.packing",
        pattern=Pattern.SEQUENCE_LENGTH,
        settings=("packing=true",),
    ),
    Fault(
        slug="padding-attended",
        summary="the model never sees the attention mask",
        problem="trl-grpo-no-attention-mask",
        url="https://github.com/huggingface/trl/pull/2708",
        check="step.padding",
        pattern=Pattern.SEQUENCE_LENGTH,
    ),
    Fault(
        slug="packing-not-isolated",
        summary="packed documents attend to the documents before them",
        problem="axolotl-packing-not-isolated-on-some-backends",
        url="https://github.com/axolotl-ai-cloud/axolotl/pull/3796",
        check="data.packing",
        pattern=Pattern.SEQUENCE_LENGTH,
        settings=("packing=true",),
    ),
    Fault(
        slug="boundary-trained",
        summary="the first token of each packed document is a target of the one before",
        problem="trl-padding-free-boundary-label",
        url="https://github.com/huggingface/trl/pull/4170",
        check="data.mask",
        pattern=Pattern.LOSS_MASK,
        settings=("packing=true",),
    ),
    Fault(
        slug="answer-start-masked",
        summary="the first token of every answer is masked",
        problem="titan-chat-mask-off-by-one",
        url="https://github.com/pytorch/torchtitan/pull/2755",
        check="data.mask",
        pattern=Pattern.LOSS_MASK,
        settings=("assistant_only=true",),
    ),
    Fault(
        slug="answer-end-masked",
        summary="the last token of every answer is masked",
        problem="verl-sft-mask-off-by-one",
        url="https://github.com/volcengine/verl/pull/3287",
        check="data.mask",
        pattern=Pattern.LOSS_MASK,
        settings=("assistant_only=true",),
    ),
    Fault(
        slug="row-masked",
        summary="the last row of every micro-batch has no target at all",
        problem="automodel-vlm-bpe-pattern-labels-all-masked",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/1862",
        check="data.mask",
        pattern=Pattern.LOSS_MASK,
    ),
    Fault(
        slug="ranks-share-rows",
        summary="every rank trains on the first rank's rows",
        problem="automodel-ddp-group-size-one",
        url="https://github.com/NVIDIA-NeMo/Automodel/issues/1210",
        check="data.coverage",
        pattern=Pattern.PARALLELISM,
        settings=("dp_size=2", "sharding=ddp"),
    ),
    Fault(
        slug="ranks-shuffle-apart",
        summary="every rank shuffles in its own order",
        problem="accelerate-shuffle-not-synced",
        url="https://github.com/huggingface/accelerate/pull/2694",
        check="data.coverage",
        pattern=Pattern.PARALLELISM,
        settings=("dp_size=2", "sharding=ddp"),
    ),
)
