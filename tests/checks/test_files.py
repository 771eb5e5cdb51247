"""safetensors files that were cut short, are foreign, or do not add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from checks.captures.files import DTYPES, StoredTensor, load, read_header, stream
from checks.errors import CaptureError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "step.safetensors"
    tensors = {"a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.arange(5, dtype=torch.int64)}
    save_file(tensors, path, metadata={"format": "plumbline-capture"})
    return path


def write(path: Path, header: Any, *, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def test_a_header_lists_every_tensor_and_no_metadata(file: Path) -> None:
    header = read_header(file)
    assert set(header) == {"a", "b"}
    assert (header["a"].dtype, header["a"].shape, header["a"].numel) == (torch.float32, (2, 3), 6)
    assert torch.equal(load(header["a"]), torch.arange(6, dtype=torch.float32).reshape(2, 3))
    assert torch.equal(load(header["b"]), torch.arange(5))
    assert max(stored.stop for stored in header.values()) == file.stat().st_size


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    tensor = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(DTYPES[name])
    save_file({"a": tensor, "none": torch.empty(0, 3, dtype=DTYPES[name]), "one": tensor[0, 1].clone()}, tmp_path / "f")
    header = read_header(tmp_path / "f")
    for key, expected in (("a", tensor), ("none", tensor[:0]), ("one", tensor[0, 1])):
        assert torch.equal(load(header[key]), expected)
        assert (load(header[key]).dtype, load(header[key]).shape) == (DTYPES[name], expected.shape)


def test_a_tensor_streams_in_order_and_in_bounded_chunks(file: Path) -> None:
    stored = read_header(file)["b"]
    assert [chunk.tolist() for chunk in stream(stored, elements=2)] == [[0, 1], [2, 3], [4]]
    assert [chunk.tolist() for chunk in stream(stored, elements=5)] == [[0, 1, 2, 3, 4]]


def test_a_file_cut_anywhere_is_refused_by_name(file: Path) -> None:
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        with pytest.raises(CaptureError) as caught:
            read_header(file)
        assert caught.value.file == str(file)
        assert caught.value.remedy == "record the capture again, or copy it again with its checksums"
    file.write_bytes(content[:-1])
    with pytest.raises(CaptureError, match=r"is truncated: tensor '[ab]' ends 1 bytes past its end"):
        read_header(file)
    file.write_bytes(content[:7])
    with pytest.raises(CaptureError, match=r"is truncated or no safetensors file \(7 bytes\)"):
        read_header(file)


def test_a_file_that_shrinks_while_it_is_read_is_refused(file: Path) -> None:
    stored = max(read_header(file).values(), key=lambda tensor: tensor.stop)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CaptureError, match=f"ended inside tensor '{stored.key}'"):
        load(stored)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"gone\.safetensors: cannot be read \(No such file or directory\)"):
        read_header(tmp_path / "gone.safetensors")


@pytest.mark.parametrize(
    "header",
    [
        b"PK\x03\x04 not a header",
        b"[1, 2]",
        b"3",
        b'"text"',
        b"null",
        {"a": 3},
        {"a": {"dtype": "F32", "shape": [1]}},
        {"a": {"dtype": "F32", "data_offsets": [0, 4]}},
        {"a": {"shape": [1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]}},
        {"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}},
    ],
)
def test_a_foreign_header_is_refused(tmp_path: Path, header: Any) -> None:
    path = write(tmp_path / "foreign", header, data=b"\0" * 8)
    with pytest.raises(CaptureError, match="foreign: has no valid safetensors header; record the capture again"):
        read_header(path)


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ({"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}, "tensor 'a' has the unknown dtype 'F8_E4M3'"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "tensor 'a' has offsets that do not fit its shape"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}, "tensor 'a' has offsets that do not fit its shape"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}, "tensor 'a' has offsets that do not fit its shape"),
        (
            {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]},
            "tensor 'a' has offsets that do not fit its shape",
        ),
        ({"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}, "is truncated: tensor 'a' ends 4 bytes past its end"),
    ],
)
def test_a_tensor_that_does_not_add_up_is_named(tmp_path: Path, entry: dict[str, Any], found: str) -> None:
    path = write(tmp_path / "wrong", {"a": entry}, data=b"\0" * 8)
    with pytest.raises(CaptureError) as caught:
        read_header(path)
    assert caught.value.found == found


def test_a_header_longer_than_the_formats_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long"
    with path.open("wb") as handle:  # sparse: takes no space
        handle.write((100_000_001).to_bytes(8, "little"))
        handle.truncate(100_000_100)
    with pytest.raises(CaptureError, match="is truncated or no safetensors file"):
        read_header(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.binary(max_size=120))
def test_arbitrary_bytes_are_read_or_refused_and_nothing_else(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(content)
    try:
        found = read_header(path)
    except CaptureError as error:
        refused: CaptureError | None = error
    else:
        refused = None
        assert all(isinstance(stored, StoredTensor) for stored in found.values())
    assert refused is None or refused.file == str(path)
