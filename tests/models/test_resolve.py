"""What a person may type as a model, and what is said when it cannot be one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tokenizers import Tokenizer

from checks.errors import BadRequest
from checks.models import check_positions, list_matrices, resolve_model
from checks.models import resolve as resolving
from checks.models.checkpoint import read_config


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(resolve_model("tiny:qwen3").path, tmp_path / "mine"))


def bare(directory: Path, **changes: Any) -> Path:
    """A directory with nothing but a small config.json."""
    config = {**read_config(resolve_model("tiny:llama").path), **changes}
    directory.mkdir()
    content = {key: value for key, value in config.items() if value is not ...}
    (directory / "config.json").write_text(json.dumps(content))
    return directory


def test_a_tiny_family_resolves_to_an_ordinary_checkpoint() -> None:
    model = resolve_model("tiny:qwen3")
    assert (model.label, model.family, model.positions, model.note) == ("tiny:qwen3", "qwen3", 2048, None)
    assert {path.name for path in model.path.iterdir()} == {
        "config.json",
        "model.safetensors",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "plumbline.json",
    }
    assert resolve_model("tiny:qwen3") == model


def test_an_unknown_family_gets_the_nearest_names() -> None:
    with pytest.raises(BadRequest) as caught:
        resolve_model("tiny:qwen4")
    assert str(caught.value) == ("model: tiny:qwen4 is no family that Plumbline knows; use tiny:qwen2 or tiny:qwen3.")


def test_an_unrecognisable_family_gets_all_names() -> None:
    with pytest.raises(BadRequest) as caught:
        resolve_model("tiny:zzz")
    assert caught.value.remedy.count("tiny:") == 12


def test_a_checkpoint_directory_resolves_to_itself(checkpoint: Path) -> None:
    model = resolve_model(str(checkpoint))
    assert (model.path, model.label, model.family, model.note) == (checkpoint, "mine", "qwen3", None)
    assert model.revision == resolve_model("tiny:qwen3").revision


def test_the_revision_follows_weights_and_config(checkpoint: Path) -> None:
    before = resolve_model(str(checkpoint)).revision
    config = read_config(checkpoint)
    (checkpoint / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    after_config = resolve_model(str(checkpoint)).revision
    content = bytearray((checkpoint / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (checkpoint / "model.safetensors").write_bytes(content)
    after_weights = resolve_model(str(checkpoint)).revision
    assert len({before, after_config, after_weights}) == 3


@pytest.mark.parametrize("as_file", [False, True])
def test_a_bare_config_gets_weights_and_the_tiny_tokenizer(tmp_path: Path, as_file: bool) -> None:
    directory = bare(tmp_path / "bare", hidden_size=32, max_position_embeddings=64)
    model = resolve_model(str(directory / "config.json" if as_file else directory))
    assert (model.label, model.family, model.positions) == ("bare", "llama", 64)
    assert model.note == f"weights are random, tokenizer is Plumbline's own: built from {directory}/config.json alone"
    weights = load_file(model.path / "model.safetensors")
    assert weights["model.norm.weight"].shape == (32,)
    assert 0.15 < float(weights["model.norm.weight"].log().std()) < 0.45
    assert Tokenizer.from_file(str(model.path / "tokenizer.json")).get_vocab_size() == 512
    assert [path.name for path in directory.iterdir()] == ["config.json"]


def test_a_tokenizer_beside_a_bare_config_is_used(tmp_path: Path) -> None:
    directory = bare(tmp_path / "bare", vocab_size=300)
    source = resolve_model("tiny:llama").path
    altered = (source / "tokenizer.json").read_text().replace("<|endoftext|>", "<|filler|>")
    (directory / "tokenizer.json").write_text(altered)
    model = resolve_model(str(directory))
    assert Tokenizer.from_file(str(model.path / "tokenizer.json")).token_to_id("<|filler|>") == 0
    assert model.note == f"weights are random: built from {directory}/config.json alone"


def test_a_config_of_a_checkpoint_is_taken_alone(checkpoint: Path) -> None:
    model = resolve_model(str(checkpoint / "config.json"))
    assert model.path != checkpoint
    assert (model.note or "").startswith("weights are random: built from")


def test_a_config_that_is_too_big_is_refused_with_its_size(tmp_path: Path) -> None:
    directory = bare(tmp_path / "big", hidden_size=4096, intermediate_size=16384, num_hidden_layers=80, head_dim=1024)
    with pytest.raises(BadRequest) as caught:
        resolve_model(str(directory))
    # 80 layers of 3 × 4096 × 16384 in the MLP and 12 × 1024 × 4096 in attention, head and embedding of 512 rows
    parameters = 80 * (3 * 4096 * 16384 + 12 * 1024 * 4096 + 2 * 4096) + 2 * 512 * 4096 + 4096
    assert f"would take {4 * parameters / 1024**3:.1f} GiB, over 2" in str(caught.value)
    assert "num_hidden_layers" in caught.value.remedy


def test_the_size_limit_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = bare(tmp_path / "bare", num_hidden_layers=1)
    size = 4 * (64 * (512 * 2 + 1) + 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64)
    monkeypatch.setattr(resolving, "BUILD_LIMIT_BYTES", size - 1)
    with pytest.raises(BadRequest, match="over"):
        resolve_model(str(directory))
    monkeypatch.setattr(resolving, "BUILD_LIMIT_BYTES", size)
    assert resolve_model(str(directory)).family == "llama"


def _cut(directory: Path) -> None:
    content = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(content[:-10])


def _lengthen(directory: Path) -> None:
    with (directory / "model.safetensors").open("ab") as file:
        file.write(b"more")


def _replace(name: str, content: str) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        (directory / name).write_text(content)

    return apply


def _remove(*names: str) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        for name in names:
            (directory / name).unlink()

    return apply


def _pickle(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def _index(directory: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_remove("config.json"), "{d}: has no config.json; give a directory with config.json in it."),
        (_replace("config.json", "{"), "{d}/config.json: is not JSON"),
        (_replace("config.json", "[]"), "{d}/config.json: is a JSON list; give an object of settings."),
        (_replace("config.json", "{}"), "{d}/config.json: has no architectures and no model_type; add for example"),
        (_replace("config.json", '{"architectures": ["A"]}'), "{d}/config.json: has architectures but no model_type"),
        (
            _replace("config.json", '{"model_type": "qwen33"}'),
            "{d}/config.json: transformers has no model_type 'qwen33'; did you mean qwen3",
        ),
        (_cut, "{d}/model.safetensors: is cut short or no safetensors file; copy the file again."),
        (_lengthen, "{d}/model.safetensors: is cut short or no safetensors file; copy the file again."),
        (_replace("model.safetensors", ""), "{d}/model.safetensors: is cut short or no safetensors file"),
        (_replace("model.safetensors", "PK" * 400), "{d}/model.safetensors: is cut short or no safetensors file"),
        (_pickle, "{d}: has its weights pickled (pytorch_model.bin); save them as safetensors"),
        (_index, "{d}/model.safetensors.index.json: names model-00002-of-00002.safetensors, which is missing (1 of 2"),
        (_replace("model.safetensors.index.json", "{}"), "{d}/model.safetensors.index.json: has no weight_map"),
        (_remove("tokenizer.json"), "{d}: has no tokenizer.json; save its fast tokenizer beside the weights."),
        (_replace("tokenizer.json", "x"), "{d}/tokenizer.json: is not JSON"),
        (_replace("tokenizer.json", "{}"), "{d}/tokenizer.json: is no tokenizer of the tokenizers library"),
    ],
)
def test_a_damaged_checkpoint_is_named(checkpoint: Path, damage: Callable[[Path], None], sentence: str) -> None:
    damage(checkpoint)
    with pytest.raises(BadRequest) as caught:
        resolve_model(str(checkpoint))
    assert str(caught.value).startswith("model " + sentence.format(d=checkpoint))
    assert "\n" not in str(caught.value)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    for text in ("", str(tmp_path / "nothing"), "Qwen/Qwen3-8B"):
        with pytest.raises(BadRequest, match=f"^model: {text!r} does not exist; give a checkpoint directory"):
            resolve_model(text)


def test_a_file_that_is_no_config_is_refused(checkpoint: Path) -> None:
    with pytest.raises(BadRequest, match=r"is a file other than config\.json"):
        resolve_model(str(checkpoint / "model.safetensors"))


@pytest.mark.parametrize("changes", [{"vocab_size": 100}, {"vocab_size": ...}])
def test_a_bare_config_without_tokenizer_needs_room_for_the_tiny_one(tmp_path: Path, changes: Any) -> None:
    with pytest.raises(BadRequest, match=r"no tokenizer.json beside it, and its vocab_size (100|None) is under"):
        resolve_model(str(bare(tmp_path / "bare", **changes)))


def test_a_config_that_cannot_be_built_says_what_transformers_says(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"config.json: transformers cannot build it \(\w+: .*\); correct the config"):
        resolve_model(str(bare(tmp_path / "bare", hidden_size="wide")))


def test_sequences_may_be_as_long_as_the_positions_and_no_longer() -> None:
    model = resolve_model("tiny:qwen3")
    check_positions(model, seq_len=2048)
    with pytest.raises(BadRequest) as caught:
        check_positions(model, seq_len=2049)
    assert str(caught.value) == "seq_len: 2049 exceeds the 2048 positions of tiny:qwen3; set seq_len to 2048 or less."


def test_the_matrices_of_a_checkpoint_are_listed_by_their_names() -> None:
    names = list_matrices(resolve_model("tiny:qwen3").path)
    assert len(names) == 16
    assert names[:2] == ("lm_head.weight", "model.embed_tokens.weight")
    assert "model.layers.1.self_attn.q_proj.weight" in names
    assert "model.layers.1.self_attn.q_norm.weight" not in names
