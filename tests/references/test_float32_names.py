"""What a model class keeps in float32: read off its declaration, kept by the reference, expected of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from checks.errors import BadRequest
from checks.references.float32_names import read_float32_names
from checks.references.model import State, build_model, choose_source
from checks.spec import RunSpec
from tests.references.checkpoints import save_checkpoint

GATE = "model.layers.1.mlp.gate.weight"
NOTHING = State({}, {})


def test_routers_are_kept_where_the_class_says_so_and_norms_in_float16_alone(tmp_path: Path) -> None:
    deepseek = save_checkpoint(tmp_path / "deepseek_v3", "deepseek_v3")
    assert read_float32_names(deepseek, torch.bfloat16) == {GATE}
    assert read_float32_names(deepseek, torch.float32) == frozenset()
    gpt_oss = save_checkpoint(tmp_path / "gpt_oss", "gpt_oss")
    assert read_float32_names(gpt_oss, torch.bfloat16) == frozenset()
    assert "model.norm.weight" in read_float32_names(gpt_oss, torch.float16)
    assert read_float32_names(save_checkpoint(tmp_path / "qwen3", "qwen3"), torch.bfloat16) == frozenset()
    (gpt_oss / "config.json").write_text('{"model_type": "nothing"}')
    with pytest.raises(BadRequest, match="cannot build a model of it"):
        read_float32_names(gpt_oss, torch.bfloat16)


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_the_reference_rounds_all_but_what_the_class_keeps(tmp_path: Path, family: str) -> None:
    checkpoint = save_checkpoint(tmp_path, family)
    source, spec = choose_source(checkpoint), RunSpec("transformers", checkpoint, checkpoint, precision="bf16_params")

    def parameters(spec: RunSpec, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return dict(build_model(source, spec, NOTHING, dtype=dtype, attention="eager").named_parameters())

    asked = parameters(replace(spec, precision="float32"), torch.float64)
    exact, own = parameters(spec, torch.float64), parameters(spec, torch.bfloat16)
    assert torch.equal(exact[GATE], asked[GATE])
    assert own[GATE].dtype == torch.float32
    other = "model.layers.1.self_attn.o_proj.weight"
    assert own[other].dtype == torch.bfloat16
    assert torch.equal(exact[other], asked[other].bfloat16().double())
    assert not torch.equal(exact[other], asked[other])
    assert source.plain is (family == "deepseek_v3")
