"""Whether two runs that saw the same documents chose the same experts, and the same keys, for their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from checks.captures.capture import Capture
from checks.references.batch import MicroBatch
from checks.references.routing import read_choices
from checks.references.selection import KEYS, hit_keys, read_selections


@dataclass(frozen=True)
class OtherChoice:
    """Of `tokens` tokens of both runs, `differing` were given other experts, or keys, by `router`."""

    router: str
    what: str
    tokens: int
    differing: int


@dataclass(frozen=True)
class RecordedStep:
    """One captured step of a run with its micro-batches."""

    capture: Capture
    step: int
    micro_batches: tuple[MicroBatch, ...]


def compare_choices(ours: RecordedStep, theirs: RecordedStep) -> tuple[OtherChoice, ...]:
    """Each router and indexer that chose otherwise for a token of a document that both runs saw, the worst first."""
    counts: dict[tuple[str, str], list[int]] = {}
    known = dict(_choices(theirs))
    for key, chosen in _choices(ours):
        other = known.get(key)
        if other is None or other.shape != chosen.shape:
            continue
        router, what, _ = key
        total = counts.setdefault((router, what), [0, 0])
        total[0] += chosen.shape[0]
        total[1] += int((chosen != other).any(-1).sum())
    found = [OtherChoice(router, what, *total) for (router, what), total in counts.items() if total[1]]
    return tuple(sorted(found, key=lambda other: -other.differing))


_Key = tuple[str, str, tuple[int, ...]]
"""router, what it chooses, the document's tokens"""


def _choices(run: RecordedStep) -> Iterator[tuple[_Key, torch.Tensor]]:
    """(n, …) bool or int64 of each document's n tokens, in an order and place of its own."""
    experts = read_choices(run.capture, run.step, run.micro_batches)
    keys = read_selections(run.capture, run.step, run.micro_batches)
    for index, micro in enumerate(run.micro_batches):
        for document in micro.documents:
            span = slice(document.start, document.stop)
            tokens = tuple(micro.input_ids[document.row, span].tolist())
            for router, parts in experts.items():
                yield (router, "experts", tokens), parts[index][document.row, span].sort(dim=-1).values
            for router, parts in keys.items():
                chosen = parts[index][document.row, span] - document.start
                yield (router, KEYS, tokens), hit_keys(chosen, len(tokens)).tril()


def say_other_choices(others: Sequence[OtherChoice]) -> str:
    """In words: what the worst router did, and how many more there are."""
    worst = others[0]
    more = f", and so did {len(others) - 1} more" if len(others) > 1 else ""
    return f"{worst.router} chose other {worst.what} for {worst.differing} of {worst.tokens} tokens{more}"
