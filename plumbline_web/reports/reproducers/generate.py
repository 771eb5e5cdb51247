"""Which findings a reproducer can be written for honestly, and the script.

A script builds the tiny model of the family, runs the framework's own step, and computes what must come out in plain
torch. Where the run had something that the script would have to imitate (several processes, adapters, another
objective), none is written: it would show another fault, or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from checks.models.families import EAGER_ONLY, FAMILIES, VOCAB_SIZE

STEP_CHECKS: Mapping[str, tuple[str, str]] = {
    "step.loss": ("loss", "the loss"),
    "step.denominator": ("loss", "the loss"),
    "step.gradients": ("gradients", "the gradient"),
    "step.accumulation": ("gradients", "the gradient"),
    "data.packing": ("gradients", "the gradient"),
    "step.grad_norm": ("grad_norm", "the logged gradient norm"),
}
"""check → which of the script's numbers decides, and its name"""

TRAINERS: Mapping[str, str] = {"transformers": "transformers' Trainer", "trl": "TRL's SFTTrainer"}

SPREAD = 0.2
"""initializer_range of the script's model: at the usual 0.02 scores are near zero, and a wrong mask changes nothing"""

LENGTHS = (23, 41, 12, 34, 27, 19, 45, 16)
"""tokens of the rows, far apart, so that a wrong denominator shows"""
MOST_ROWS = 64

_PLAIN: Mapping[str, Any] = {
    "objective": "sft",
    "precision": "float32",
    "lora": False,
    "padding_free": False,
    "gradient_checkpointing": False,
    "fault": None,
    "resume_after": None,
    "options": [],
    **dict.fromkeys(("dp_size", "tp_size", "pp_size", "cp_size", "ep_size"), 1),
}
"""What a run must have, for the script is only of that."""


@dataclass(frozen=True)
class Generated:
    """A script, or why there is none: then `script` is empty and `reason` is a sentence."""

    script: str
    reason: str = ""


def generate(check: str, *, spec: Mapping[str, Any], family: str, form: str | None, on_gpu: bool) -> Generated:
    """The reproducer of a failing check.

    `spec`: the run spec as a validation stores it; `form`: of the data's rows (text, completion, messages), None where
    it is not known; `on_gpu`: whether the run was.
    """
    framework = str(spec["framework"])
    reason = _find_obstacle(check, framework=framework, spec=spec, family=family, form=form)
    if reason:
        return Generated("", reason)
    if check == "data.mask":
        return Generated(_write_mask(family, form=str(form), assistant_only=bool(spec["assistant_only"])))
    what, title = STEP_CHECKS[check]
    packing = bool(spec["packing"])
    rows = int(spec["batch"]) * int(spec["accumulation"])
    lengths = [LENGTHS[place % len(LENGTHS)] + place // len(LENGTHS) for place in range(4 if packing else rows)]
    values = {
        "framework": framework,
        "trainer": TRAINERS[framework],
        "trl": framework == "trl",
        "family": family,
        "sizes": _list_sizes(family),
        "vocabulary": VOCAB_SIZE,
        "batch": 1 if packing else int(spec["batch"]),
        "accumulation": 1 if packing else int(spec["accumulation"]),
        "rows": len(lengths),
        "lengths": lengths,
        "max_length": sum(lengths) if packing else max(lengths),
        "packing": packing,
        "assistant_only": bool(spec["assistant_only"]) and not packing,
        # Nothing of a spec that somebody sent goes into the script but numbers, yes and no, and one of two words.
        "attention": "eager" if family in EAGER_ONLY or spec["attention"] == "eager" else "sdpa",
        "seed": int(spec["seed"]),
        "use_cpu": not on_gpu,
        "what": what,
        "what_title": title,
    }
    return Generated(_templates().get_template("step.py.jinja").render(values) + "\n")


def write_skeleton(framework: str) -> str:
    """A script to be filled in by a person."""
    return _templates().get_template("skeleton.py.jinja").render(framework=framework) + "\n"


def _find_obstacle(check: str, *, framework: str, spec: Mapping[str, Any], family: str, form: str | None) -> str:
    if framework not in TRAINERS:
        return f"a script can be written for {' and '.join(TRAINERS)} alone, and this run is of {framework}"
    if check not in STEP_CHECKS and check != "data.mask":
        return f"a script can be written for {', '.join([*STEP_CHECKS, 'data.mask'])}, and this finding is of {check}"
    if family not in FAMILIES:
        return f"a script needs a tiny model of the family, and there is none of {family}"
    unlike = [name for name, value in _PLAIN.items() if spec.get(name, value) != value]
    if unlike:
        found = ", ".join(f"{name}={spec[name]}" for name in unlike)
        return f"a script is only of a plain float32 step of one process, and this run has {found}"
    if check == "data.mask" and framework != "trl":
        return "the labels of this run were made by Plumbline's driver, not by the framework"
    if check == "data.mask" and form is None:
        return "the data of this run are not here, and a script needs to know their form"
    if framework == "trl" and any("experts" in name for name in FAMILIES[family]):
        return "TRL adds an auxiliary loss for experts, which the script does not compute"
    if int(spec["batch"]) * int(spec["accumulation"]) > MOST_ROWS:
        return f"a script has {MOST_ROWS} rows at most, and a step of this run has more"
    return ""


def _write_mask(family: str, *, form: str, assistant_only: bool) -> str:
    titles = {"messages": "messages", "completion": "prompts and completions", "text": "texts"}
    counted = "the answer and its end count alone" if assistant_only and form != "text" else "every token counts"
    values = {
        "family": family,
        "sizes": _list_sizes(family),
        "form": form,
        "form_title": titles[form],
        "assistant_only": assistant_only and form != "text",
        "counted_title": counted,
    }
    return _templates().get_template("mask.py.jinja").render(values) + "\n"


def _list_sizes(family: str) -> list[tuple[str, str]]:
    """The settings of the tiny model, as Python."""
    sizes = {**FAMILIES[family], "initializer_range": SPREAD}
    return [(name, repr(value)) for name, value in sizes.items()]


@cache
def _templates() -> Environment:
    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(
        loader=loader, undefined=StrictUndefined, keep_trailing_newline=False, autoescape=False
    )  # Python
