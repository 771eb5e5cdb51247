"""The load-balancing auxiliary loss of mixtures of experts, from its definition (arXiv:2101.03961, equations 4–6)."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def load_balancing_loss(
    router_logits: Sequence[torch.Tensor],
    *,
    top_k: int,
    attention_mask: torch.Tensor | None = None,
    selected: Sequence[torch.Tensor] | None = None,
) -> torch.Tensor:
    """E · Σ_e f_e · P_e over the tokens of all layers; `top_k` when the routing is even.

    f_e is the share of tokens routed to expert e (the shares add up to top_k), P_e the mean of its softmax probability;
    only P carries a gradient. router_logits: a layer each, (tokens, E), tokens in the order of attention_mask (B, S),
    whose zeros are excluded; selected: a layer each, (tokens, top_k) expert indices, replayed in place of the top-k of
    the logits. → scalar in the dtype of the logits. Raises ValueError where nothing is routed or shapes disagree.
    """
    if not router_logits:
        raise ValueError("no router logits: the model routes nothing")
    tokens, experts = router_logits[0].shape
    counted = torch.ones(tokens, dtype=torch.bool) if attention_mask is None else attention_mask.reshape(-1).bool()
    if counted.shape[0] != tokens:
        raise ValueError(f"attention_mask has {counted.shape[0]} positions, the router logits {tokens}")
    probabilities = [torch.softmax(layer, dim=-1)[counted] for layer in router_logits]
    choices = selected or [layer.topk(top_k, dim=-1).indices for layer in router_logits]
    rows = torch.cat([choice[counted] for choice in choices])
    routed = torch.nn.functional.one_hot(rows, experts).sum(dim=1)
    share = routed.to(router_logits[0].dtype).mean(dim=0)
    return experts * (share * torch.cat(probabilities).mean(dim=0)).sum()
