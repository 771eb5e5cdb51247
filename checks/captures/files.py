"""Reading safetensors files with every byte accounted for, whole or as a stream of bounded chunks.

The layout is public (https://github.com/huggingface/safetensors#format): 8 bytes little endian header length, a JSON
header, then the tensors' bytes. Reading goes through `readinto`, not a memory map, so that the peak memory of a
streamed comparison is the chunk and not the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from checks.errors import CaptureError

HEADER_LIMIT = 100_000_000
"""The format's own limit on the header, in bytes."""

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}

REMEDY = "record the capture again, or copy it again with its checksums"


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies: `start` and `stop` are absolute byte offsets in `file`."""

    file: Path
    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def read_header(file: Path) -> dict[str, StoredTensor]:
    """List the tensors of a safetensors file, refusing one whose bytes do not add up.

    Raises:
        CaptureError: the file is missing, truncated, or not safetensors.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > min(HEADER_LIMIT, size - 8):
                raise CaptureError(str(file), f"is truncated or no safetensors file ({size} bytes)", REMEDY)
            raw = stream.read(length)
    except OSError as error:
        raise CaptureError(str(file), f"cannot be read ({error.strerror})", REMEDY) from error
    try:
        header: Any = json.loads(raw)
        entries = {key: entry for key, entry in header.items() if key != "__metadata__"}
        return {key: _stored(file, key, entry, base=8 + length, size=size) for key, entry in entries.items()}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        if isinstance(error, CaptureError):
            raise
        raise CaptureError(str(file), "has no valid safetensors header", REMEDY) from error


def _stored(file: Path, key: str, entry: dict[str, Any], *, base: int, size: int) -> StoredTensor:
    if entry["dtype"] not in DTYPES:
        raise CaptureError(str(file), f"tensor {key!r} has the unknown dtype {entry['dtype']!r}", REMEDY)
    dtype = DTYPES[entry["dtype"]]
    begin, end = entry["data_offsets"]
    shape = tuple(int(extent) for extent in entry["shape"])
    stored = StoredTensor(file, key, dtype, shape, base + begin, base + end)
    if begin < 0 or min(shape, default=0) < 0 or end - begin != stored.numel * dtype.itemsize:
        raise CaptureError(str(file), f"tensor {key!r} has offsets that do not fit its shape", REMEDY)
    if stored.stop > size:
        raise CaptureError(
            str(file), f"is truncated: tensor {key!r} ends {stored.stop - size} bytes past its end", REMEDY
        )
    return stored


def load(stored: StoredTensor) -> torch.Tensor:
    """Read one tensor whole, in its own dtype and shape."""
    flat = next(stream(stored, elements=max(stored.numel, 1)), torch.empty(0, dtype=stored.dtype))
    return flat.reshape(stored.shape)


def stream(stored: StoredTensor, *, elements: int) -> Iterator[torch.Tensor]:
    """Yield the tensor's flat values in order, at most `elements` at a time.

    All chunks lie in one buffer: each is valid until the next is asked for. A fresh buffer a chunk would cost more in
    page faults than the reading itself.
    """
    itemsize = stored.dtype.itemsize
    buffer = memoryview(bytearray(min(elements, stored.numel) * itemsize))
    with stored.file.open("rb", buffering=0) as handle:
        handle.seek(stored.start)
        for offset in range(0, stored.numel, elements):
            count = min(elements, stored.numel - offset)
            part = buffer[: count * itemsize]
            _fill(handle, part, stored)
            yield torch.frombuffer(part, dtype=stored.dtype)


def _fill(handle: FileIO, part: memoryview, stored: StoredTensor) -> None:
    done = 0
    while done < len(part):
        read = handle.readinto(part[done:])
        if not read:
            raise CaptureError(str(stored.file), f"ended inside tensor {stored.key!r}", REMEDY)
        done += read
