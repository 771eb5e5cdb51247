"""How many layers a small model needs: every kind of layer, in a whole period of their pattern."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from checks.models.shrinking.changes import Draft, is_whole

LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
PERIODS = (
    *("sliding_window_pattern", "full_attention_interval", "decoder_sparse_step", "moe_layer_freq"),
    *("interleave_moe_layer_step", "no_rope_layer_interval", "attn_layer_period", "expert_layer_period"),
    *("cross_attention_interval", "global_attn_every_n_layers", "attn_every_n_layers", "moe_every_n_layers"),
    *("moe_layer_interval", "layer_group_size", "linear_attn_period", "full_attn_every"),
)
"""Settings by which every n-th layer is another kind."""
FIRST_DENSE = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "n_dense_layers")
"""How many layers at the beginning are dense, before the mixtures of experts."""
MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers")
INDICES = (
    *("mlp_only_layers", "attn_layer_indices", "full_attn_idxs", "global_attn_idx", "no_rope_layers_idx"),
    *("hybrid_layer_ids", "moe_layers", "local_layer_ids"),
)
"""Lists of the numbers of layers."""
SHARING = ("num_kv_shared_layers",)
"""How many layers at the end take keys and values from earlier ones, of which there must be one of each kind."""
MOST_LAYERS = 12
FEWEST_LAYERS = 2


def find_period(kinds: Sequence[object]) -> int | None:
    """The smallest p with kinds[i] == kinds[i + p] throughout, at most half of the length; None where there is none."""
    for period in range(1, len(kinds) // 2 + 1):
        if all(kinds[i] == kinds[i + period] for i in range(len(kinds) - period)):
            return period
    return None


def shortest_prefix(kinds: Sequence[object]) -> int:
    """How many layers from the first have every kind among them, and each change between kinds that comes first."""
    names = [str(kind) for kind in kinds]
    return max((names.index(name) + 1 for name in set(names)), default=0)


def shrink_layers(draft: Draft) -> None:
    """Cut the layers to a period of every pattern, behind as many dense ones as are kept."""
    original = draft.original
    name = draft.named(*LAYER_COUNTS)
    if name is None:
        return
    count = int(original[name])
    lists = {
        key: value
        for key, value in original.items()
        if isinstance(value, list) and len(value) == count and count > 1 and key not in INDICES
    }
    kinds = original.get("layer_types")
    if isinstance(kinds, list) and len(kinds) != count:
        raise draft.refuse("layer_types", f"{len(kinds)} entries for {count} layers ({name})", "give one entry a layer")
    period, why = _needed(draft, lists)
    dense = draft.number(*FIRST_DENSE)
    kept_dense = min(dense, 1) if dense is not None else 0
    sharing = draft.number(*SHARING) is not None
    needed = max(kept_dense + period * (2 if sharing else 1), _first_of_each(lists, count), FEWEST_LAYERS)
    draft.layers = min(count, needed, MOST_LAYERS)
    for key in (key for key in LAYER_COUNTS if is_whole(original.get(key))):
        draft.put(key, min(int(original[key]), draft.layers), why)
    first_dense = draft.named(*FIRST_DENSE)
    if first_dense is not None:
        draft.put(first_dense, kept_dense, "one dense layer before the mixtures")
    for key, values in lists.items():
        draft.put(key, values[: draft.layers], "the first layers of the pattern")
    for key, value in original.items():
        if isinstance(value, Mapping) and value and all(str(index).isdigit() for index in value):
            kept = {index: item for index, item in value.items() if int(index) < draft.layers}
            if key not in ("id2label",):
                draft.put(key, kept, "layers that are still there")
    for key in INDICES:
        if isinstance(original.get(key), list):
            draft.put(key, [i for i in original[key] if i < draft.layers], "layers that are still there")
    draft.put_where_there(SHARING, draft.layers // 2, "the second of two periods")
    draft.put_where_there(MTP, 1, "one layer that predicts further tokens")


def _needed(draft: Draft, lists: dict[str, list[object]]) -> tuple[int, str]:
    """The least common period of all patterns, and which they are."""
    period = 1
    named: list[str] = []
    for key in PERIODS:
        step = draft.number(key)
        if step is not None and step > 1:
            period, named = math.lcm(period, step), [*named, key]
    for key, values in lists.items():
        found = find_period(values)
        if found is not None and found > 1:
            period, named = math.lcm(period, found), [*named, key]
    if not named:
        return period, "all layers are alike"
    whole = "a whole period" if period <= MOST_LAYERS else f"the first {MOST_LAYERS} of a period of {period}"
    return period, f"{whole} of {', '.join(named)}"


def _first_of_each(lists: dict[str, list[object]], count: int) -> int:
    """Layers until every kind of every list has come, where that list has no period."""
    return max((shortest_prefix(v) for v in lists.values() if find_period(v) is None), default=min(count, 1))
