"""Canonical names, the values that JSON can hold, and files that are written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from plumbline_capture.format import canonical_name, json_value, write_json
from plumbline_capture.roots import Root, find_root
from torch import nn

from tests.capture.plain_lm import PlainLM

NAMES = [
    ("model.norm.weight", "model.norm.weight"),
    ("module.model.norm.weight", "model.norm.weight"),
    ("module.module._orig_mod.lm_head.weight", "lm_head.weight"),
    ("model.layers.0._checkpoint_wrapped_module.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
    ("_fsdp_wrapped_module.model.layers.1._fsdp_wrapped_module.x.weight", "model.layers.1.x.weight"),
    (
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
        "model.layers.0.self_attn.q_proj.lora_A.weight",
    ),
    ("module.base_model.model.model.layers.0.q_proj.base_layer.weight", "model.layers.0.q_proj.weight"),
    ("base_model.model.model.embed_tokens.lora_embedding_B.policy", "model.embed_tokens.lora_embedding_B"),
    ("base_model.model.lm_head.modules_to_save.default.weight", "lm_head.weight"),
    ("base_model.model.lm_head.original_module.weight", "lm_head.original_module.weight"),
    ("model.module.weight", "model.module.weight"),
    ("model.model.weight", "model.model.weight"),
    ("", ""),
]


@pytest.mark.parametrize(("source", "canonical"), NAMES)
def test_wrappers_are_taken_off_a_name_and_nothing_else_is(source: str, canonical: str) -> None:
    assert canonical_name(source) == canonical
    assert canonical_name(canonical) == canonical


def test_json_values_are_strict_json() -> None:
    value = {"a": (1, float("inf"), float("-inf"), float("nan")), 3: {True}, "dtype": torch.float32, "none": None}
    expected = {"a": [1, "inf", "-inf", "nan"], "3": [True], "dtype": "torch.float32", "none": None}
    assert json_value(value) == expected
    assert json.loads(json.dumps(json_value(value), allow_nan=False)) == expected


def test_a_json_file_that_cannot_be_finished_leaves_the_old_one_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "manifest.json"
    write_json(path, {"version": 1})

    def disk_full(self: Path, data: str, encoding: str) -> int:
        self.write_bytes(b"{")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"version": 2})
    assert [entry.name for entry in tmp_path.iterdir()] == ["manifest.json"]
    assert json.loads(path.read_text()) == {"version": 1}


class _Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_the_root_of_a_wrapped_plain_model_is_the_model() -> None:
    model = PlainLM()
    root = find_root(_Wrapper(_Wrapper(model)))
    assert root is not None
    assert root.model is model
    assert len(root.doors) == 3
    name = root.name_of(model.head.weight)
    assert name is not None
    assert (name.canonical, name.source) == ("head.weight", "module.module.head.weight")


class _Config:
    """A model's settings, those of its language model among them where it is composed."""

    def __init__(self, text_config: object = None) -> None:
        self.text_config = text_config


class _TextConfig:
    """Settings of a language model."""


class _Language(nn.Module):
    """A language model as Hugging Face has them; `inner` is one that it is composed of, or wraps."""

    def __init__(self, config: object, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.language_model = PlainLM() if inner is None else inner

    def get_output_embeddings(self) -> nn.Module:
        found = self.language_model
        return found.head if isinstance(found, PlainLM) else found.get_output_embeddings()  # type: ignore[operator]


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_root_of_a_composed_model_is_the_whole_of_it(wrapped: bool) -> None:
    text = _TextConfig()
    inner = _Language(text)
    # A composed model copies the config of its language model, as transformers 4 does when it builds one from a config.
    composed = _Language(_Config(text_config=_TextConfig()), inner)
    outer = _Wrapper(_Language(composed.config, composed)) if wrapped else composed
    root = find_root(outer)
    assert root is not None
    assert root.model is composed
    name = root.name_of(inner.language_model.head.weight)  # type: ignore[arg-type, union-attr]
    assert name is not None
    assert name.canonical == "language_model.language_model.head.weight"


def test_the_root_of_what_only_wraps_a_language_model_is_that_model() -> None:
    text = _TextConfig()
    inner = _Language(text)
    root = find_root(_Language(text, inner))
    assert root is not None
    assert root.model is inner


def test_a_module_without_embedding_or_trainable_parameter_is_no_root() -> None:
    assert find_root(nn.Linear(2, 2)) is None
    assert find_root(nn.Embedding(3, 2)) is None
    assert find_root(PlainLM().requires_grad_(False)) is None


def test_two_parameters_never_share_a_canonical_name() -> None:
    layer = nn.Module()
    layer.lora_A = nn.ModuleDict({"default": nn.Linear(2, 2), "reference": nn.Linear(2, 2)})
    root = Root(layer)
    names = [name.canonical for name in map(root.name_of, layer.parameters()) if name is not None]
    assert names == ["lora_A.weight", "lora_A.bias", "lora_A.reference.weight", "lora_A.reference.bias"]
