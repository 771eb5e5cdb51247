"""From the Trainer's parameter names to the checkpoint's."""

from __future__ import annotations

from plumbline_capture.format import canonical_name

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def name_parameter(source: str, *, tied: bool) -> str:
    """Return the canonical name of a parameter: wrappers taken off, a tied head called by its embedding.

    transformers names parameters as its checkpoints do. PEFT wraps the model and puts the adapter's name after
    `lora_A`; with tied embeddings the head is the embedding's own tensor, and the checkpoint holds it once.

    >>> name_parameter("base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight", tied=False)
    'model.layers.0.self_attn.q_proj.weight'
    """
    name = canonical_name(source)
    return EMBEDDING if tied and name == HEAD else name
