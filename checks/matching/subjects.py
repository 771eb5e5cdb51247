"""What each check judges, in the catalogue's words: stages and components.

It follows from a check's claim, whichever problems there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from checks.document import read_paragraph
from checks.registry import CHECKS


@dataclass(frozen=True)
class Subject:
    """`stages` and `components`: values of a problem's fields of that name."""

    stages: frozenset[str]
    components: frozenset[str]


def _subject(stages: str, components: str) -> Subject:
    return Subject(*(frozenset(each.split()) for each in (stages, components)))


_DATA = "data/collator tokenizer/chat-template"
_PARALLEL = "parallelism/DP parallelism/TP parallelism/PP parallelism/CP parallelism/EP parallelism/SP parallelism/FSDP"
_MODULES = "attention rope forward moe-router model-build"
NOTHING = _subject("", "")

SUBJECTS: Mapping[str, Subject] = {
    "run.completes": _subject("environment", "environment/dependency"),
    "environment.settings": _subject("environment model-build", "environment/dependency precision"),
    "data.template": _subject("data tokenization", _DATA),
    "data.mask": _subject("data tokenization loss", f"{_DATA} loss packing"),
    "data.preference": _subject("data tokenization loss", f"{_DATA} rl-loss"),
    "data.coverage": _subject("data resume parallelism", f"{_DATA} parallelism/DP resume"),
    "data.packing": _subject("data forward loss", "packing attention rope"),
    "step.precision": _subject("forward backward optimizer model-build", "precision rope optimizer"),
    "step.settings": _subject("model-build checkpoint", f"{_MODULES} checkpoint precision"),
    "step.lora": _subject("model-build forward", "model-build forward checkpoint"),
    "step.loss": _subject("loss forward", f"loss {_MODULES}"),
    "step.moe": _subject("forward loss backward", "moe-router loss"),
    "step.denominator": _subject("loss backward", "loss"),
    "step.rl_loss": _subject("loss", "rl-loss loss logprob"),
    "step.advantages": _subject("loss", "rl-loss"),
    "step.rl_logprobs": _subject("loss forward", "logprob rl-loss"),
    "step.gradients": _subject("backward loss forward", f"loss backward {_MODULES}"),
    "step.grad_norm": _subject("optimizer backward", "optimizer"),
    "step.activations": _subject("forward", _MODULES),
    "step.update": _subject("optimizer", "optimizer"),
    "step.scaler": _subject("optimizer backward", "optimizer precision"),
    "step.schedule": _subject("optimizer", "optimizer"),
    "step.frozen": _subject("optimizer backward model-build", "optimizer backward model-build"),
    "step.accumulation": _subject("loss backward optimizer", "loss optimizer"),
    "checkpoint.resume": _subject("resume checkpoint", "resume checkpoint optimizer"),
    "checkpoint.roundtrip": _subject("checkpoint", "checkpoint model-conversion"),
    "checkpoint.reshard": _subject("checkpoint resume parallelism", f"checkpoint {_PARALLEL}"),
    "model.definition": _subject("model-build forward", _MODULES),
    "step.lengths": _subject("forward", f"{_MODULES} packing"),
    "step.padding": _subject("forward data", "attention rope data/collator logprob"),
    "step.causality": _subject("forward", "attention"),
    "step.determinism": _subject("forward backward", "forward precision"),
    "step.dropout": _subject("forward model-build", "forward logprob"),
    "eval.loss": _subject("loss data forward", "loss data/collator"),
    "serving.logprobs": _subject("rollout/serving", "weight-sync rollout/serving logprob model-conversion"),
    "serving.cache": _subject("rollout/serving forward", "rollout/serving attention rope"),
    "serving.quantised": _subject("rollout/serving checkpoint", "weight-sync model-conversion precision"),
    "transfer.sync": _subject("rollout/serving", "weight-sync model-conversion"),
    "parallel.data": _subject("data parallelism", "parallelism/DP data/collator"),
    "parallel.replicas": _subject("parallelism backward", _PARALLEL),
    "parallel.gradients": _subject("parallelism backward loss", f"{_PARALLEL} loss optimizer"),
    "memory.step": _subject("forward backward", "forward"),
    "convergence.health": _subject("optimizer loss", "optimizer loss"),
    "convergence.curve": _subject("optimizer loss", "optimizer loss"),
    "convergence.overfit": _subject("optimizer loss", "optimizer loss"),
}

QUOTED = re.compile(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`")


def subject_of(check: str) -> Subject:
    """What a check judges; nothing for one that this version does not have."""
    return SUBJECTS.get(check, NOTHING)


def join_subjects(checks: Iterable[str]) -> Subject:
    """What any of the checks judges."""
    found = [subject_of(check) for check in checks]
    return Subject(
        frozenset().union(*(each.stages for each in found)),
        frozenset().union(*(each.components for each in found)),
    )


@cache
def catching_checks() -> Mapping[str, tuple[str, ...]]:
    """Slug → the checks whose descriptions name it among what they catch."""
    found: dict[str, list[str]] = {}
    for name, check in CHECKS.items():
        for slug in dict.fromkeys(QUOTED.findall(read_paragraph(check.description, "Catches"))):
            found.setdefault(slug, []).append(name)
    return {slug: tuple(names) for slug, names in found.items()}


@cache
def describe_check(name: str) -> str:
    """What a check claims and catches, in its own words and without the slugs that it names; empty if unknown."""
    check = CHECKS.get(name)
    if check is None:
        return ""
    return f"{check.claim}. {QUOTED.sub('', read_paragraph(check.description, 'Catches'))}"
