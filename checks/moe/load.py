"""How many tokens each expert was given, and whether every token was given as many experts as the config asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from checks.captures.capture import Capture
from checks.moe.finding import Part, Problem
from checks.plot import Curve, Plot, to_evidence
from checks.references.batch import MicroBatch
from checks.references.routing import read_choices
from checks.verdict import Measurement, Pattern

SHOWN_ROUTERS = 8
"""Routers whose load is drawn; all are in the table."""


def count_load(chosen: torch.Tensor, *, experts: int) -> list[int]:
    """chosen: (n, k) → how many of the n tokens each of the experts was given."""
    there = chosen[(chosen >= 0) & (chosen < experts)]
    return torch.bincount(there.flatten(), minlength=experts).tolist()


def count_incomplete(chosen: torch.Tensor, *, experts: int, top_k: int) -> int:
    """chosen: (n, k) → how many tokens have fewer than `top_k` different experts that exist: dropped, wholly or not."""
    hits = torch.zeros(chosen.shape[0], experts + 1, dtype=torch.bool)
    there = (chosen >= 0) & (chosen < experts)
    hits.scatter_(1, torch.where(there, chosen, experts), True)
    return int((hits[:, :experts].sum(-1) < top_k).sum())


def judge_load(
    capture: Capture, step: int, micro_batches: Sequence[MicroBatch], *, experts: int, top_k: int | None
) -> Part:
    """Every real token's experts, counted over the step's micro-batches."""
    choices = read_choices(capture, step, micro_batches)
    if not choices:
        return Part(open_questions=("no router's choice was recorded, so that neither load nor choice can be judged",))
    real = [_real_tokens(micro) for micro in micro_batches]
    loads: dict[str, list[int]] = {}
    incomplete: dict[str, int] = {}
    tokens = sum(int(kept.sum()) for kept in real)
    for router, parts in choices.items():
        chosen = torch.cat([part[kept] for part, kept in zip(parts, real, strict=True)])
        loads[router] = count_load(chosen, experts=experts)
        incomplete[router] = count_incomplete(chosen, experts=experts, top_k=top_k or chosen.shape[-1])
    worst = max(incomplete, key=lambda router: incomplete[router])
    problems: tuple[Problem, ...] = ()
    if incomplete[worst]:
        problems = (
            Problem(
                f"{worst} gave {incomplete[worst]} of {tokens} tokens fewer than {top_k} different experts",
                Pattern.OBJECTIVE_SCALE,
                worst,
            ),
        )
    idle = sum(load.count(0) for load in loads.values())
    said = f"{len(loads)} routers gave each of {tokens} tokens its experts"
    measurement = Measurement(
        "tokens with experts missing", float(incomplete[worst]), 0.0, not incomplete[worst], 0.0, 1.0, unit="count"
    )
    return Part((measurement,), problems, (said,), evidence=_show(loads, tokens, idle))


def _real_tokens(micro: MicroBatch) -> torch.Tensor:
    """(B, S) bool: the tokens of documents, without padding."""
    real = torch.zeros(micro.input_ids.shape, dtype=torch.bool)
    for document in micro.documents:
        real[document.row, document.start : document.stop] = True
    return real


def _show(loads: Mapping[str, list[int]], tokens: int, idle: int) -> dict[str, object]:
    rows = [
        {"router": router, "largest": max(load), "smallest": min(load), "mean": round(sum(load) / len(load), 3)}
        for router, load in loads.items()
    ]
    curves = tuple(
        Curve(router, [float(expert) for expert in range(len(load))], [float(count) for count in load], "points")
        for router, load in list(loads.items())[:SHOWN_ROUTERS]
    )
    plot = Plot("Tokens that each expert was given", "expert", "tokens", curves)
    return {"load": rows, "tokens": tokens, "idle_experts": idle, "plots": to_evidence([plot])}
