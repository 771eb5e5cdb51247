"""The sketch and the sample positions in plain Python integers, as the format page; slow, but independent."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

MASK = (1 << 64) - 1
K = 4093


def seed(name: str) -> int:
    """First 8 bytes, little endian, of SHA-256 of the name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def mix(x: int) -> int:
    """SplitMix64's finaliser."""
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def sign(name: str, i: int) -> int:
    """Sign of element i."""
    word = mix(seed(name) + (i // 64 + 1) * 0x9E3779B97F4A7C15 & MASK)
    return 1 - 2 * (word >> i % 64 & 1)


def sketch(values: Sequence[float], name: str, *, offset: int = 0) -> list[float]:
    """Sketch of values that begin at flat index `offset`."""
    total = [0.0] * K
    for position, value in enumerate(values):
        i = offset + position
        total[i % K] += sign(name, i) * value
    return total


def sample_positions(name: str, n: int) -> list[int]:
    """Sample positions of a tensor of n elements."""
    if n <= 4096:
        return list(range(n))
    start = seed(name) ^ 0xA5A5A5A5A5A5A5A5
    return sorted({mix(start + (j + 1) * 0x9E3779B97F4A7C15 & MASK) % n for j in range(4096)})


def vectors() -> list[dict[str, object]]:
    """Return the test vectors that ship with the recorder: values are (7·i mod 11) − 5, so every sum is exact."""
    cases = [("model.norm.weight", 8, 0), ("lm_head.weight", 10_000, 0), ("model.embed_tokens.weight", 5_000, 123_457)]
    made: list[dict[str, object]] = []
    for name, count, offset in cases:
        total = sketch([float(7 * i % 11 - 5) for i in range(count)], name, offset=offset)
        positions = sample_positions(name, 1_000_003)
        made.append(
            {
                "name": name,
                "seed": str(seed(name)),
                "first_signs": [sign(name, i) for i in range(128)],
                "count": count,
                "offset": offset,
                "first_bins": total[:16],
                "last_bins": total[-4:],
                "sum_of_squares": sum(value * value for value in total),
                "weighted_sum": sum((k + 1) * value for k, value in enumerate(total)),
                "sample_of": 1_000_003,
                "samples": len(positions),
                "first_positions": positions[:8],
                "sum_of_positions": sum(positions),
            }
        )
    return made
