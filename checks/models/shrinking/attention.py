"""Heads, their sizes and the hidden size: the ratio of queries to keys, a head size of its own, latent ranks."""

from __future__ import annotations

from collections.abc import Mapping

from checks.models.shrinking.changes import Draft, is_whole, round_to

HIDDEN = ("hidden_size", "n_embd", "d_model", "emb_dim", "dim", "model_dim", "embedding_dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads")
HEAD_DIM = "head_dim"
OTHER_HEAD_DIMS = ("attention_head_dim", "d_head", "kv_channels", "swa_head_dim", "global_head_dim", "local_head_dim")
OTHER_HEADS = ("swa_num_attention_heads", "global_num_attention_heads", "local_num_attention_heads")
OTHER_KEY_HEADS = ("swa_num_key_value_heads", "num_global_key_value_heads", "local_num_key_value_heads")
"""Of one kind of layer, where kinds differ."""
SINGLE_LAYERS = "per_layer_config"
"""Number of a layer → the settings in which it differs."""
MOST_HIDDEN = 128
MOST_HEADS = 16
USUAL_HEADS = 4
USUAL_HEAD_DIM = 16

LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "index_n_heads": 2,
    "index_head_dim": 16,
}
"""Ranks and head sizes of latent attention (arXiv:2405.04434), and of its indexer of sparse attention."""
LINEAR = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
}
"""Of gated delta networks (arXiv:2412.06464); the ratio of value heads to key heads is kept."""


def shrink_attention(draft: Draft) -> None:
    """Choose heads, head size and hidden size, and carry them to every name that a family has for them."""
    original = draft.original
    name, width = draft.named(*HEADS), draft.named(*HIDDEN)
    if width is None:
        raise draft.refuse("hidden_size", "no whole number", "give the size of the hidden states")
    hidden = int(original[width])
    if name is None:
        draft.hidden_size = min(hidden, 64)
        draft.put(width, draft.hidden_size, "hidden states of a small model")
        return
    heads, key_heads = int(original[name]), draft.number(*KEY_HEADS)
    small_heads, small_key_heads = choose_heads(heads, key_heads)
    if key_heads is not None and heads % key_heads:
        raise draft.refuse(
            draft.named(*KEY_HEADS) or "",
            f"which does not divide {heads} heads ({name})",
            "correct the number of heads",
        )
    latent = draft.number("kv_lora_rank") is not None
    stated = draft.number(HEAD_DIM)
    draft.head_dim = USUAL_HEAD_DIM if small_heads * USUAL_HEAD_DIM <= MOST_HIDDEN else MOST_HIDDEN // small_heads
    natural = stated is None or stated * heads == hidden
    across = small_heads * draft.head_dim
    if latent:
        draft.hidden_size = 64
    elif natural:
        draft.hidden_size = across
    else:
        assert stated is not None
        ratio = hidden / (heads * stated)
        draft.hidden_size = min(MOST_HIDDEN, max(32, round_to(across * ratio, 16)))
        if draft.hidden_size == across:
            draft.hidden_size = across // 2 if ratio < 1.0 and across > 32 else min(MOST_HIDDEN, across + 16)
    draft.put(width, draft.hidden_size, "as wide as all heads" if natural else "another width than that of all heads")
    for key in HIDDEN:
        if key != width and draft.number(key) == hidden:
            draft.put(key, draft.hidden_size, f"as {width}")
    for key in HEADS:
        if draft.number(key) is not None:
            draft.put(key, small_heads, "queries of a small model")
    if key_heads is not None and small_key_heads is not None:
        kept = small_heads * key_heads == small_key_heads * heads
        why = f"{heads // key_heads} queries a key, kept" if kept else f"{heads // key_heads} queries a key, cut"
        draft.put_where_there(KEY_HEADS, small_key_heads, why)
    if key_heads is None and any(key in original for key in KEY_HEADS):
        key = next(key for key in KEY_HEADS if key in original)
        draft.put(key, small_heads, "unset: a key a query")
    _shrink_other_kinds(draft, heads, small_heads)
    if stated is None and HEAD_DIM in original and not latent:
        draft.put(HEAD_DIM, draft.head_dim, "unset: the hidden size over the heads")
    if stated is not None:
        of_rope = latent and stated == draft.number("qk_rope_head_dim")
        draft.put(HEAD_DIM, LATENT["qk_rope_head_dim"] if of_rope else draft.head_dim, "size of a small head")
    _shrink_latent(draft)
    _shrink_linear(draft)
    _shrink_single_layers(draft)


def _shrink_other_kinds(draft: Draft, heads: int, small_heads: int) -> None:
    """Heads of one kind of layer: the same number, with a key count in the same proportion."""
    for key in OTHER_HEADS:
        value = draft.number(key)
        if value is not None:
            draft.put(key, max(1, value * small_heads // heads), "as num_attention_heads")
    for key in OTHER_KEY_HEADS:
        value = draft.number(key)
        if value is not None:
            draft.put(
                key, choose_heads(small_heads, max(1, value * small_heads // heads))[1], "keys of a kind of layer"
            )
    draft.put_where_there(OTHER_HEAD_DIMS, draft.head_dim, "size of a small head")
    width, hidden = draft.number("attention_hidden_size"), draft.number(*HIDDEN)
    if width is not None and hidden is not None:
        draft.put("attention_hidden_size", draft.hidden_size * width // hidden, "as the hidden size")
        attended = draft.hidden_size * width // hidden
        draft.put_where_there(("attention_head_dim",), attended // small_heads, "size of a small head")


def _shrink_single_layers(draft: Draft) -> None:
    """Heads of single layers that differ from the others', in the same proportion."""
    single = draft.config.get(SINGLE_LAYERS)
    if not isinstance(single, Mapping) or not single:
        return
    found: dict[object, object] = {}
    for index, entry in single.items():
        found[index] = dict(entry) if isinstance(entry, Mapping) else entry
        for key in (HEAD_DIM, *HEADS, *KEY_HEADS):
            value, usual, small = _item(entry, key), draft.number(key), draft.config.get(key)
            if value and usual and isinstance(small, int):
                found[index][key] = max(1, value * small // usual)  # type: ignore[index]
    draft.put(SINGLE_LAYERS, found, "heads in the same proportion")


def _item(entry: object, key: str) -> int | None:
    value = entry.get(key) if isinstance(entry, Mapping) else None
    return value if is_whole(value) else None


def choose_heads(heads: int, key_heads: int | None) -> tuple[int, int | None]:
    """Few heads with the same number of queries a key: (4, 4) for as many keys as queries, (8, 2) for 4 a key."""
    if key_heads is None or key_heads == heads:
        small = min(heads, USUAL_HEADS)
        return small, None if key_heads is None else small
    ratio = max(1, heads // key_heads)
    small_keys = min(key_heads, 2)
    if small_keys * ratio > MOST_HEADS:
        small_keys = 1
    return min(small_keys * ratio, MOST_HEADS), small_keys


def _shrink_latent(draft: Draft) -> None:
    for key, small in LATENT.items():
        value = draft.number(key)
        if value is not None:
            draft.put(key, min(value, small), "latent attention of a small model")
    value, nope = draft.number("v_head_dim"), draft.number("qk_nope_head_dim")
    if value is not None:
        small = LATENT["qk_nope_head_dim"]
        draft.put("v_head_dim", small if value == nope else small + 8, "equal to qk_nope_head_dim only where it was")
    if draft.number("qk_head_dim") is not None:
        draft.put("qk_head_dim", LATENT["qk_nope_head_dim"] + LATENT["qk_rope_head_dim"], "sum of its two parts")


def _shrink_linear(draft: Draft) -> None:
    keys, values = draft.number("linear_num_key_heads"), draft.number("linear_num_value_heads")
    for key, small in LINEAR.items():
        if draft.number(key) is not None:
            draft.put(key, small, "linear attention of a small model")
    if keys is not None and values is not None:
        draft.put(
            "linear_num_value_heads", LINEAR["linear_num_key_heads"] * max(1, values // keys), "values a key, kept"
        )
