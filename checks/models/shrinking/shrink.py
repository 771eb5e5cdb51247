"""Shrink a config: which rules there are, and in which order they decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from checks.errors import BadRequest
from checks.models.families import VOCAB_SIZE
from checks.models.shrinking.attention import HIDDEN, shrink_attention
from checks.models.shrinking.changes import Change, Draft, Shrunk, is_whole
from checks.models.shrinking.experts import shrink_experts
from checks.models.shrinking.layers import shrink_layers
from checks.models.shrinking.positions import shrink_positions, shrink_rotary
from checks.models.shrinking.widths import shrink_widths

MOST_VOCABULARY = 1024
BESIDE = ("transformers_version", "architectures", "auto_map", "torch_dtype", "dtype", "_name_or_path", "_commit_hash")
"""Of a config, what is of the file and not of the model; code that a config names is never run."""
START_ID = 1
OWN = "of Plumbline's own tokenizer"
SPECIAL = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
"""Ids of the tokenizer that small models share."""
FEATURES = (
    *("tie_word_embeddings", "attention_bias", "mlp_bias", "use_qk_norm", "qk_layernorm", "partial_rotary_factor"),
    *("attn_logit_softcapping", "final_logit_softcapping", "norm_topk_prob", "routed_scaling_factor", "scoring_func"),
    *("topk_method", "hidden_act", "hidden_activation", "rms_norm_eps", "layer_norm_eps", "use_sliding_window"),
    *("embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier", "rope_interleave"),
    *("logit_scale", "router_aux_loss_coef", "output_router_logits", "attention_sinks", "linear_conv_kernel_dim"),
    *("attn_output_gate", "use_bias", "parallel_residual", "use_parallel_residual", "alibi", "router_bias"),
)
"""Settings that say what is computed, whatever the size: kept, and said to be kept."""


def shrink_config(config: Mapping[str, Any], *, vocabulary: int | None = None) -> Shrunk:
    """The small config of a model, from the content of its config.json; code that it names is never run.

    `vocabulary`: of the tokenizer that lies beside the config, None where there is none and Plumbline's own is used.
    Raises BadRequest naming the setting that cannot be shrunk.
    """
    text, dropped = find_text_config(complete_config(config))
    size = vocabulary or VOCAB_SIZE
    draft = Draft(text, {k: v for k, v in text.items() if k not in BESIDE}, size, list(dropped))
    parts = [key for key, value in text.items() if is_part(key, value)]
    if draft.number(*HIDDEN) is not None or not parts:
        _shrink_model(draft, own_tokenizer=vocabulary is not None)
    for key in parts:
        part = Draft(text[key], dict(text[key]), size)
        if part.number(*HIDDEN) is not None:
            _shrink_model(part, own_tokenizer=vocabulary is not None)
            draft.config[key] = part.config
            draft.changes += [replace(change, name=f"{key}.{change.name}") for change in part.changes]
    return Shrunk(draft.config, tuple(draft.changes))


def is_part(name: str, value: object) -> bool:
    """Whether a setting is the config of a part of the model."""
    return isinstance(value, Mapping) and (name.endswith("_config") or name in ("encoder", "decoder"))


def _shrink_model(draft: Draft, *, own_tokenizer: bool) -> None:
    shrink_layers(draft)
    shrink_attention(draft)
    hidden = draft.number(*HIDDEN)
    assert hidden is not None
    shrink_widths(draft, hidden)
    shrink_experts(draft)
    shrink_positions(draft)
    shrink_rotary(draft)
    _shrink_vocabulary(draft, own_tokenizer=own_tokenizer)
    _scale_query(draft)
    done = {change.name for change in draft.changes}
    for name in FEATURES:
        if name in draft.config and name not in done and draft.config[name] is not None:
            draft.changes.append(Change(name, "kept", draft.config[name], draft.config[name], "says what is computed"))


def complete_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the defaults of its class, as transformers itself reads it; raises BadRequest."""
    # Imported late: it takes seconds.
    auto = import_module("transformers").AutoConfig
    given = {key: value for key, value in config.items() if key not in ("model_type", *BESIDE)}
    try:
        complete: dict[str, Any] = auto.for_model(config["model_type"], **given).to_dict()
    except Exception as error:  # whatever a class raises for settings that it refuses is the request's fault
        first = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        raise BadRequest("model config", f"transformers cannot read it ({first})", "correct the config") from None
    return complete


def find_text_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Change, ...]]:
    """The language model of a multimodal config, and what of it is left out; other configs as they are."""
    nested = config.get("text_config")
    causal = import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if not isinstance(nested, Mapping) or nested.get("model_type") not in causal:
        return dict(config), ()
    left_out = [
        Change(key, "dropped", "…", None, "a run on text does not reach it")
        for key, value in config.items()
        if isinstance(value, Mapping) and key != "text_config" and key.endswith("_config")
    ]
    took = Change("model_type", "shrunk", config["model_type"], nested["model_type"], "its language model alone")
    return dict(nested), (took, *left_out)


def _shrink_vocabulary(draft: Draft, *, own_tokenizer: bool) -> None:
    stated = draft.number("vocab_size")
    if own_tokenizer:
        size = max(draft.vocabulary, min(stated or 0, MOST_VOCABULARY))
        if stated is not None:
            draft.put("vocab_size", size, "the tokens of the tokenizer beside the config")
        return
    if "vocab_size" in draft.config:
        draft.put("vocab_size", VOCAB_SIZE, "the tokens of Plumbline's own tokenizer")
    for name, value in SPECIAL.items():
        if name in draft.config:
            # Some classes refuse to be without one.
            draft.put(name, START_ID if name == "bos_token_id" and is_whole(draft.original[name]) else value, OWN)
    for name, value in draft.original.items():
        if name in SPECIAL or name == "vocab_size":
            continue
        if name.endswith(("_token_id", "_token_index")) and is_whole(value) and value >= VOCAB_SIZE:
            draft.put(name, VOCAB_SIZE - 1, OWN)
        elif "vocab_size" in name and is_whole(value) and value >= VOCAB_SIZE:
            draft.put(name, VOCAB_SIZE, "as vocab_size")


def _scale_query(draft: Draft) -> None:
    """What scores are divided by, where it is the head size by another name."""
    scalar, head = draft.number("query_pre_attn_scalar"), draft.number("head_dim")
    if scalar is not None:
        small = draft.head_dim if scalar == head or head is None else max(1, round(scalar * draft.head_dim / head))
        draft.put("query_pre_attn_scalar", small, "in the same proportion to the size of a head")
