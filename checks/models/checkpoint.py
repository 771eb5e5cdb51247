"""The files of a checkpoint directory: configuration, weights and tokenizer, each checked before it is trusted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from checks.errors import BadRequest
from checks.models.cache import hash_file


def read_config(directory: Path) -> Mapping[str, Any]:
    """Return config.json, which must be an object with a model_type; raises BadRequest."""
    file = directory / "config.json"
    if not file.is_file():
        raise BadRequest(f"model {directory}", "has no config.json", "give a directory with config.json in it")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"model {file}", f"is not JSON ({error})", "restore the file") from None
    except OSError as error:
        raise BadRequest(f"model {file}", f"cannot be read ({error.strerror})", "make the file readable") from None
    if not isinstance(config, dict):
        raise BadRequest(f"model {file}", f"is a JSON {type(config).__name__}", "give an object of settings")
    if not isinstance(config.get("model_type"), str) or not config["model_type"]:
        has = "architectures but no" if config.get("architectures") else "no architectures and no"
        raise BadRequest(f"model {file}", f"has {has} model_type", 'add for example "model_type": "qwen3"')
    return config


def find_weights(directory: Path) -> tuple[Path, ...]:
    """The safetensors files of a checkpoint, all that its index names; empty when it has none."""
    index = directory / "model.safetensors.index.json"
    files = tuple(sorted(directory.glob("*.safetensors")))
    if not files and not index.is_file():
        pickled = sorted(directory.glob("*.bin")) + sorted(directory.glob("*.pt")) + sorted(directory.glob("*.pth"))
        if pickled:
            found = f"has its weights pickled ({pickled[0].name})"
            raise BadRequest(f"model {directory}", found, "save them as safetensors: Plumbline loads no pickle")
        return ()
    if index.is_file():
        files = _read_index(index)
    for file in files:
        read_header(file)
    return files


def _read_index(index: Path) -> tuple[Path, ...]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError):
        raise BadRequest(f"model {index}", "has no weight_map", "restore the file") from None
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        found = f"names {missing[0]}, which is missing ({len(missing)} of {len(names)} files)"
        raise BadRequest(f"model {index}", found, "complete the checkpoint")
    return tuple(index.parent / name for name in names)


def list_matrices(directory: Path) -> tuple[str, ...]:
    """Return the names of the tensors of two dimensions in a checkpoint's weight files, in alphabetical order."""
    tables = [read_header(file) for file in find_weights(directory)]
    return tuple(sorted(name for table in tables for name, entry in table.items() if len(entry["shape"]) == 2))


def read_header(file: Path) -> Mapping[str, Any]:
    """Return the tensor table of a safetensors file, checked against the file's length.

    The file is 8 bytes of header size, the header in JSON, then the data (https://huggingface.co/docs/safetensors).
    Raises BadRequest for a file that is cut short or is none.
    """
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length)) if 0 < length <= size - 8 else {}
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = max(entry["data_offsets"][1] for entry in tensors.values())
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        tensors, end = {}, 0
    if not tensors or 8 + length + end != size:
        raise BadRequest(f"model {file}", "is cut short or no safetensors file", "copy the file again")
    return tensors


def check_tokenizer(directory: Path) -> None:
    """Raise BadRequest unless tokenizer.json is there and is one."""
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise BadRequest(f"model {directory}", "has no tokenizer.json", "save its fast tokenizer beside the weights")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadRequest(f"model {file}", f"is not JSON ({error})", "restore the file") from None
    if not isinstance(content, dict) or "model" not in content:
        raise BadRequest(f"model {file}", "is no tokenizer of the tokenizers library", "restore the file")


def compute_revision(directory: Path, weights: tuple[Path, ...]) -> str:
    """Return 12 digits of SHA-256 over the names and contents of config.json and the weight files."""
    digest = hashlib.sha256()
    for file in (directory / "config.json", *weights):
        state = file.stat()
        digest.update(f"{file.name}\0{_hash_unchanged(file, state.st_size, state.st_mtime_ns)}\n".encode())
    return digest.hexdigest()[:12]


@lru_cache(maxsize=256)
def _hash_unchanged(file: Path, _size: int, _modified_ns: int) -> str:
    """A file's hash, taken once a process while size and time stand: one request resolves its model several times."""
    return hash_file(file)


def read_text_setting(config: Mapping[str, Any], name: str) -> object:
    """A setting of the language model, which multimodal configs keep under text_config."""
    nested = config.get("text_config")
    return config.get(name, nested.get(name) if isinstance(nested, dict) else None)
