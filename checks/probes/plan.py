"""Which batches to ask about: every boundary of the config in length, padding on both sides, two futures."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline_capture.probe_file import DECODE, FORWARD, TRAINING

from checks.models.checkpoint import read_config

LENGTH = "length"
PADDED_RIGHT, PADDED_LEFT = "padded right", "padded left"
PAST, OTHER_FUTURE = "one future", "another future"
ONCE, AGAIN = "once", "again"
TRAINED, TRAINED_AGAIN = "in training mode", "in training mode again"
CACHED, UNCACHED = "with the cache", "without the cache"

LONGEST = 2048
"""tokens; the float64 reference's attention weights grow with the square of the length"""
TOKENS = 24_576
"""of all lengths together: the longest ones beyond it are left out, and step.lengths says which"""
ROW = 24
"""tokens of the probes for which no boundary matters"""
DECODED = 48
"""tokens of the probe that is decoded one by one, more than the window of a tiny model"""
SEED = 7

EVALUATED_ROWS = 8
"""of the training data, from the first on: what a probed run evaluates before its first step"""


@dataclass(frozen=True)
class Probe:
    """One question: the arguments of a forward, as nested lists of whole numbers, and the way to ask."""

    name: str
    kind: str
    inputs: Mapping[str, list[list[int]]]

    @property
    def is_length(self) -> bool:
        return self.name.startswith(f"{LENGTH} ")


@dataclass(frozen=True)
class LengthPlan:
    """Lengths to ask about with the reason for each, and those of the config that are too long to ask about."""

    lengths: Mapping[int, str]
    left_out: Mapping[int, str]


def plan_probes(model: Path) -> tuple[Probe, ...]:
    """Every probe for a checkpoint's config, the same ones each time."""
    config = read_text_config(model)
    tokens = _Tokens(config)
    return (
        *(Probe(f"{LENGTH} {n}", FORWARD, {"input_ids": [tokens.row(n)]}) for n in plan_lengths(config).lengths),
        *_padded(tokens),
        *_futures(tokens),
        *_same_row(tokens, ROW, {ONCE: FORWARD, AGAIN: FORWARD, TRAINED: TRAINING, TRAINED_AGAIN: TRAINING}),
        *_same_row(tokens, DECODED, {UNCACHED: FORWARD, CACHED: DECODE}),
    )


def write_probes(probes: tuple[Probe, ...], file: Path) -> None:
    """As `plumbline-capture run --probes` reads them."""
    file.write_text(json.dumps([{"name": p.name, "kind": p.kind, "inputs": p.inputs} for p in probes]))


def read_text_config(model: Path) -> Mapping[str, Any]:
    """The text model's part of a checkpoint's config.json; raises BadRequest as `read_config` does."""
    content = read_config(model)
    text = content.get("text_config")
    return text if isinstance(text, dict) else content


def plan_lengths(config: Mapping[str, Any]) -> LengthPlan:
    """The shortest row, powers of two, the window, and positions before and after scaling; each with its neighbours."""
    reasons: dict[int, str] = {2: "the shortest row that predicts anything"}
    longest = config.get("max_position_embeddings") or LONGEST
    for boundary, reason in _boundaries(config):
        for n in (boundary - 1, boundary, boundary + 1):
            if 2 <= n <= longest:
                reasons.setdefault(n, reason)
    lengths: dict[int, str] = {}
    left_out: dict[int, str] = {}
    for n in sorted(reasons):
        fits = n <= LONGEST and sum(lengths) + n <= TOKENS
        (lengths if fits else left_out)[n] = reasons[n]
    return LengthPlan(lengths, left_out)


def _boundaries(config: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    for key in ("sliding_window", "attention_chunk_size"):
        if isinstance(config.get(key), int):
            yield config[key], key
    if isinstance(config.get("max_position_embeddings"), int):
        yield config["max_position_embeddings"], "max_position_embeddings"
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    nested = [value for value in scaling.values() if isinstance(value, dict)]
    for parameters in nested or [scaling]:
        original = parameters.get("original_max_position_embeddings")
        if isinstance(original, int):
            yield original, "original_max_position_embeddings"
    power = 4
    while power <= LONGEST:
        yield power, "a power of two"
        power *= 2


class _Tokens:
    """Rows of ordinary tokens, drawn by one generator: no special token may mean something to the model."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        special: set[int] = set()
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = config.get(key)
            special |= set(value) if isinstance(value, list) else {value} if isinstance(value, int) else set()
        ordinary = [token for token in range(min(int(config["vocab_size"]), 32_768)) if token not in special]
        self._ordinary = ordinary
        self._random = random.Random(SEED)
        self.pad = next(iter(sorted(special)), 0)

    def row(self, length: int) -> list[int]:
        return self._random.choices(self._ordinary, k=length)


def _padded(tokens: _Tokens) -> Iterator[Probe]:
    rows = [tokens.row(n) for n in (5, 17, ROW)]
    for name, left in ((PADDED_RIGHT, False), (PADDED_LEFT, True)):
        ids, mask = [], []
        for row in rows:
            pad, real = [tokens.pad] * (ROW - len(row)), [1] * len(row)
            ids.append(pad + row if left else row + pad)
            mask.append([0] * len(pad) + real if left else real + [0] * len(pad))
        inputs = {"input_ids": ids, "attention_mask": mask}
        if left:  # as a trainer must give them where the first column is padding
            inputs["position_ids"] = [[max(sum(row[: i + 1]) - 1, 0) for i in range(ROW)] for row in mask]
        yield Probe(name, FORWARD, inputs)


def _futures(tokens: _Tokens) -> Iterator[Probe]:
    past = tokens.row(ROW // 2)
    for name in (PAST, OTHER_FUTURE):
        yield Probe(name, FORWARD, {"input_ids": [past + tokens.row(ROW // 2)]})


def _same_row(tokens: _Tokens, length: int, kinds: Mapping[str, str]) -> Iterator[Probe]:
    row = tokens.row(length)
    for name, kind in kinds.items():
        yield Probe(name, kind, {"input_ids": [row]})
