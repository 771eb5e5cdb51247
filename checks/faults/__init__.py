"""Faults to inject on purpose, each modelled on a public problem, to show that a check sees it.

A fault is one standalone file that imports nothing of this tree: the recorder executes it in the framework's process
(`plumbline-capture run --preload FILE`) right after torch is imported and calls its `install()`. Whenever it takes
effect it says so on stderr, so that a fault which never did is not mistaken for one that no check saw.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from checks.errors import BadRequest
from checks.verdict import Pattern

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Fault:
    """One fault: its file, the problem it is modelled on, and the check that must see it."""

    slug: str
    summary: str
    problem: str | None
    """slug of the catalogue's problem; None where only `url` tells of it"""
    url: str
    check: str
    pattern: Pattern
    settings: tuple[str, ...] = ()
    """settings, as `name=value`, without which the fault has nothing to act on"""

    @property
    def file(self) -> Path:
        """The file to preload; it defines `install()`."""
        return _HERE / f"{self.slug.replace('-', '_')}.py"

    @property
    def marker(self) -> str:
        """How a line of the run's log begins that says that the fault took effect."""
        return f"fault in force: {self.slug}: "


FAULTS: tuple[Fault, ...] = (
    Fault(
        slug="wrong-loss-count",
        summary="the loss is divided by one token too many in every step",
        problem="hf-num-items-overcount",
        url="https://github.com/huggingface/transformers/pull/46204",
        check="step.denominator",
        pattern=Pattern.OBJECTIVE_SCALE,
    ),
    Fault(
        slug="labels-shifted-twice",
        summary="the collator shifts the labels and the model shifts them again",
        problem="hf-encdec-double-shift",
        url="https://github.com/huggingface/transformers/pull/46903",
        check="step.loss",
        pattern=Pattern.LOSS_MASK,
    ),
    Fault(
        slug="rmsnorm-eps",
        summary="every RMSNorm's eps is ten times the configured one",
        problem="mcore-mamba-norm-eps-ignored",
        url="https://github.com/NVIDIA/Megatron-LM/pull/5750",
        check="step.settings",
        pattern=Pattern.MODEL_DEFINITION,
    ),
    Fault(
        slug="attention-scale",
        summary="the first layer's attention scale is 1 % too large",
        problem="automodel-mistral4-attention-scale-and-bias-sync",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/3348",
        check="step.settings",
        pattern=Pattern.MODEL_DEFINITION,
    ),
    Fault(
        slug="weight-scaled",
        summary="one weight matrix is 0.1 % larger than in the checkpoint",
        problem="slime-ref-swap-perturbs-actor",
        url="https://github.com/THUDM/slime/issues/774",
        check="step.settings",
        pattern=Pattern.STATE_TRANSFER,
    ),
    Fault(
        slug="decay-on-norms",
        summary="norm weights are in the optimizer's decaying group",
        problem=None,
        url="https://github.com/huggingface/transformers/pull/35927",
        check="step.update",
        pattern=Pattern.OBJECTIVE_SCALE,
    ),
    Fault(
        slug="clip-before-accumulation",
        summary="gradients are clipped after every micro-batch",
        problem="titan-pp-grad-accumulation-decay",
        url="https://github.com/pytorch/torchtitan/pull/1732",
        check="step.accumulation",
        pattern=Pattern.OBJECTIVE_SCALE,
    ),
    Fault(
        slug="adapter-frozen",
        summary="the LoRA adapter of one module does not train",
        problem="swift-adapter-frozen-after-initial-save",
        url="https://github.com/modelscope/ms-swift/pull/9452",
        check="step.update",
        pattern=Pattern.MODEL_DEFINITION,
        settings=("lora=true",),
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
        slug="micro-batch-mean",
        summary="the loss is the mean of the micro-batches' means",
        problem="hf-ga-mean-of-means",
        url="https://github.com/huggingface/transformers/pull/34191",
        check="step.denominator",
        pattern=Pattern.OBJECTIVE_SCALE,
    ),
    Fault(
        slug="rope-bf16",
        summary="rotary frequencies are rounded to bf16",
        problem="automodel-rope-frequencies-rounded-to-bf16",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/2549",
        check="step.gradients",
        pattern=Pattern.PRECISION,
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
        slug="head-scaled",
        summary="one attention head's output projection is 1 % too large",
        problem="mcorebridge-qwen35-lora-inproj-layout",
        url="https://github.com/modelscope/mcore-bridge/pull/28",
        check="step.settings",
        pattern=Pattern.STATE_TRANSFER,
    ),
    Fault(
        slug="one-expert-scaled",
        summary="one expert of the first expert block is 1 % larger than in the checkpoint",
        problem="automodel-te-experts-left-at-random-init",
        url="https://github.com/NVIDIA-NeMo/Automodel/pull/2722",
        check="step.settings",
        pattern=Pattern.STATE_TRANSFER,
    ),
    Fault(
        slug="beta2-wrong",
        summary="AdamW runs with beta2 0.99 whatever was asked for",
        problem="miles-fsdp-yaml-has-no-effect",
        url="https://github.com/radixark/miles/pull/2388",
        check="step.settings",
        pattern=Pattern.OBJECTIVE_SCALE,
        settings=("optimizer=adamw",),
    ),
    Fault(
        slug="warmup-off-by-one",
        summary="the learning-rate schedule is one step ahead",
        problem="slime-lr-restarts-on-resume",
        url="https://github.com/THUDM/slime/pull/1152",
        check="step.update",
        pattern=Pattern.OBJECTIVE_SCALE,
        settings=("schedule=linear", "warmup_steps=2"),
    ),
    Fault(
        slug="gradient-zeroed",
        summary="the second layer's key projection gets a gradient of zero",
        problem="swift-vit-no-grad-with-checkpointing",
        url="https://github.com/modelscope/ms-swift/pull/4571",
        check="step.gradients",
        pattern=Pattern.MODEL_DEFINITION,
        settings=("lora=false",),
    ),
    Fault(
        slug="accumulation-not-divided",
        summary="the loss is multiplied by the number of micro-batches",
        problem="hf-ga-times-steps-non-kwarg-models",
        url="https://github.com/huggingface/transformers/pull/35438",
        check="step.denominator",
        pattern=Pattern.OBJECTIVE_SCALE,
    ),
)


def fault(slug: str) -> Fault:
    """The fault of that name; BadRequest with the nearest names when there is none."""
    by_slug = {each.slug: each for each in FAULTS}
    if slug in by_slug:
        return by_slug[slug]
    near = difflib.get_close_matches(slug, by_slug, n=3, cutoff=0.4)
    remedy = f"did you mean {', '.join(near)}" if near else "`plumbline faults` lists them"
    raise BadRequest("inject", f"there is no fault {slug!r}", remedy)


def was_in_force(each: Fault, *, log: Path) -> bool:
    """Whether the run that wrote `log` says that the fault took effect in it."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        return any(each.marker in line for line in lines)
