"""Completions whose tokens have advantages of their own, as the run generated them, and what was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from checks.captures.capture import Capture
from checks.material import Material
from checks.references.batch import MicroBatch
from checks.references.sampled import OLD, REFERENCE
from checks.rl.reading import NoComparison
from checks.rl.rollout import rows_of

NORMALISED = "reinforce_plus_plus"
"""the objective whose advantages are normalised returns; those of ppo take values"""


@dataclass(frozen=True)
class TokenRollout:
    """One batch of completions. `rows`: tokens of prompt and completion; the others (rows, tokens) but `rewards`, which
    is (rows,); `owners`: the ranks' parts of the tokens, where each rank has only some, (rows, tokens) bool each.
    """

    rows: tuple[tuple[int, ...], ...]
    mask: torch.Tensor
    rewards: torch.Tensor
    kl: torch.Tensor
    values: torch.Tensor
    found: torch.Tensor
    owners: tuple[torch.Tensor, ...]


def read_token_rollout(material: Material, capture: Capture, step: int) -> TokenRollout:
    """Raises NoComparison where the step was not recorded, or not all of what it generated was."""
    if step not in capture.steps:
        raise NoComparison(f"its completions were generated in step {step}, which was not recorded")
    spec = material.spec
    needed = ["prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "rewards", "advantages"]
    needed += [OLD, REFERENCE] if spec.beta else []
    needed += [] if spec.objective == NORMALISED else ["values"]
    read: dict[str, torch.Tensor] = {}
    for name, record in capture.tensors(step, "rollout").items():
        value = record.read("full")
        if value is not None:
            read[name] = value
    lacking = [name for name in needed if name not in read]
    if lacking:
        raise NoComparison(f"{lacking[0]} of the completions that were generated was not recorded")
    ids, mask = read["completion_ids"], read["completion_mask"].bool()
    if read["advantages"].shape != ids.shape:
        raise NoComparison(f"advantages have the shape {tuple(read['advantages'].shape)}, not one a token")
    zero = torch.zeros(ids.shape, dtype=torch.float64)
    kl = read[OLD].double() - read[REFERENCE].double() if spec.beta else zero
    prompts = zip(read["prompt_ids"], read["prompt_mask"], ids, mask, strict=True)
    return TokenRollout(
        rows=tuple((*prompt[own.bool()].tolist(), *row[kept].tolist()) for prompt, own, row, kept in prompts),
        mask=mask,
        rewards=read["rewards"].double().reshape(ids.shape[0]),
        kl=kl.masked_fill(~mask, 0.0),
        values=read["values"].double() if "values" in read else zero,
        found=read["advantages"].double(),
        owners=_find_owners(material.capture, step, ids.shape),
    )


def _find_owners(capture: Capture | None, step: int, shape: torch.Size) -> tuple[torch.Tensor, ...]:
    """Which tokens each rank holds: where it says what the policy that sampled says; zero is no log-probability."""
    if capture is None or len(capture.ranks) < 2:
        return ()
    owners: list[torch.Tensor] = []
    for rank in capture.ranks:
        record = capture.tensors(step, "rollout", rank=rank).get(OLD)
        value = None if record is None else record.read("full")
        if value is None or value.shape != shape:
            return ()
        own = value != 0.0
        if not any(torch.equal(own, other) for other in owners):
            owners.append(own)
    return tuple(owners) if len(owners) > 1 else ()


def match_token_rows(rollout: TokenRollout, batches: Sequence[MicroBatch]) -> tuple[int, int]:
    """Trained rows that were not generated, and those whose tokens have other advantages than were computed."""
    known: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for row, mask, advantages in zip(rollout.rows, rollout.mask, rollout.found, strict=True):
        known.setdefault(row, []).append(advantages[mask])
    unknown = astray = 0
    for index, micro in enumerate(batches):
        advantages, counted = micro.given.get("advantages"), micro.given.get("completion_mask")
        if advantages is None or counted is None or advantages.shape != counted.shape:
            raise NoComparison(f"micro-batch {index}: the advantages that the loss was given were not recorded")
        for ids, own, mask in zip(rows_of(micro), advantages.double(), counted.bool(), strict=True):
            unknown += ids not in known
            astray += ids in known and not any(torch.equal(own[mask], other) for other in known[ids])
    return unknown, astray
