"""Mixtures of experts: as many experts a token as there were, chosen among twice as many and in groups."""

from __future__ import annotations

import math

from checks.models.shrinking.changes import Draft

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
TOP_K = ("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_k", "num_experts_per_token", "moe_top_k")
GROUPS, TOP_GROUPS = ("n_group", "num_expert_group", "n_groups_moe"), ("topk_group", "limited_groups")
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
MOST_TOP_K = 8
MOST_GROUPS = 4
GROUP_BEST = 2
"""A group is scored by its best two experts."""


def shrink_experts(draft: Draft) -> None:
    """Twice as many experts as a token is given, in groups of two or more that hold enough of them."""
    name = draft.named(*EXPERTS)
    if name is None or int(draft.original[name]) < 2:
        return
    experts, top_k = int(draft.original[name]), draft.number(*TOP_K) or 1
    if top_k > experts:
        key = draft.named(*TOP_K)
        raise draft.refuse(key or "", f"more than the {experts} experts of {name}", "correct one of them")
    small_k = min(top_k, MOST_TOP_K)
    groups, top_groups = draft.number(*GROUPS) or 1, draft.number(*TOP_GROUPS) or 1
    if experts % groups:
        raise draft.refuse(draft.named(*GROUPS) or "", f"which does not divide {experts} experts", "correct it")
    small_groups = min(groups, MOST_GROUPS)
    small_top = max(1, min(round(top_groups * small_groups / groups), small_groups))
    a_group = max(
        GROUP_BEST if small_groups > 1 else 1, math.ceil(2 * small_k / small_groups), math.ceil(small_k / small_top)
    )
    small = min(experts, small_groups * a_group)
    for key in EXPERTS:
        if draft.number(key) == experts:
            draft.put(key, small, "at least twice as many as a token is given")
    draft.put_where_there(TOP_K, small_k, "experts a token")
    draft.put_where_there(GROUPS, small_groups, "groups that divide the experts")
    draft.put_where_there(TOP_GROUPS, small_top, "the same share of the groups")
    for key in SHARED:
        shared = draft.number(key)
        if shared is not None:
            draft.put(key, min(shared, 2), "experts that see every token")
