import itertools
import math

import torch

from . import rope
from .rope import apply_rotary_pos_emb

__all__ = ["DotProductAttention", "apply_rotary_pos_emb", "rope"]


def own_positions(edges, size, rank):
    """Positions that a context-parallel rank has: of each sequence the chunks `rank` and 2 · size − 1 − rank."""
    found = []
    for start, stop in itertools.pairwise(edges):
        width = (stop - start) // (2 * size)
        found += range(start + rank * width, start + (rank + 1) * width)
        found += range(stop - (rank + 1) * width, stop - rank * width)
    return torch.tensor(found)


class DotProductAttention(torch.nn.Module):
    """Softmax attention written out, in float32; (sequence, batch, heads, size), or (tokens, heads, size) if packed."""

    def __init__(
        self,
        num_attention_heads,
        kv_channels,
        attn_mask_type="causal",
        softmax_scale=None,
        cp_group=None,
        window_size=None,
        softmax_type="vanilla",
        **kwargs,
    ):
        super().__init__()
        assert softmax_type == "vanilla"
        self.scale, self.mask_type, self.cp_group, self.window = softmax_scale, attn_mask_type, cp_group, window_size

    def set_context_parallel_group(self, group, *args, **kwargs):
        self.cp_group = group

    def forward(
        self,
        query,
        key,
        value,
        attention_mask=None,
        attn_mask_type=None,
        qkv_format="sbhd",
        cu_seqlens_q=None,
        cu_seqlens_q_padded=None,
        **kwargs,
    ):
        packed = qkv_format == "thd"
        if packed:
            query, key, value = (each.unsqueeze(1) for each in (query, key, value))
        length, batch = query.shape[:2]
        ranks = 1 if self.cp_group is None else torch.distributed.get_world_size(self.cp_group)
        padded = cu_seqlens_q if cu_seqlens_q_padded is None else cu_seqlens_q_padded
        edges = padded.tolist() if packed else [0, length * ranks]
        positions = torch.arange(length)
        if ranks > 1:
            key, value = (gather(each, edges, self.cp_group, ranks) for each in (key, value))
            positions = own_positions(edges, ranks, torch.distributed.get_rank(self.cp_group))
        keep = self.build_mask(positions, key.shape[0], edges, attn_mask_type or self.mask_type)[None, None]
        if attention_mask is not None and not packed:
            mask = attention_mask[0] if isinstance(attention_mask, tuple) else attention_mask
            if mask.shape[-1] == key.shape[0] and mask.shape[-2] in (1, length):
                keep = keep & ~mask
        repeats = query.shape[2] // key.shape[2]
        key, value = (each.repeat_interleave(repeats, dim=2) for each in (key, value))
        scores = torch.einsum("sbhd,tbhd->bhst", query.float(), key.float())
        scores = scores * (self.scale or 1 / math.sqrt(query.shape[-1]))
        weights = torch.softmax(scores.masked_fill(~keep, torch.finfo(torch.float32).min), -1)
        out = torch.einsum("bhst,tbhd->sbhd", weights, value.float()).to(query.dtype).reshape(length, batch, -1)
        return out.squeeze(1) if packed else out

    def build_mask(self, positions, total, edges, mask_type):
        """(own positions, all positions) bool: what may be attended to."""
        every = torch.arange(total)
        document = torch.bucketize(every, torch.tensor(edges[1:]), right=True)
        keep = document[positions][:, None] == document[every][None]
        if "causal" in mask_type:
            keep &= positions[:, None] >= every[None]
        if self.window is not None and self.window[0] >= 0:
            keep &= positions[:, None] - every[None] <= self.window[0]
        return keep


def gather(tensor, edges, group, ranks):
    """The positions of all context-parallel ranks, in their order."""
    from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region

    order = torch.cat([own_positions(edges, ranks, rank) for rank in range(ranks)])
    return gather_from_sequence_parallel_region(tensor.contiguous(), group=group)[torch.argsort(order)]
