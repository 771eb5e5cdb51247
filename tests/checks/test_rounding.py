"""Which lower precision explains a wrong output: each operation by itself, and nothing that is no rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import nn

from checks.diagnosis.rounding import LEFT, Rounding, explain

TOKENS, WIDTH = 12, 16
Computed = Callable[[torch.Tensor], torch.Tensor]


class TinyRotaryEmbedding(nn.Module):
    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        frequencies = 10_000.0 ** -(torch.arange(WIDTH) / WIDTH)
        return (positions[:, None] * frequencies).cos() * 1.5


class TinyNorm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class TinyRouter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(draw(3, WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).sigmoid()


class Tiny(nn.Module):
    """A model with one of each operation that a lower precision may concern."""

    def __init__(self) -> None:
        super().__init__()
        self.rotary = TinyRotaryEmbedding()
        self.norm = TinyNorm()
        self.router = TinyRouter()
        self.up = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up.weight = nn.Parameter(draw(4, WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = self.up(self.norm(x)) * self.rotary(100.0 * torch.arange(TOKENS))
        mixed: torch.Tensor = torch.softmax(turned, dim=-1) + self.router(x)
        return mixed


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = draw(1, TOKENS, WIDTH)


def forward(
    *,
    norm: Computed | None = None,
    table: Computed | None = None,
    softmax: Computed | None = None,
    router: Computed | None = None,
    product: Computed | None = None,
) -> torch.Tensor:
    """The tiny model written out, with parts of it computed otherwise."""
    model = Tiny()
    positions = 100.0 * torch.arange(TOKENS)
    normed = (norm or model.norm)(X)
    up = (product or model.up)(normed)
    turned = up * (table or model.rotary)(positions)
    mixed = (softmax or (lambda scores: torch.softmax(scores, dim=-1)))(turned)
    return mixed + (router or model.router)(X)


def find(captured: torch.Tensor) -> Rounding | None:
    model = Tiny()

    def compute() -> Mapping[int, torch.Tensor]:
        return {0: model(X)}

    with torch.no_grad():
        return explain(compute, {0: captured.detach().double()}, model)


def low_norm(dtype: torch.dtype) -> Computed:
    def norm(x: torch.Tensor) -> torch.Tensor:
        low = x.to(dtype)
        return (low * torch.rsqrt(low.pow(2).mean(-1, keepdim=True) + 1e-6)).float()

    return norm


def low_angles(dtype: torch.dtype) -> Computed:
    def table(positions: torch.Tensor) -> torch.Tensor:
        frequencies = 10_000.0 ** -(torch.arange(WIDTH) / WIDTH)
        return (positions.to(dtype)[:, None] * frequencies.to(dtype)).float().cos() * 1.5

    return table


def low_table(dtype: torch.dtype) -> Computed:
    def table(positions: torch.Tensor) -> torch.Tensor:
        frequencies = 10_000.0 ** -(torch.arange(WIDTH) / WIDTH)
        return (positions[:, None] * frequencies).cos().to(dtype).float() * 1.5

    return table


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("softmax", lambda dtype: forward(softmax=lambda s: torch.softmax(s.to(dtype), dim=-1).float())),
        ("norm", lambda dtype: forward(norm=low_norm(dtype))),
        ("rotary angles", lambda dtype: forward(table=low_angles(dtype))),
        ("rotary table", lambda dtype: forward(table=low_table(dtype))),
        ("router", lambda dtype: forward(router=lambda x: (x.to(dtype) @ Tiny().router.weight.to(dtype)).sigmoid())),
        ("output", lambda dtype: forward().to(dtype).float()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_part_in_a_lower_precision_is_named(
    what: str, make: Callable[[torch.dtype], torch.Tensor], dtype: torch.dtype
) -> None:
    found = find(make(dtype))
    assert found is not None
    assert (found.what, found.dtype) == (what, str(dtype).removeprefix("torch."))
    assert found.left < 0.05
    assert str(found) == f"{what} in {found.dtype}"


def test_products_of_matrices_are_named_wherever_they_are() -> None:
    low = forward(
        product=lambda x: (x.bfloat16() @ Tiny().up.weight.bfloat16().T).float(),
        router=lambda x: (x.bfloat16() @ Tiny().router.weight.bfloat16()).float().sigmoid(),
    )
    found = find(low)
    assert found is not None
    assert str(found) == "matrix products in bfloat16"


@pytest.mark.parametrize(
    "wrong",
    [
        forward() * 1.003,
        forward() + 2**-9 * draw(7, TOKENS, WIDTH),
        forward(norm=lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3)),
        forward(softmax=lambda s: torch.softmax(1.004 * s, dim=-1)),
        forward(table=lambda p: Tiny().rotary(p + 1.0)),
    ],
    ids=["scale", "noise", "epsilon", "temperature", "position"],
)
def test_a_fault_that_is_no_rounding_is_not_explained_by_one(wrong: torch.Tensor) -> None:
    assert find(wrong) is None


def test_an_output_that_is_right_needs_no_explanation() -> None:
    assert find(forward()) is None


def test_an_explanation_may_leave_a_quarter_of_the_error() -> None:
    exact, low = forward(), forward(softmax=lambda s: torch.softmax(s.bfloat16(), dim=-1).float())
    rest = draw(8, TOKENS, WIDTH)
    for left, named in ((LEFT * 0.9, True), (LEFT * 1.2, False)):
        # ‖rest‖ is `left` of the whole error, up to the angle between the two
        mixed = low + rest / rest.norm() * (low - exact).norm() * left
        assert (find(mixed) is not None) is named
    assert LEFT == 0.25


def test_the_reference_is_as_it_was_afterwards() -> None:
    model = Tiny()
    before = model(X)
    explain(lambda: {0: model(X)}, {0: before.double() + 1e-3}, model)
    assert model(X).equal(before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
