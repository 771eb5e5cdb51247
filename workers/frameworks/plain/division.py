"""Divide a model over processes, each way the shortest that torch has: a sibling of `train.py`, which loads it.

Runs in the framework's environment and imports nothing of Plumbline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
"""one weight for all heads: each rank has the gradient of its own heads only"""


def divide(model: Any, config: dict[str, Any], device: torch.device) -> tuple[Any, dist.ProcessGroup | None]:
    """Return the model as this rank trains it, and the group over which its sharded parameters are spread."""
    for axis in ("dp", "tp", "ep"):
        if config[f"{axis}_size"] > 1:
            mesh = init_device_mesh(device.type, (config[f"{axis}_size"],), mesh_dim_names=(axis,))
            if axis == "dp" and config["sharding"] == "ddp":
                return DistributedDataParallel(model), None
            {"dp": shard_parameters, "tp": shard_matrices, "ep": shard_experts}[axis](model, mesh)
            return model, mesh.get_group()
    return model, None


def shard_parameters(model: Any, mesh: DeviceMesh) -> None:
    """FSDP2: each decoder layer by itself, and the rest."""
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def shard_matrices(model: Any, mesh: DeviceMesh) -> None:
    """Tensor parallel: heads and hidden units of each layer are divided (https://arxiv.org/abs/1909.08053)."""
    plan = {**{name: ColwiseParallel() for name in COLUMNS}, **{name: RowwiseParallel() for name in ROWS}}
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)


def add_head_gradients(model: Any, group: dist.ProcessGroup | None) -> None:
    """Add up, over the group, what each rank's heads say of the norms that all heads share."""
    for path, module in model.named_modules():
        if path.endswith(HEAD_NORMS) and module.weight.grad is not None:
            dist.all_reduce(module.weight.grad, group=group)


class LocalExperts(nn.Module):
    """The experts of one rank, of a layer's E: (E, 2i, h) and (E, h, i), both divided along E.

    Every rank has all tokens. What the others' experts give is added in the forward; in the backward the gradients of
    the tokens and of their weights are.
    """

    def __init__(self, experts: Any, mesh: DeviceMesh) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(distribute_tensor(experts.gate_up_proj.data, mesh, [Shard(0)]))
        self.down_proj = nn.Parameter(distribute_tensor(experts.down_proj.data, mesh, [Shard(0)]))
        self.act_fn = experts.act_fn
        self.group = mesh.get_group()
        self.rank = mesh.get_local_rank()

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """hidden_states: (tokens, h); top_k_index, top_k_weights: (tokens, k); returns (tokens, h)."""
        states = add_gradients(hidden_states, self.group)
        weights = add_gradients(top_k_weights, self.group)
        divided: Any = (self.gate_up_proj, self.down_proj)
        gate_up_proj, down_proj = (each.to_local() for each in divided)
        first = self.rank * gate_up_proj.shape[0]
        # A sum that touches every parameter: one without a token has a gradient of zero, not none.
        total = torch.zeros_like(states) + 0.0 * (gate_up_proj.sum() + down_proj.sum())
        for index in range(gate_up_proj.shape[0]):
            token, choice = torch.where(top_k_index == first + index)
            gate, up = nn.functional.linear(states[token], gate_up_proj[index]).chunk(2, dim=-1)
            given = nn.functional.linear(self.act_fn(gate) * up, down_proj[index])
            total = total.index_add(0, token, given * weights[token, choice, None])
        return add_outputs(total, self.group)


class AddGradients(torch.autograd.Function):
    """The identity, whose gradient is the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class AddOutputs(torch.autograd.Function):
    """The sum of all ranks' tensors, whose gradient every rank takes as it is."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


add_gradients: Callable[[torch.Tensor, dist.ProcessGroup], torch.Tensor] = AddGradients.apply
add_outputs: Callable[[torch.Tensor, dist.ProcessGroup], torch.Tensor] = AddOutputs.apply


def shard_experts(model: Any, mesh: DeviceMesh) -> None:
    """Expert parallel: each rank holds some of every layer's experts, and all of the rest."""
    for layer in model.model.layers:
        if hasattr(layer.mlp, "experts"):
            layer.mlp.experts = LocalExperts(layer.mlp.experts, mesh)
