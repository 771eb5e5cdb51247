"""What AutoModel's recipe is not run with, and why."""

from __future__ import annotations

from collections.abc import Mapping

from checks.errors import BadRequest
from checks.models.checkpoint import read_config
from checks.spec import RunSpec
from workers.frameworks.processes import check_processes

DENSE = frozenset({"llama", "qwen2", "qwen3"})
EXPERTS = frozenset({"qwen3_moe", "deepseek_v3", "glm4_moe"})
"""families that AutoModel has model code of its own for, and that were run"""
BIASED = frozenset({"deepseek_v3", "glm4_moe"})
"""families whose routers choose by scores with a bias that no optimizer trains"""
FORCED = "qwen3_moe"
"""the family that was run as transformers' class too"""
RESUMED_ALONG = ("dp_size", "tp_size", "pp_size", "ep_size")
"""axes along which a run that was saved and taken up again was held against the one that was not"""
ARCHITECTURES = {
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
}
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


def check_automodel(spec: RunSpec, options: Mapping[str, object]) -> None:
    """Raise BadRequest, naming the setting, for a model, an option, a precision or a division that is not run."""
    config = read_config(spec.model)
    family = str(config.get("model_type"))
    if family not in DENSE | EXPERTS:
        listed = ", ".join(sorted(DENSE | EXPERTS))
        raise BadRequest("model", f"AutoModel is not run with {family} here", f"give one of {listed}")
    _check_class(family, options)
    _check_features(spec, family, options)
    if spec.cp_size > 1:
        found = "AutoModel shares tokens among ranks through Transformer Engine's attention alone (backend.attn='te')"
        raise BadRequest("cp_size", found, "set cp_size=1, or use framework megatron_swift or ms_swift")
    check_processes(spec, resumed_along=RESUMED_ALONG)
    _check_division(spec, config, family, options)


def _check_class(family: str, options: Mapping[str, object]) -> None:
    if options.get("force_hf") and family != FORCED:
        found = f"force_hf=true is run with {FORCED} here, and the model is {family}"
        raise BadRequest("options", found, f"leave it out, or give {FORCED}")
    if "tp_plan" in options and not options.get("force_hf"):
        found = "tp_plan=attention names the modules of transformers' class"
        raise BadRequest("options", found, "add force_hf=true, or leave it out")


def _check_features(spec: RunSpec, family: str, options: Mapping[str, object]) -> None:
    if spec.precision in ("bf16", "fp16"):
        found = f"AutoModel has no autocast over float32 parameters on a CPU, and so no {spec.precision}"
        raise BadRequest("precision", found, "set precision=float32 or bf16_params")
    alone = f"set it to its default, or give a model of {', '.join(sorted(DENSE))} on one process"
    for name, what in (("lora", "adapters"), ("packing", "packed rows")):
        if getattr(spec, name) and (spec.processes > 1 or family not in DENSE or spec.resume_after is not None):
            found = f"AutoModel is run with {what} on one process, of models without experts, and not resumed"
            raise BadRequest(name, found, alone)
    if options.get("loss") == "chunked" and spec.processes > 1:
        found = "AutoModel's chunked loss takes no pipeline and no divided head, and is run on one process here"
        raise BadRequest("options", found, "leave loss=chunked out, or set all degrees to 1")
    if spec.resharded:
        raise BadRequest("resharded", "AutoModel is resumed in its own layout here", "use framework plain")
    if spec.schedule != "constant" and spec.warmup_steps >= spec.steps:
        found = f"{spec.warmup_steps} leaves no step of {spec.steps} for the decay, which AutoModel refuses"
        raise BadRequest("warmup_steps", found, "set it below steps")


def _check_division(spec: RunSpec, config: Mapping[str, object], family: str, options: Mapping[str, object]) -> None:
    if spec.tp_size > 1:
        if family not in DENSE and not options.get("force_hf"):
            found = (
                f"AutoModel has no tensor-parallel plan for its own {ARCHITECTURES[family]} and refuses it, a stated "
                "one too"
            )
            other = ", or take transformers' class with options=force_hf=true" if family == FORCED else ""
            raise BadRequest("tp_size", found, f"set tp_size=1 or give a model of {', '.join(sorted(DENSE))}{other}")
        for field in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
            _check_divisible("tp_size", spec.tp_size, field, config.get(field))
    if spec.pp_size > 1:
        _check_divisible("pp_size", spec.pp_size, "num_hidden_layers", config.get("num_hidden_layers"))
        if spec.batch < spec.pp_size:
            found = f"{spec.batch} gives {spec.pp_size} stages fewer rows than there are of them"
            raise BadRequest("batch", found, f"set it to {spec.pp_size} or more")
    if spec.ep_size > 1:
        if options.get("force_hf"):
            raise BadRequest("ep_size", "transformers' class has its experts on every rank", "leave force_hf out")
        if family not in EXPERTS:
            found = f"{family} has no experts"
            raise BadRequest("ep_size", found, f"set ep_size=1 or give a model of {', '.join(sorted(EXPERTS))}")
        field = next((name for name in EXPERT_COUNTS if name in config), EXPERT_COUNTS[0])
        _check_divisible("ep_size", spec.ep_size, field, config.get(field))
        if spec.accumulation % spec.ep_size:
            found = f"{spec.ep_size} ranks that share experts cannot share {spec.accumulation} micro-batches equally"
            raise BadRequest("accumulation", found, f"set it to a multiple of {spec.ep_size}")


def _check_divisible(axis: str, degree: int, field: str, value: object) -> None:
    if not isinstance(value, int):
        raise BadRequest(axis, f"config.json does not state {field}", f"state it, or set {axis}=1")
    if value % degree:
        raise BadRequest(axis, f"{degree} does not divide {field} {value}", f"set {axis} to a divisor of {value}")
