"""Low-rank adapters on both reference models, against PEFT in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from checks.errors import BadRequest
from checks.references.hf import lift_casts, load_hf
from checks.references.lora import apply_lora
from checks.references.loss import count, objective, shift_labels, token_losses
from checks.references.plain import load_plain
from tests.references.checkpoints import draw_batch, save_checkpoint

R, ALPHA = 3, 12.0
TARGETS = ["q_proj", "v_proj", "down_proj"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3", attention_bias=True)


def adapt_with_peft(checkpoint: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """PEFT's model with adapters that are not zero, and its adapter weights by canonical name."""
    base: Any = load_hf(checkpoint, dtype=torch.float64)
    model: Any = get_peft_model(base, LoraConfig(r=R, lora_alpha=ALPHA, target_modules=TARGETS, lora_dropout=0.0))
    model.double()
    generator = torch.Generator().manual_seed(2)
    adapters = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, 0.0, 0.3, generator=generator)
            canonical = name.removeprefix("base_model.model.").replace(".default", "")
            adapters[canonical] = parameter.detach().clone()
    return model, adapters


def run_step(model: nn.Module) -> tuple[float, dict[str, torch.Tensor]]:
    ids = draw_batch()
    targets = shift_labels(ids)
    with lift_casts():
        output = model(input_ids=ids)
        logits = output if isinstance(output, torch.Tensor) else output.logits
        loss = objective(token_losses(logits, targets), targets, denominator=count(targets))
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return loss.item(), gradients


@pytest.mark.parametrize("load", [load_plain, load_hf])
def test_loss_and_adapter_gradients_equal_pefts_in_float64(checkpoint: Path, load: Any) -> None:
    theirs, adapters = adapt_with_peft(checkpoint)
    ours = load(checkpoint, dtype=torch.float64)
    paths = apply_lora(ours, adapters, alpha=ALPHA, r=R)
    assert len(paths) == 2 * len(TARGETS)
    (our_loss, our_gradients), (their_loss, their_gradients) = run_step(ours), run_step(theirs)
    assert our_loss == pytest.approx(their_loss, rel=1e-12)
    assert set(our_gradients) == set(adapters)
    for name, gradient in their_gradients.items():
        canonical = name.removeprefix("base_model.model.").replace(".default", "")
        assert float((our_gradients[canonical] - gradient).norm() / gradient.norm()) < 1e-10, canonical


@pytest.mark.parametrize("load", [load_plain, load_hf])
def test_base_weights_keep_their_names_and_are_frozen(checkpoint: Path, load: Any) -> None:
    _, adapters = adapt_with_peft(checkpoint)
    model = load(checkpoint, dtype=torch.float64)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    apply_lora(model, adapters, alpha=ALPHA, r=R)
    after = dict(model.named_parameters())
    assert set(after) == set(before) | set(adapters)
    assert all(torch.equal(after[name], tensor) for name, tensor in {**before, **adapters}.items())
    assert {name for name, parameter in after.items() if parameter.requires_grad} == set(adapters)


def test_the_product_by_hand() -> None:
    base = nn.Linear(2, 1, dtype=torch.float64)
    base.weight, base.bias = (
        nn.Parameter(torch.tensor([[1.0, 2.0]]).double()),
        nn.Parameter(torch.tensor([0.5]).double()),
    )
    model = nn.Sequential(base)
    adapters = {"0.lora_A.weight": torch.tensor([[3.0, -1.0]]), "0.lora_B.weight": torch.tensor([[2.0]])}
    assert apply_lora(model, adapters, alpha=8.0, r=1) == ("0",)
    x = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    assert model(x).item() == (1 + 2 + 0.5) + 8.0 * 2.0 * (3.0 - 1.0)


class Doubled(nn.Embedding):
    """An embedding that scales what it looks up, as Gemma's does."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2.0 * super().forward(input)


def test_the_product_of_an_embedding_by_hand_is_scaled_as_its_rows_are() -> None:
    base = Doubled(2, 1, dtype=torch.float64)
    base.weight = nn.Parameter(torch.tensor([[5.0], [7.0]]).double())
    model = nn.Sequential(base)
    factors = {"0.lora_embedding_A": torch.tensor([[3.0, -1.0]]), "0.lora_embedding_B": torch.tensor([[2.0]])}
    assert apply_lora(model, factors, alpha=8.0, r=1) == ("0",)
    looked_up = model(torch.tensor([1, 0]))
    assert looked_up.flatten().tolist() == [2.0 * (7.0 + 8.0 * 2.0 * -1.0), 2.0 * (5.0 + 8.0 * 2.0 * 3.0)]
    looked_up.sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert set(gradients) == {"0.weight", *factors}
    assert gradients["0.weight"] is None
    assert gradients["0.lora_embedding_A"].tolist() == [[32.0, 32.0]]  # 2 · 8 · B, once a row
    assert gradients["0.lora_embedding_B"].tolist() == [[32.0]]  # 2 · 8 · (3 − 1)


def test_adapters_keep_their_dtype_beside_a_narrow_base_and_the_output_that_of_the_base() -> None:
    model = nn.Sequential(nn.Linear(2, 2).bfloat16())
    adapters = {"0.lora_A.weight": torch.ones(1, 2), "0.lora_B.weight": torch.ones(2, 1)}
    apply_lora(model, adapters, alpha=1.0, r=1)
    dtypes = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert dtypes["0.lora_A.weight"] == dtypes["0.lora_B.weight"] == torch.float32
    assert model(torch.ones(1, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16


ONE = {"0.lora_A.weight": torch.ones(1, 2), "0.lora_B.weight": torch.ones(2, 1)}
WRONG: list[tuple[dict[str, torch.Tensor], str]] = [
    ({}, "are empty"),
    ({"0.weight": torch.ones(1)}, "0.weight is no adapter weight"),
    ({"9.lora_A.weight": torch.ones(1, 2)}, "the model has no module 9"),
    ({"1.lora_A.weight": torch.ones(1, 2)}, "1 is a ReLU"),
    ({"2.lora_embedding_A": torch.ones(1, 3)}, "lack 2.lora_embedding_B"),
    (
        {"2.lora_embedding_A": torch.ones(1, 2), "2.lora_embedding_B": torch.ones(2, 1)},
        "2.lora_embedding_A has shape (1, 2)",
    ),
    ({"0.lora_A.weight": torch.ones(1, 2)}, "lack 0.lora_B.weight"),
    ({**ONE, "0.lora_B.weight": torch.ones(1, 2)}, "0.lora_B.weight has shape (1, 2)"),
    ({**ONE, "0.lora_A.weight": torch.ones(2, 2)}, "0.lora_A.weight has shape (2, 2)"),
]


@pytest.mark.parametrize(("adapters", "found"), WRONG)
def test_adapters_that_do_not_fit_are_refused_and_leave_the_model_alone(
    adapters: dict[str, torch.Tensor], found: str
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Embedding(3, 2))
    with pytest.raises(BadRequest) as caught:
        apply_lora(model, adapters, alpha=1.0, r=1)
    assert caught.value.found == found
    assert type(model[0]) is nn.Linear
    assert model[0].weight.requires_grad
