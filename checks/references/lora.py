"""Low-rank adapters from their definition: W x + (alpha / r) · B (A x) (arXiv:2106.09685, equation 3)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional as F

from checks.errors import BadRequest

A, B = ".lora_A.weight", ".lora_B.weight"


class LoraLinear(nn.Module):
    """A frozen linear layer beside a trained low-rank product; `weight` and `bias` keep the base layer's names."""

    def __init__(self, base: nn.Linear, a: torch.Tensor, b: torch.Tensor, *, scaling: float) -> None:
        super().__init__()
        self.weight = base.weight
        self.bias = base.bias
        self.scaling = scaling
        self.lora_A = holding(a)
        self.lora_B = holding(b)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(…, in) → (…, out). The product runs in the adapter's dtype, the sum is taken back to the base's."""
        frozen = F.linear(hidden_states, self.weight, self.bias)
        adapted = self.lora_B(self.lora_A(hidden_states.to(self.lora_A.weight.dtype)))
        total: torch.Tensor = frozen + adapted * self.scaling
        return total.to(frozen.dtype)


def holding(weight: torch.Tensor) -> nn.Linear:
    """A bias-free linear layer with a trainable copy of `weight`."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone())
    return layer


def apply_lora(model: nn.Module, adapters: Mapping[str, torch.Tensor], *, alpha: float, r: int) -> tuple[str, ...]:
    """Adapt `model` in place, freeze all but the adapters, and return the paths of the adapted modules.

    adapters: canonical names `….q_proj.lora_A.weight` (r, in) and `….q_proj.lora_B.weight` (out, r). They are taken to
    float64 where the base is float64, else kept as given. Raises BadRequest for a name without its module or its
    counterpart, and for another shape.
    """
    known = [name for name in adapters if name.endswith((A, B))]
    for name in adapters:
        if name not in known:
            raise BadRequest("adapters", f"{name} is no adapter weight", "name it ….lora_A.weight or ….lora_B.weight")
    paths = sorted({name.removesuffix(A).removesuffix(B) for name in known})
    if not paths:
        raise BadRequest("adapters", "are empty", "give the weights of at least one adapted module")
    replaced = {path: build_adapted(model, path, adapters, alpha=alpha, r=r) for path in paths}
    model.requires_grad_(False)
    for path, layer in replaced.items():
        parent, _, field = path.rpartition(".")
        setattr(model.get_submodule(parent), field, layer)
    return tuple(paths)


def build_adapted(
    model: nn.Module, path: str, adapters: Mapping[str, torch.Tensor], *, alpha: float, r: int
) -> LoraLinear:
    """The adapted counterpart of the linear layer at `path`; raises BadRequest like `apply_lora`."""
    try:
        base = model.get_submodule(path)
    except AttributeError as error:
        raise BadRequest("adapters", f"the model has no module {path}", "give adapters of this model") from error
    if not isinstance(base, nn.Linear):
        raise BadRequest("adapters", f"{path} is a {type(base).__name__}", "adapt linear layers only")
    wanted = {path + A: (r, base.in_features), path + B: (base.out_features, r)}
    for name, shape in wanted.items():
        if name not in adapters:
            raise BadRequest("adapters", f"lack {name}", "give both factors of every adapted module")
        if tuple(adapters[name].shape) != shape:
            raise BadRequest("adapters", f"{name} has shape {tuple(adapters[name].shape)}", f"it must be {shape}")
    dtype = torch.float64 if base.weight.dtype == torch.float64 else None
    a, b = (adapters[name].to(dtype or adapters[name].dtype) for name in wanted)
    return LoraLinear(base, a, b, scaling=alpha / r)
