"""A directory of safetensors that an engine, or an export, holds its weights in; tensors are read one at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from checks.errors import BadRequest

FIELD = "synced"
STATEMENT = "sync.json"
"""`{"step": 3, "engine": "vllm", "version": "0.11.0"}`: the optimizer steps that the weights have taken, and where"""


@dataclass(frozen=True)
class Dump:
    """`files`: tensor → its file; `shapes`: tensor → shape; `stated`: the content of sync.json, empty where there is
    none; `config`: that of config.json, likewise.
    """

    directory: Path
    files: Mapping[str, Path]
    shapes: Mapping[str, tuple[int, ...]]
    stated: Mapping[str, Any]
    config: Mapping[str, Any]

    @property
    def step(self) -> int | None:
        """How many optimizer steps the weights are said to have taken."""
        step = self.stated.get("step")
        return step if isinstance(step, int) and not isinstance(step, bool) else None

    @property
    def label(self) -> str:
        """The engine as a sentence names it."""
        words = [str(self.stated[key]) for key in ("engine", "version") if self.stated.get(key)]
        return " ".join(words) or "the engine"

    def read(self, name: str) -> torch.Tensor:
        """One tensor, in its own dtype.

        Raises:
            BadRequest: its file cannot be read any more.
        """
        try:
            with safe_open(str(self.files[name]), framework="pt", device="cpu") as file:
                tensor: torch.Tensor = file.get_tensor(name)
                return tensor
        except (OSError, SafetensorError) as error:
            raise _unreadable(self.files[name], error) from error


def resolve_dump(text: str) -> Path:
    """The directory that the setting `synced` means.

    Raises:
        BadRequest: there is no such directory, or it holds no safetensors.
    """
    directory = Path(text).expanduser()
    if not directory.is_dir():
        found = f"{text!r} is no directory"
        raise BadRequest(FIELD, found, "name the directory that the engine's weights were written into")
    if not any(directory.glob("*.safetensors")):
        raise BadRequest(FIELD, f"{directory} holds no *.safetensors", "write the engine's weights as safetensors")
    return directory.resolve()


def read_dump(directory: Path) -> Dump:
    """Open a dump: names, shapes and what is stated of it.

    Raises:
        BadRequest: a file that cannot be read, a tensor that two files hold, or a statement that is no object.
    """
    resolve_dump(str(directory))
    files: dict[str, Path] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(str(path), framework="pt", device="cpu") as file:
                for name in file.keys():  # noqa: SIM118 (no mapping)
                    if name in files:
                        found = f"{name} is in {files[name].name} and in {path.name}"
                        raise BadRequest(FIELD, found, "write each tensor once; of several ranks gather the parts")
                    files[name] = path
                    shapes[name] = tuple(file.get_slice(name).get_shape())
        except (OSError, SafetensorError) as error:
            raise _unreadable(path, error) from error
    return Dump(directory, files, shapes, _read_object(directory / STATEMENT), _read_object(directory / "config.json"))


def _read_object(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest(FIELD, f"{path} is no JSON ({error})", 'write it as {"step": 3, "engine": "vllm"}') from error
    if not isinstance(content, dict):
        raise BadRequest(FIELD, f"{path} is no object", 'write it as {"step": 3, "engine": "vllm"}')
    return content


def _unreadable(path: Path, error: Exception) -> BadRequest:
    first = (str(error).strip() or type(error).__name__).split("\n")[0]
    return BadRequest(FIELD, f"{path} cannot be read ({first})", "write the dump again")
