"""Optimizer states that torch.distributed.checkpoint has saved, put together of its shards without a process group.

Such a directory holds `.metadata`, a pickle of which part of which tensor lies at which bytes of which file, and the
files of the ranks, `__RANK_N.distcp` (https://docs.pytorch.org/docs/stable/distributed.checkpoint.html). The pickle is
read by an unpickler that knows the classes of that table and no others, a part by `torch.load(weights_only=True)`:
neither executes anything. One tensor is in memory at a time.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from pathlib import Path
from typing import Any, Iterator, List, Mapping, Optional, Tuple

import torch

METADATA, SHARDS = ".metadata", "*.distcp"
REMEDY = "save the checkpoint again, or copy it again with all its files"

_TABLE = "torch.distributed.checkpoint."
_KNOWN = frozenset(
    {
        *(
            (f"{_TABLE}metadata", name)
            for name in (
                *("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "TensorStorageMetadata"),
                *("BytesStorageMetadata", "ChunkStorageMetadata", "_MEM_FORMAT_ENCODING"),
            )
        ),
        (f"{_TABLE}filesystem", "_StorageInfo"),
        # Megatron-core keeps the plan that the shards were written by in the table.
        *((f"{_TABLE}planner", name) for name in ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData")),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("collections", "OrderedDict"),
        *((module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")),
    }
)
"""what the table of a checkpoint is pickled of; data types are names of torch beside them"""

_STATE = re.compile(r"(?:[^.]+\.)?state\.(?P<name>.+)\.(?P<field>[^.]+)")
"""a state among the keys of `get_optimizer_state_dict`, flattened: `optim.state.model.norm.weight.exp_avg`"""
_ANY = re.compile(".*")


class UnreadShards(ValueError):
    """Shards that are missing, damaged, or no table of torch's; `str()` is the sentence."""

    def __init__(self, path: Path, found: str) -> None:
        super().__init__(f"{path.parent.name}/{path.name} {found}; {REMEDY}")


def find_shards(directory: Path) -> Optional[Path]:
    """Return where the shards of a checkpoint's optimizer lie, None where there are none.

    `directory`: what holds the weights. AutoModel exports these in `model/consolidated` of what it saves.
    """
    for folder in (directory / "optim", directory.parent.parent / "optim"):
        if (folder / METADATA).is_file() or any(folder.glob(SHARDS)):
            return folder
    return None


def read_shards(folder: Path) -> Iterator[Tuple[str, str, torch.Tensor]]:
    """Yield (parameter, field, value) of every state of an optimizer, each put together of its parts.

    Raises:
        UnreadShards: the table or a file of shards is missing or damaged, or the parts do not make the whole.
    """
    for key, value in read_tensors(folder, _STATE):
        match = _STATE.fullmatch(key)
        if match is not None:
            yield match["name"], match["field"], value


def read_tensors(folder: Path, wanted: "re.Pattern[str]" = _ANY) -> Iterator[Tuple[str, torch.Tensor]]:
    """Yield (key, value) of every tensor and number whose key is `wanted`; raises as `read_shards`."""
    table = _read_table(folder / METADATA)
    places = {(index.fqn, tuple(index.offset or ())): info for index, info in table.storage_data.items()}
    for key, entry in table.state_dict_metadata.items():
        if wanted.fullmatch(key) is None:
            continue
        value = _read_value(folder, key, entry, places)
        if isinstance(value, (int, float)):
            value = torch.tensor(value, dtype=torch.float64)
        if isinstance(value, torch.Tensor):
            yield key, value


class _TableUnpickler(pickle.Unpickler):
    """Unpickles the table of a checkpoint, and refuses a pickle that names anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in _KNOWN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a checkpoint's table")


def _read_table(path: Path) -> Any:
    if not path.is_file():
        raise UnreadShards(path, "is missing, which says what the shards hold")
    try:
        with path.open("rb") as file:
            table = _TableUnpickler(file).load()
        if not isinstance(table.storage_data, dict) or not isinstance(table.state_dict_metadata, dict):
            raise ValueError("it does not say where its tensors lie")
        return table
    except Exception as error:  # a damaged pickle raises anything
        first = str(error).strip().split("\n")[0]
        raise UnreadShards(path, f"cannot be read ({type(error).__name__}: {first})") from None


def _read_value(folder: Path, key: str, entry: Any, places: Mapping[Tuple[str, Tuple[int, ...]], Any]) -> Any:
    if not hasattr(entry, "chunks"):
        return _load(folder, key, places.get((key, ())))
    whole = torch.empty(tuple(entry.size), dtype=entry.properties.dtype)
    filled = 0
    for chunk in entry.chunks:
        offsets, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
        info = places.get((key, offsets))
        part = _load(folder, key, info)
        if not isinstance(part, torch.Tensor) or tuple(part.shape) != sizes or part.dtype != whole.dtype:
            where: Any = info
            raise UnreadShards(folder / str(where.relative_path), f"holds another part of {key} than {METADATA} says")
        whole[tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes))] = part
        filled += math.prod(sizes)
    if filled != whole.numel():
        raise UnreadShards(folder / METADATA, f"names {filled} of the {whole.numel()} numbers of {key}")
    return whole


def _load(folder: Path, key: str, info: Any) -> Any:
    if info is None:
        raise UnreadShards(folder / METADATA, f"does not say where {key} lies")
    path = folder / Path(str(info.relative_path)).name
    if not path.is_file():
        raise UnreadShards(path, f"is missing, which holds {key}")
    unread: List[Any] = list(getattr(info, "transform_descriptors", None) or ())
    if unread:
        raise UnreadShards(path, f"holds {key} transformed by {', '.join(map(str, unread))}, which is not undone here")
    with path.open("rb") as file:
        file.seek(info.offset)
        content = file.read(info.length)
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged archive raises anything
        first = str(error).strip().split("\n")[0]
        where = f"at bytes {info.offset} to {info.offset + info.length}"
        raise UnreadShards(path, f"is damaged {where}, where {key} lies ({type(error).__name__}: {first})") from None
