"""The linear sketch, the hashed sample positions and the row norms of a tensor.

Specified bit by bit in `docs/capture-format.md`; `sketch_vectors.json` holds test vectors. The sketch is a count sketch
with one row (https://doi.org/10.1016/S0304-3975(03)00400-6): for two tensors a and b of one name and shape, ‖S_a − S_b‖
estimates ‖a − b‖ with a relative standard error near 1/√(2K) ≈ 1.1 %, and ⟨S_a, S_b⟩ estimates ⟨a, b⟩.
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import Optional, Sequence, Tuple

import torch

K = 4093
"""Length of a sketch; a prime, so that no power-of-two stride folds onto itself."""

SAMPLES = 4096
"""Positions drawn for the sample of a tensor; a tensor of at most so many elements is sampled whole."""

_GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64: https://prng.di.unimi.it/splitmix64.c
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_SAMPLE_SALT = 0xA5A5A5A5A5A5A5A5
_WORD = 64  # bits a hash word
_CPU_CHUNK = 16 * K  # elements folded at once: float64 buffers of 512 KB stay in a core's cache
_DEVICE_CHUNK = 2048 * K
_CHUNKS_HASHED = 16  # chunks whose hash words are made at once: the dozen small operations of it are paid once
NORM_BLOCK = 1 << 16  # elements reduced at once: their float64 copy stays in a core's cache
_COLUMN_BLOCK = 1 << 22  # elements of the zero-filled block that a slice of columns is embedded in

Slice = Sequence[Sequence[int]]
"""[[start, stop], …] of each dimension of the global tensor"""


def seed_of(name: str) -> int:
    """Return the 64-bit seed of a canonical tensor name: the first 8 bytes, little endian, of its SHA-256."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8")).digest()[:8], "little")


def _signed(value: int) -> int:
    """Return the int64 with the same 64 bits: torch has no full unsigned arithmetic."""
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift int64 right as if it were unsigned."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Return SplitMix64's finaliser of x: (n,) int64 read as unsigned."""
    x = x ^ _shift_right(x, 30)
    x = x * _signed(_MULTIPLIER_1)
    x = x ^ _shift_right(x, 27)
    x = x * _signed(_MULTIPLIER_2)
    return x ^ _shift_right(x, 31)


def _words(seed: int, first: int, count: int, device: torch.device) -> torch.Tensor:
    """Return words first … first + count − 1 of the stream of a seed: (count,) int64."""
    j = torch.arange(first + 1, first + count + 1, dtype=torch.int64, device=device)
    return _mix(j * _signed(_GOLDEN) + _signed(seed))


@functools.lru_cache(maxsize=8)
def _sign_table(device: torch.device) -> torch.Tensor:
    """Return the eight signs of each byte of a hash word: (256, 8) float64, least significant bit first."""
    byte = torch.arange(256, dtype=torch.int64, device=device).unsqueeze(1)
    bit = (byte >> torch.arange(8, dtype=torch.int64, device=device)) & 1
    return (1 - 2 * bit).to(torch.float64)


def _sign_bytes(seed: int, start: int, count: int, device: torch.device) -> Tuple[torch.Tensor, int]:
    """Return the hash bytes that hold the sign bits start … start + count − 1, and the index of their first bit."""
    first = start // _WORD
    words = _words(seed, first, (start + count + _WORD - 1) // _WORD - first, device)
    return words.view(torch.uint8).to(torch.int32), first * _WORD


def _look_up(sign_bytes: torch.Tensor, skip: int, count: int, *, buffer: torch.Tensor) -> torch.Tensor:
    """Return the signs of bits skip … skip + count − 1 of a run of hash bytes: (count,) float64, a view of buffer.

    buffer: (at least count / 8 + 2, 8) float64; one that is used again costs no page faults.
    """
    first, stop = skip // 8, (skip + count + 7) // 8
    looked_up = buffer[: stop - first]
    torch.index_select(_sign_table(sign_bytes.device), 0, sign_bytes[first:stop], out=looked_up)
    flat: torch.Tensor = looked_up.view(-1)
    return flat[skip - 8 * first :][:count]


def signs(name: str, start: int, count: int) -> torch.Tensor:
    """Return sign(name, i) for i = start … start + count − 1: (count,) float64 of ±1."""
    sign_bytes, origin = _sign_bytes(seed_of(name), start, count, torch.device("cpu"))
    buffer = torch.empty((count // 8 + 2, 8), dtype=torch.float64, device="cpu")
    return _look_up(sign_bytes, start - origin, count, buffer=buffer)


def sketch(
    tensor: torch.Tensor,
    name: str,
    *,
    offset: int = 0,
    where: Optional[Slice] = None,
    global_shape: Optional[Sequence[int]] = None,
) -> torch.Tensor:
    """Return the sketch of a tensor, or of its part of a larger one: (K,) float64 on the CPU.

    Args:
        tensor: any shape and real dtype; any device with float64.
        name: canonical name of the whole tensor.
        offset: flat index in the whole tensor of this part's first element; the part is contiguous in the whole.
        where: instead of `offset`, the part's [start, stop] in each dimension of `global_shape`.
        global_shape: shape of the whole; needed with `where`.

    Sketches of disjoint parts add up to the sketch of the whole.
    """
    values = tensor.detach()
    if values.device.type not in ("cpu", "cuda"):
        values = values.cpu()
    total = torch.zeros(K, dtype=torch.float64, device=values.device)
    seed = seed_of(name)
    if where is None:
        _add_run(total, values.reshape(-1), seed=seed, start=offset)
    else:
        if global_shape is None:
            raise ValueError("where: given without global_shape; state the shape of the whole tensor.")
        _add_slice(total, values, seed=seed, where=where, global_shape=global_shape)
    return total.cpu()


def _add_run(total: torch.Tensor, values: torch.Tensor, *, seed: int, start: int) -> None:
    """Add the sketch of values: (n,), contiguous in the whole from flat index `start`, to total: (K,) float64."""
    chunk = _CPU_CHUNK if total.device.type == "cpu" else _DEVICE_CHUNK
    largest = min(chunk, values.numel())
    part = torch.empty(largest, dtype=torch.float64, device=total.device)
    signs_buffer = torch.empty((largest // 8 + 2, 8), dtype=torch.float64, device=total.device)
    sign_bytes, origin, hashed = signs_buffer, 0, start
    done = 0
    while done < values.numel():
        index = start + done
        count = min(chunk - index % K, values.numel() - done)  # every chunk but the first begins at bin 0
        if index + count > hashed:
            hashed = index + min(_CHUNKS_HASHED * chunk, values.numel() - done)
            sign_bytes, origin = _sign_bytes(seed, index, hashed - index, total.device)
        signed = part[:count].copy_(values[done : done + count])
        signed *= _look_up(sign_bytes, index - origin, count, buffer=signs_buffer)
        _fold(total, signed, first_bin=index % K)
        done += count


def _fold(total: torch.Tensor, signed: torch.Tensor, *, first_bin: int) -> None:
    """Add signed values: (n,) float64 to total: (K,) float64, from bin `first_bin` on."""
    head = min((K - first_bin) % K, signed.numel())
    rows = (signed.numel() - head) // K
    tail = head + rows * K
    total[first_bin : first_bin + head] += signed[:head]
    if rows:
        total += signed[head:tail].view(rows, K).sum(0)
    total[: signed.numel() - tail] += signed[tail:]


def _add_slice(
    total: torch.Tensor, values: torch.Tensor, *, seed: int, where: Slice, global_shape: Sequence[int]
) -> None:
    bounds = [(int(start), int(stop)) for start, stop in where]
    if tuple(stop - start for start, stop in bounds) != tuple(values.shape):
        raise ValueError(f"where: {bounds} does not have the tensor's shape {tuple(values.shape)}; correct the slice.")
    row = math.prod(global_shape[1:])
    if all(bound == (0, size) for bound, size in zip(bounds[1:], global_shape[1:])):
        _add_run(total, values.reshape(-1), seed=seed, start=bounds[0][0] * row if bounds else 0)
        return
    block = max(1, _COLUMN_BLOCK // max(row, 1))
    inner = tuple(slice(start, stop) for start, stop in bounds[1:])
    for first in range(0, values.shape[0], block):
        piece = values[first : first + block]
        whole_rows = torch.zeros((piece.shape[0], *global_shape[1:]), dtype=values.dtype, device=values.device)
        whole_rows[(slice(None), *inner)] = piece
        _add_run(total, whole_rows.view(-1), seed=seed, start=(bounds[0][0] + first) * row)


@functools.lru_cache(maxsize=4096)
def sample_positions(name: str, n: int) -> torch.Tensor:
    """Return the sample positions of a tensor of n elements: (m ≤ 4096,) int64, flat, ascending, without duplicates."""
    if n <= SAMPLES:
        return torch.arange(n, dtype=torch.int64, device="cpu")
    hashed = _words(seed_of(name) ^ _SAMPLE_SALT, 0, SAMPLES, torch.device("cpu"))
    # unsigned modulus: x = 2 · (x >> 1) + (x & 1)
    positions = ((_shift_right(hashed, 1) % n) * 2 + (hashed & 1)) % n
    distinct: torch.Tensor = torch.unique(positions, sorted=True)
    return distinct


def sample(
    tensor: torch.Tensor,
    name: str,
    *,
    where: Optional[Slice] = None,
    global_shape: Optional[Sequence[int]] = None,
) -> torch.Tensor:
    """Return the values at the sample positions of a tensor: (m,) in its own dtype, on the CPU.

    Of a part (`where`, `global_shape`), the positions of the whole that lie in it, in order.
    """
    shape = tuple(tensor.shape if global_shape is None else global_shape)
    positions = sample_positions(name, math.prod(shape))
    if where is not None and any(tuple(bound) != (0, size) for bound, size in zip(where, shape)):
        positions = _positions_inside(positions, shape, where)
    flat = tensor.detach().reshape(-1)
    return flat.index_select(0, positions.to(flat.device)).cpu()


def _positions_inside(positions: torch.Tensor, shape: Tuple[int, ...], where: Slice) -> torch.Tensor:
    """Return those flat positions of the whole that lie in a part, as flat positions of the part."""
    inside = torch.ones_like(positions, dtype=torch.bool)
    local = torch.zeros_like(positions)
    stride = math.prod(shape)
    for size, (start, stop) in zip(shape, where):
        stride //= size
        index = positions // stride % size
        inside &= (index >= start) & (index < stop)
        local = local * (stop - start) + (index - start)
    return local[inside]


def row_norms(t: torch.Tensor) -> torch.Tensor:
    """Return the Euclidean norm of each slice of t along its first dimension: (t.shape[0],) float64 on the CPU."""
    rows = t.detach().reshape(t.shape[0], math.prod(t.shape[1:]))
    block = NORM_BLOCK if rows.device.type == "cpu" else _DEVICE_CHUNK
    height = max(1, block // max(rows.shape[1], 1))
    norms = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    for top in range(0, rows.shape[0], height):
        for left in range(0, rows.shape[1], block):
            piece = rows[top : top + height, left : left + block]
            piece_norms = torch.linalg.vector_norm(piece, dim=1, dtype=torch.float64)
            norms[top : top + height] = torch.hypot(norms[top : top + height], piece_norms)
    return norms.cpu()
