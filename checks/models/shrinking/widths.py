"""Widths that follow from the hidden size: feed-forward layers, state-space models, adapters within the model."""

from __future__ import annotations

from typing import Any

from checks.models.shrinking.changes import Draft, is_whole, round_to

FEED_FORWARD = (
    *("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"),
    *("ffn_dim", "n_inner", "d_ff", "ffn_hidden_size", "encoder_ffn_dim", "decoder_ffn_dim", "intermediate_size_mlp"),
    *(
        "expert_ffn_hidden_size",
        "moe_shared_expert_intermediate_size",
        "dense_intermediate_size",
        "ffn_intermediate_size",
    ),
    *("prefix_dense_intermediate_size", "expert_intermediate_size", "mlp_intermediate_size", "feed_forward_size"),
    *("hidden_size_per_layer_input", "altup_hidden_size", "embedding_size", "word_embed_proj_dim", "moe_input_size"),
    *("moe_shared_intermediate_size", "moe_latent_size", "expert_dim", "mlp_hidden_size", "moe_ffn_hidden_size"),
)
FEWEST = 16


def shrink_widths(draft: Draft, hidden: int) -> None:
    """Scale every feed-forward width as the hidden size was scaled, to a multiple of 8."""
    factor = draft.hidden_size / hidden
    for key in FEED_FORWARD:
        value = draft.config.get(key)
        if is_whole(value):
            draft.put(key, scale(value, factor), "as the hidden size")
        elif isinstance(value, list) and value and all(is_whole(item) for item in value):
            draft.put(key, [scale(item, factor) for item in value], "as the hidden size")
    _shrink_state_space(draft)


def scale(value: int, factor: float) -> int:
    """A width of the small model: at least 16, a multiple of 8, at most what it was."""
    return min(value, max(FEWEST, round_to(value * factor, 8)))


STATE_SPACE: dict[str, Any] = {
    "mamba_d_head": 16,
    "mamba_head_dim": 16,
    "mamba_headdim": 16,
    "adapter_rank": 8,
    "mamba_d_state": 16,
    "ssm_state_size": 16,
    "state_size": 16,
    "mamba_chunk_size": 32,
    "chunk_size": 32,
    "mamba_dt_rank": 8,
    "lru_width": None,
    "time_step_rank": 8,
}
"""Of state-space layers (arXiv:2405.21060); a chunk is shorter than the usual sequence, so that its edges show."""


def _shrink_state_space(draft: Draft) -> None:
    for key, small in STATE_SPACE.items():
        value = draft.number(key)
        if value is not None:
            draft.put(key, draft.hidden_size if small is None else min(value, small), "state space of a small model")
    expand = draft.original.get("mamba_expand", draft.original.get("expand"))
    width = draft.hidden_size * (expand if is_whole(expand) else 2)
    groups = next((key for key in ("mamba_n_groups", "n_groups") if draft.number(key) is not None), None)
    head = next(
        (key for key in ("mamba_d_head", "mamba_head_dim", "mamba_headdim") if draft.number(key) is not None), None
    )
    head = head or ("head_dim" if groups and draft.number("head_dim") is not None else None)
    heads = next((key for key in ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads") if draft.number(key)), None)
    heads = heads or ("num_heads" if groups and draft.number("num_heads") is not None else None)
    if heads is not None and head is not None:
        draft.put(heads, max(1, width // int(draft.config[head])), "as many heads as the inner width holds")
    if groups is not None:
        value = draft.number(groups)
        draft.put(groups, 1 if value == 1 else 2, "groups that divide the heads")
    if draft.number("mamba_d_ssm") is not None:
        draft.put("mamba_d_ssm", width, "the inner width")
