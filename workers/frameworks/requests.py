"""What no adapter can run, whatever the framework: settings out of range, or at odds with the model or the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from checks.errors import BadRequest
from checks.models import check_positions, list_matrices, resolve_model
from checks.models.families import EAGER_ONLY
from checks.references.template import load_tokenizer
from checks.samples import Sample
from checks.spec import POLICY_OBJECTIVES, RunSpec
from checks.suggesting import nearest
from workers.frameworks.command.stated import FRAMEWORK as COMMAND
from workers.frameworks.options import Option, read_options

_LATENT_ATTENTION = frozenset({"deepseek_v3", "deepseek_v32"})
"""families without v_proj: multi-head latent attention derives keys and values from one projection"""


GRPO_FIELDS = ("grpo_loss", "num_generations", "num_iterations", "max_completion_length", "temperature")
"""Settings of grpo alone."""


PADDING_FREE = frozenset({"ms_swift", "megatron_swift"})
"""frameworks that lay the rows of a batch one after the other"""


def default_settings(family: str) -> Mapping[str, str]:
    """Return the settings, written as for `--set`, that a model family needs where the user gave none.

    >>> default_settings("gpt_oss")
    {'attention': 'eager'}
    """
    settings = {"attention": "eager"} if family in EAGER_ONLY else {}
    if family in _LATENT_ATTENTION:
        settings["lora_targets"] = "q_b_proj,kv_b_proj"
    return settings


def refuse_objective(spec: RunSpec, *, framework: str) -> None:
    """Raise BadRequest for any objective but that of supervised fine-tuning."""
    if spec.objective != "sft":
        found = f"{framework} has no {spec.objective}"
        other = "miles" if spec.objective in ("ppo", "reinforce_plus_plus") else "trl"
        raise BadRequest("objective", found, f"set objective=sft or framework {other}")


def check_request(
    spec: RunSpec, samples: tuple[Sample, ...], *, options: Mapping[str, Option] | None = MappingProxyType({})
) -> None:
    """Raise BadRequest, naming the setting, for a run that cannot be what it says.

    `options`: those that the framework is run with; None where nobody here knows them.
    """
    _check_ranges(spec)
    if options is not None:
        read_options(spec, options)
    if spec.command and spec.framework != COMMAND:
        raise BadRequest("command", f"{spec.framework} is run by a command of its own", "use framework command")
    if spec.padding_free and spec.framework not in PADDING_FREE:
        found = f"{spec.framework} is run with a row of its own for each example"
        raise BadRequest("padding_free", found, f"set it to false or use framework {' or '.join(sorted(PADDING_FREE))}")
    model = resolve_model(str(spec.model))
    check_positions(model, seq_len=spec.seq_len)
    if model.family in EAGER_ONLY and spec.attention != "eager":
        found = f"{spec.attention} cannot express the attention sinks of {model.family}"
        raise BadRequest("attention", found, "set attention=eager")
    _check_adapters(spec, model.family)
    _check_template(spec, samples)


def _check_adapters(spec: RunSpec, family: str) -> None:
    """Each LoRA target must name a weight matrix of the checkpoint: PEFT is silent about one that matches nothing.

    Without LoRA its settings would be passed over; a family's own default is nobody's wish, and stays.
    """
    if not spec.lora:
        own = default_settings(family).get("lora_targets")
        for name in ("lora_r", "lora_alpha", "lora_targets"):
            value = getattr(spec, name)
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            if value != getattr(RunSpec, name) and text != own:
                raise BadRequest(name, f"{text} has no meaning where lora is false", "set lora=true too")
        return
    modules = {name.split(".")[-2] for name in list_matrices(spec.model) if name.endswith(".weight")}
    for target in spec.lora_targets:
        if target not in modules:
            found = f"the model has no matrix called {target}"
            raise BadRequest("lora_targets", found, "use " + " or ".join(nearest(target, modules) or sorted(modules)))


def _check_ranges(spec: RunSpec) -> None:
    for name, least in (("steps", 1), ("batch", 1), ("accumulation", 1), ("seq_len", 2), ("lora_r", 1)):
        _require(name, getattr(spec, name), getattr(spec, name) >= least, f"set {name} to {least} or more")
    if spec.resume_after is not None:
        found = f"{spec.resume_after} leaves no step before or after it in a run of {spec.steps}"
        if not 1 <= spec.resume_after < spec.steps:
            raise BadRequest("resume_after", found, "give two steps or more, and resume between them")
    for name in ("lr", "eps", "max_grad_norm", "weight_decay", "momentum", "lora_alpha"):
        value = getattr(spec, name)
        _require(name, value, math.isfinite(value) and value >= 0, f"set {name} to a finite number of 0 or more")
    for name in ("beta1", "beta2"):
        value = getattr(spec, name)
        _require(name, value, 0 <= value < 1, f"set {name} to 0 or more and under 1")
    _require("warmup_steps", spec.warmup_steps, spec.warmup_steps >= 0, "set warmup_steps to 0 or more")
    _require("seed", spec.seed, 0 <= spec.seed < 2**32, "set seed to 0 … 4294967295, numpy's range")
    if spec.momentum and spec.optimizer != "sgd":
        raise BadRequest("momentum", f"{spec.momentum} has no meaning for {spec.optimizer}", "set optimizer=sgd too")
    if spec.beta != RunSpec.beta and spec.objective == "sft":
        raise BadRequest("beta", f"{spec.beta} has no meaning for {spec.objective}", "set objective=dpo too")
    for name in () if spec.objective in POLICY_OBJECTIVES else GRPO_FIELDS:
        value = getattr(spec, name)
        if value != getattr(RunSpec, name):
            raise BadRequest(name, f"{value} has no meaning for {spec.objective}", "set objective=grpo too")
    if spec.objective != "grpo" and spec.grpo_loss != RunSpec.grpo_loss:
        raise BadRequest("grpo_loss", f"{spec.grpo_loss} has no meaning for {spec.objective}", "set objective=grpo too")
    if spec.lora and not spec.lora_targets:
        raise BadRequest("lora_targets", "is empty", "name at least one module, such as q_proj")


def _require(name: str, value: object, holds: bool, remedy: str) -> None:
    if not holds:
        raise BadRequest(name, f"{value} is out of range", remedy)


def _check_template(spec: RunSpec, samples: tuple[Sample, ...]) -> None:
    form = samples[0].form
    if spec.assistant_only and form == "text":
        found = f"true has no meaning for {spec.data}, which holds plain text"
        raise BadRequest("assistant_only", found, "give messages or prompt and completion, or set it to false")
    if form != "messages":
        return
    template = load_tokenizer(spec.model).template
    if template is None:
        found = "has no chat template, and the data are messages"
        raise BadRequest(f"model {spec.model}", found, "add chat_template.jinja or give text, or prompt and completion")
    if spec.assistant_only and not _has_generation(template):
        found = f"true needs {{% generation %}} in the chat template of {spec.model}, which has none"
        raise BadRequest("assistant_only", found, "mark the assistant's part in chat_template.jinja")


def _has_generation(template: str) -> bool:
    tags = (part.split("%}", 1)[0].strip(" -+") for part in template.split("{%")[1:])
    return "generation" in tags
