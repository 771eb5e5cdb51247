"""Hugging Face's model as a float64 reference: nothing is computed in less, and what was lifted is listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from checks.errors import BadRequest
from checks.references.hf import lift_casts, load_hf, recompute_buffers, shared_code
from checks.references.plain import load_plain
from tests.references.checkpoints import FAMILIES, build_model, draw_batch, save_checkpoint

NARROW = (torch.float32, torch.bfloat16, torch.float16)


class NarrowSpy(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lists the operators, forward and backward, that make a tensor narrower than float64."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.dtype in NARROW:
                self.seen.add(str(func))
        return result


def list_attentions(family: str) -> list[str]:
    return ["eager"] if family == "gpt_oss" else ["eager", "sdpa"]


CASES = [(family, attention) for family in FAMILIES for attention in list_attentions(family)]


def run_backward(model: Any, *, spy: NarrowSpy | None = None) -> tuple[torch.Tensor, tuple[str, ...]]:
    ids, mask = draw_batch(), torch.ones(2, 24, dtype=torch.long)
    mask[1, 20:] = 0
    with lift_casts() as lifted, spy or NarrowSpy():
        loss = model(input_ids=ids, labels=ids.masked_fill(mask == 0, -100), attention_mask=mask).loss
        loss.backward()
    return loss, lifted.places


@pytest.mark.parametrize(("family", "attention"), CASES)
def test_every_family_runs_forward_and_backward_in_float64_alone(tmp_path: Path, family: str, attention: Any) -> None:
    model = load_hf(save_checkpoint(tmp_path, family), dtype=torch.float64, attention=attention)
    spy = NarrowSpy()
    loss, places = run_backward(model, spy=spy)
    assert spy.seen == set()
    assert loss.dtype == torch.float64
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    without = {name for name, gradient in gradients.items() if gradient is None}
    assert all(".indexer." in name for name in without)  # its selection carries no gradient
    assert {gradient.dtype for gradient in gradients.values() if gradient is not None} == {torch.float64}
    assert any(place.startswith("transformers/models/") for place in places)
    assert "transformers/loss/loss_utils.py:ForCausalLMLoss" in {place.rpartition(":")[0] for place in places}


def test_the_casts_of_qwen3_are_listed_once_each_by_place(tmp_path: Path) -> None:
    model = load_hf(save_checkpoint(tmp_path, "qwen3"), dtype=torch.float64, attention="eager")
    _, places = run_backward(model)
    functions = [place.rpartition(":")[0].rpartition("/")[2] for place in places]
    assert functions == [
        "loss_utils.py:ForCausalLMLoss",
        "modeling_qwen3.py:eager_attention_forward",
        "modeling_qwen3.py:forward",  # rotary positions
        "modeling_qwen3.py:forward",  # the norm
    ]
    assert list(places) == sorted(set(places))


def test_without_lifting_the_model_computes_in_float32(tmp_path: Path) -> None:
    model: Any = load_hf(save_checkpoint(tmp_path, "qwen3"), dtype=torch.float64, attention="eager")
    spy = NarrowSpy()
    ids = draw_batch()
    with spy:
        shipped = model(input_ids=ids, labels=ids).loss
    assert "aten._to_copy.default" in spy.seen
    with lift_casts():
        exact = model(input_ids=ids, labels=ids).loss
    assert 1e-10 < abs(shipped.item() - exact.item()) < 1e-4


def test_what_asks_for_nothing_narrower_is_left_alone() -> None:
    wide, narrow = torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float32)
    with lift_casts() as lifted:
        assert narrow.float() is narrow
        assert narrow.to(torch.float32).dtype == torch.float32
        assert torch.zeros(2, dtype=torch.float32).dtype == torch.float32  # this file is not transformers
        assert wide.to(torch.bfloat16).dtype == torch.bfloat16
        assert wide.view(torch.float32).dtype == torch.float32
        assert torch.arange(3).float().dtype == torch.float32
    assert lifted.places == ()


def test_a_narrow_model_keeps_its_own_casts() -> None:
    norm = LlamaRMSNorm(8).bfloat16()
    states = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    with lift_casts() as lifted:
        inside = norm(states)
    assert lifted.places == ()
    assert torch.equal(inside, norm(states))


@pytest.mark.parametrize(
    "cast",
    [
        lambda x: x.float(),
        lambda x: x.to(torch.float32),
        lambda x: x.to("cpu", torch.float32),
        lambda x: x.to(dtype=torch.float32),
        lambda x: x.to(torch.ones(1, dtype=torch.float32)),
        lambda x: x.to(tensor=torch.ones(1, dtype=torch.float32)),
        lambda x: x.type(torch.float32),
        lambda x: x.type_as(torch.ones(1, dtype=torch.float32)),
        lambda x: torch.softmax(x, -1, dtype=torch.float32),
        lambda x: nn.functional.softmax(x, dim=-1, dtype=torch.float32),
        lambda x: x.sum(dtype=torch.float32),
        lambda x: x.new_zeros(2, dtype=torch.float32),
        lambda x: torch.zeros_like(x, dtype=torch.float32),
    ],
)
def test_every_way_to_ask_for_float32_is_lifted_and_listed(cast: Any) -> None:
    wide = torch.ones(2, dtype=torch.float64)
    with lift_casts() as lifted:
        assert cast(wide).dtype == torch.float64
    assert cast(wide).dtype == torch.float32
    assert [place.split(":")[:2] for place in lifted.places] == [["test_hf.py", "<lambda>"]]


def test_the_default_dtype_is_restored_even_after_an_error() -> None:
    def fail() -> None:
        with lift_casts():
            raise ValueError(torch.get_default_dtype())

    with pytest.raises(ValueError, match=r"torch\.float64"):
        fail()
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn"])
def test_rotary_frequencies_are_those_of_the_definition_in_float64(tmp_path: Path, kind: str) -> None:
    parameters = {
        "rope_type": kind,
        "rope_theta": 10000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    checkpoint = save_checkpoint(
        tmp_path, "llama", rope_parameters={**parameters, "original_max_position_embeddings": 64}
    )
    model: Any = load_hf(checkpoint, dtype=torch.float64)
    ours = load_plain(checkpoint, dtype=torch.float64).model.rotary_emb
    assert model.model.rotary_emb.inv_freq.dtype == torch.float64
    assert torch.allclose(model.model.rotary_emb.inv_freq, ours.inv_freq, rtol=1e-14, atol=0)
    assert model.model.rotary_emb.attention_scaling == pytest.approx(ours.attention_scaling, rel=1e-15)


def test_an_embedding_scale_is_recomputed_in_float64(tmp_path: Path) -> None:
    model: Any = load_hf(save_checkpoint(tmp_path, "gemma3_text"), dtype=torch.float64)
    assert model.model.embed_tokens.embed_scale.item() == 32**0.5
    assert torch.tensor(32**0.5, dtype=torch.float32).item() != 32**0.5


def test_a_derived_buffer_of_unknown_definition_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_buffer("table", torch.ones(3), persistent=False)
    with pytest.raises(BadRequest, match=r"0\.table of Linear has no known definition in float64"):
        recompute_buffers(model)


def test_the_model_is_loaded_as_it_is_trained(tmp_path: Path) -> None:
    model: Any = load_hf(save_checkpoint(tmp_path, "qwen3_moe"), dtype=torch.float32, attention="eager")
    assert (model.training, model.config.use_cache, model.config._attn_implementation) == (True, False, "eager")
    assert model.config._experts_implementation == "eager"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_gpt_oss_has_no_sdpa_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="does not support an attention implementation"):
        load_hf(save_checkpoint(tmp_path, "gpt_oss"), dtype=torch.float32, attention="sdpa")


def test_a_checkpoint_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = save_checkpoint(tmp_path, "mistral") / "model.safetensors"
    held = load_file(file)
    del held["model.layers.1.mlp.up_proj.weight"]
    save_file(held, file, metadata={"format": "pt"})
    with pytest.raises(BadRequest, match=r"missing keys: model\.layers\.1\.mlp\.up_proj\.weight"):
        load_hf(tmp_path, dtype=torch.float32)


def test_a_directory_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="transformers cannot load"):
        load_hf(tmp_path, dtype=torch.float32)


def test_shared_code_names_the_modules_in_use_with_their_version(tmp_path: Path) -> None:
    import transformers

    model = load_hf(save_checkpoint(tmp_path, "qwen3_moe"), dtype=torch.float32, attention="sdpa")
    names = [name.split(" ") for name in shared_code(model)]
    assert {version for _, version in names} == {transformers.__version__}
    assert [name for name, _ in names] == [
        "transformers.activations",
        "transformers.integrations.sdpa_attention",
        "transformers.loss.loss_utils",
        "transformers.masking_utils",
        "transformers.models.qwen3_moe.modeling_qwen3_moe",
    ]
    scaled = build_model("llama", rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0})
    assert f"transformers.modeling_rope_utils {transformers.__version__}" in shared_code(scaled)
    assert shared_code(load_plain(save_checkpoint(tmp_path / "plain", "llama"), dtype=torch.float32)) == ()
