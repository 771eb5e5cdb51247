"""Low-rank adapters from their definition: W x + (alpha / r) · B (A x) (arXiv:2106.09685, equation 3).

Of an embedding, whose input is a token's index, that is its column of W + (alpha / r) · B A: whatever the layer does
with the looked up row, such as Gemma's scale, it does with the adapter's part too.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional as F

from checks.errors import BadRequest

A, B = ".lora_A.weight", ".lora_B.weight"
EMBEDDING_A, EMBEDDING_B = ".lora_embedding_A", ".lora_embedding_B"
"""(r, vocabulary) and (hidden, r)"""


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


class LoraEmbedding(nn.Module):
    """A frozen embedding whose rows are those of the table and the trained product together."""

    def __init__(self, base: nn.Embedding, a: torch.Tensor, b: torch.Tensor, *, scaling: float) -> None:
        super().__init__()
        self.weight = base.weight
        self.scaling = scaling
        self.lora_embedding_A = nn.Parameter(a.detach().clone())
        self.lora_embedding_B = nn.Parameter(b.detach().clone())
        self._base = (base,)  # no child: its table keeps the name that it has

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """(…) → (…, hidden), computed by the layer itself on the adapted table."""
        table = self.weight + ((self.lora_embedding_B @ self.lora_embedding_A).T * self.scaling).to(self.weight.dtype)
        looked_up: torch.Tensor = torch.func.functional_call(self._base[0], {"weight": table}, (input_ids,))
        return looked_up


def holding(weight: torch.Tensor) -> nn.Linear:
    """A bias-free linear layer with a trainable copy of `weight`."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone())
    return layer


def apply_lora(model: nn.Module, adapters: Mapping[str, torch.Tensor], *, alpha: float, r: int) -> tuple[str, ...]:
    """Adapt `model` in place, freeze all but the adapters, and return the paths of the adapted modules.

    adapters: canonical names `….q_proj.lora_A.weight` (r, in) and `….q_proj.lora_B.weight` (out, r), of an embedding
    `….lora_embedding_A` and `….lora_embedding_B`. They are taken to float64 where the base is float64, else kept as
    given. Raises BadRequest for a name without its module or its counterpart, and for another shape.
    """
    known = [name for name in adapters if name.endswith((A, B, EMBEDDING_A, EMBEDDING_B))]
    for name in adapters:
        if name not in known:
            raise BadRequest("adapters", f"{name} is no adapter weight", "name it ….lora_A.weight or ….lora_B.weight")
    paths = sorted({name[: name.index(".lora_")] for name in known})
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
) -> LoraLinear | LoraEmbedding:
    """The adapted counterpart of the layer at `path`; raises BadRequest like `apply_lora`."""
    try:
        base = model.get_submodule(path)
    except AttributeError as error:
        raise BadRequest("adapters", f"the model has no module {path}", "give adapters of this model") from error
    if isinstance(base, nn.Linear):
        wanted = {path + A: (r, base.in_features), path + B: (base.out_features, r)}
        a, b = _read_factors(adapters, wanted, dtype=base.weight.dtype)
        return LoraLinear(base, a, b, scaling=alpha / r)
    if isinstance(base, nn.Embedding):
        wanted = {path + EMBEDDING_A: (r, base.num_embeddings), path + EMBEDDING_B: (base.embedding_dim, r)}
        a, b = _read_factors(adapters, wanted, dtype=base.weight.dtype)
        return LoraEmbedding(base, a, b, scaling=alpha / r)
    found = f"{path} is a {type(base).__name__}"
    raise BadRequest("adapters", found, "adapt linear layers and embeddings only")


def _read_factors(
    adapters: Mapping[str, torch.Tensor], wanted: Mapping[str, tuple[int, int]], *, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both factors of one layer, in float64 where that is its dtype."""
    for name, shape in wanted.items():
        if name not in adapters:
            raise BadRequest("adapters", f"lack {name}", "give both factors of every adapted module")
        if tuple(adapters[name].shape) != shape:
            raise BadRequest("adapters", f"{name} has shape {tuple(adapters[name].shape)}", f"it must be {shape}")
    a, b = (adapters[name].to(torch.float64 if dtype == torch.float64 else adapters[name].dtype) for name in wanted)
    return a, b
