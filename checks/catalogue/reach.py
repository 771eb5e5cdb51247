"""Whether a run uses the part of the software that a known problem sits in.

An installed release that has a problem is no fault of a run that never comes near it: a DPO loss is not computed by
supervised fine-tuning. Each rule has a name and gives its reason. What no rule settles is taken as reached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from checks.catalogue.families import concerns
from checks.catalogue.problem import Problem
from checks.spec import RunSpec
from checks.verdict import Pattern


class Reached(StrEnum):
    """Whether a run comes near a problem; `open`: it hangs on what the run's settings do not tell."""

    USED = "used"
    NOT_USED = "not used"
    OPEN = "open"


@dataclass(frozen=True)
class Reach:
    """The answer, the rule that gave it (empty where none did), and its reason."""

    reached: Reached
    rule: str = ""
    why: str = ""


@dataclass(frozen=True)
class Use:
    """What a run uses: its settings, the class of its model, the number of its processes."""

    spec: RunSpec
    model_class: str | None
    processes: int


STACKS: Mapping[str, tuple[str, ...]] = {
    "transformers": ("transformers", "accelerate"),
    "trl": ("trl", "transformers", "accelerate"),
    "megatron_core": ("megatron-core",),
    "megatron_swift": ("megatron-swift", "ms-swift", "megatron-core"),
    "miles": ("miles", "megatron-core"),
}
"""framework under test → frameworks of the catalogue whose code its training step runs; PEFT with adapters"""

NEVER: Mapping[str, str] = {
    "label smoothing": "it does not smooth labels",
    "sync every batch": "it leaves the synchronisation of gradients at its default",
    "instruction marker": "it does not find answers by markers in the text",
    "flash-attention": "its attention is sdpa or eager",
    "fp16": "its precision is not fp16",
    "eva initialisation": "its adapters are drawn at random",
    "lora-fa": "its optimizer is AdamW or SGD",
    "lora+": "its optimizer is AdamW or SGD",
    "prefix tuning": "its adapters are LoRA",
    "rank-stabilised": "its adapters are plain LoRA",
    "layer selection": "its adapters are on every layer",
    "overlapped reduction": "it reduces gradients when the backward has ended",
    "gathered parameters": "its optimizer is not layer-wise and gathers no parameters",
}
"""words of a problem's title → why no run that Plumbline starts comes near it"""

EMBEDDINGS = frozenset({"embed_tokens", "wte", "embeddings", "lm_head"})
"""adapter targets that are an embedding, or tied to one"""

_TRAINERS = frozenset(
    {"dpo", "grpo", "orpo", "ipo", "kto", "gkd", "ppo", "rloo", "gspo", "opd", "simpo", "cpo", "bco", "nash"}
    | {"distillation", "rewards", "infonce"}
)
"""words of a slug that name another trainer, or an objective of one"""
_SEVERAL = re.compile(
    r"\branks\b|\bGPUs\b|multi-GPU|DataParallel|\bDDP\b|FSDP|DeepSpeed|(tensor|context|pipeline|sequence)[ -]parallel",
    re.IGNORECASE,
)
_ACCUMULATION = re.compile(r"accumulat|micro-?batch", re.IGNORECASE)
_HALF = re.compile(r"\bbf16\b|half precision|mixed precision", re.IGNORECASE)
_PACKED = re.compile(r"\bpack(ed|ing)\b|padding[- ]free|flatten", re.IGNORECASE)
_ADAPTERS = re.compile(r"\bLoRA\b|\badapters?\b", re.IGNORECASE)
_EMBEDDING = re.compile(r"\bembeddings?\b|tied head", re.IGNORECASE)
_COMPLETION = re.compile(r"completion[- ](only )?loss|assistant header|answer[- ]only|assistant-only", re.IGNORECASE)
_MULTIMODAL = re.compile(r"multimodal|vision|\bVLMs?\b|image", re.IGNORECASE)
_VIEW = re.compile(r"non-contiguous|transposed view", re.IGNORECASE)
_TEXT = re.compile(r"plain[- ]text", re.IGNORECASE)

Rule = Callable[[Problem, Use], Reach | None]


def reaches(problem: Problem, spec: RunSpec, *, model_class: str | None = None, processes: int = 1) -> Reach:
    """Whether the run of `spec` comes near the problem; `model_class`: name of the model's class, None if unknown."""
    use = Use(spec, model_class, processes)
    found = [reach for reach in (rule(problem, use) for rule in RULES) if reach is not None]
    order = (Reached.NOT_USED, Reached.OPEN)
    return min(found, key=lambda reach: order.index(reach.reached), default=Reach(Reached.USED))


def _not_used(rule: str, why: str) -> Reach:
    return Reach(Reached.NOT_USED, rule, why)


def _text(problem: Problem) -> str:
    return f"{problem.title}. {problem.symptom}"


def _framework(problem: Problem, use: Use) -> Reach | None:
    stack = STACKS.get(use.spec.framework)
    if stack is None or problem.framework in stack or (problem.framework == "peft" and use.spec.lora):
        return None
    return _not_used("framework", f"its training step runs no code of {problem.framework}")


def _stage(problem: Problem, use: Use) -> Reach | None:
    places = {problem.stage, problem.component}
    if places & {"rollout/serving", "weight-sync", "model-conversion"}:
        return _not_used("stage", "it generates and serves nothing")
    if places & {"resume", "checkpoint"} and use.spec.resume_after is None:
        return _not_used("stage", "it neither saves nor resumes")
    return None


def _trainer(problem: Problem, use: Use) -> Reach | None:
    named = sorted(_TRAINERS & set(problem.slug.split("-")))
    if named or problem.component in ("rl-loss", "logprob"):
        loss = named[0].upper() if named else "reinforcement learning"
        return _not_used("trainer", f"it is supervised fine-tuning, and the problem is one of {loss}")
    return None


def _processes(problem: Problem, use: Use) -> Reach | None:
    several = (
        problem.component.startswith("parallelism")
        or problem.pattern is Pattern.PARALLELISM
        or _SEVERAL.search(_text(problem)) is not None
    )
    return _not_used("processes", "it is one process on one device") if several and use.processes == 1 else None


def _collator(problem: Problem, use: Use) -> Reach | None:
    if problem.framework == "transformers" and problem.component == "data/collator":
        return _not_used("collator", "its collator is not one of transformers'")
    return None


def _packing(problem: Problem, use: Use) -> Reach | None:
    packed = problem.component == "packing" or _PACKED.search(problem.title) is not None
    return _not_used("packing", "it does not pack") if packed and not use.spec.packing else None


def _adapters(problem: Problem, use: Use) -> Reach | None:
    adapters = problem.framework == "peft" or _ADAPTERS.search(problem.title) is not None
    if not adapters:
        return None
    if not use.spec.lora:
        return _not_used("lora", "it trains no adapters")
    if _EMBEDDING.search(problem.title) and not EMBEDDINGS & set(use.spec.lora_targets):
        return _not_used("lora", "its adapters are on no embedding or head")
    return None


def _never(problem: Problem, use: Use) -> Reach | None:
    title = problem.title.lower()
    asked = use.spec.precision  # fp16 is a feature of the runs that ask for it
    return next((_not_used("feature", why) for words, why in NEVER.items() if words in title and words != asked), None)


def _accumulation(problem: Problem, use: Use) -> Reach | None:
    if use.spec.accumulation == 1 and _ACCUMULATION.search(_text(problem)):
        return _not_used("accumulation", "it does not accumulate gradients")
    return None


def _precision(problem: Problem, use: Use) -> Reach | None:
    if use.spec.precision == "float32" and _HALF.search(_text(problem)):
        return _not_used("precision", "its precision is float32")
    return None


def _attention(problem: Problem, use: Use) -> Reach | None:
    if use.spec.attention != "sdpa" and re.search(r"\bSDPA\b", problem.title):
        return _not_used("attention", f"its attention is {use.spec.attention}")
    return None


def _answers(problem: Problem, use: Use) -> Reach | None:
    if _COMPLETION.search(problem.title) is None:
        return None
    if not use.spec.assistant_only:
        return _not_used("assistant_only", "it trains on every token")
    return Reach(Reached.OPEN, "assistant_only", "it hangs on the form of the rows")


def _rows(problem: Problem, use: Use) -> Reach | None:
    if _TEXT.search(problem.title):
        return Reach(Reached.OPEN, "rows", "it concerns rows of plain text")
    return None


def _views(problem: Problem, use: Use) -> Reach | None:
    if _VIEW.search(_text(problem)):
        return Reach(Reached.OPEN, "views", "it hangs on how a tensor lies in memory")
    return None


def _multimodal(problem: Problem, use: Use) -> Reach | None:
    if _MULTIMODAL.search(_text(problem)):
        return _not_used("models", "its model reads text alone")
    return None


def _models(problem: Problem, use: Use) -> Reach | None:
    if not problem.models:
        return None
    named = ", ".join(problem.models)
    answer = None if use.model_class is None else concerns(problem.models, use.model_class)
    if answer is True:
        return None
    if answer is False:
        return _not_used("models", f"its model is {use.model_class}, and the problem is one of {named}")
    return Reach(Reached.OPEN, "models", f"whether its model is one of these is not settled: {named}")


RULES: tuple[Rule, ...] = (
    _framework,
    _stage,
    _trainer,
    _processes,
    _collator,
    _packing,
    _never,
    _adapters,
    _accumulation,
    _precision,
    _attention,
    _answers,
    _rows,
    _views,
    _multimodal,
    _models,
)
"""in the order in which a reason is worth telling"""
