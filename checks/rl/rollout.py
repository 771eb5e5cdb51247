"""A batch of completions as the run generated and rewarded it, and the rows that were trained on out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from checks.captures.capture import Capture
from checks.references.batch import MicroBatch
from checks.rl.reading import NoComparison
from checks.spec import RunSpec


@dataclass(frozen=True)
class Rollout:
    """`rows`: the tokens of each prompt with its completion, without padding; `prompts`: of its prompt alone.

    rewards, advantages: (rows,) float64, in the order of generation; `group`: how many rows follow from one prompt;
    `uneven`: rows whose tokens do not all have the same advantage.
    """

    rows: tuple[tuple[int, ...], ...]
    prompts: tuple[tuple[int, ...], ...]
    rewards: torch.Tensor
    advantages: torch.Tensor
    group: int
    uneven: int = 0

    def grouped(self, values: torch.Tensor) -> torch.Tensor:
        """(rows,) → (groups, samples)."""
        return values.reshape(-1, self.group)

    @property
    def mixed(self) -> int:
        """Groups whose rows do not share their prompt."""
        starts = range(0, len(self.prompts), self.group)
        return sum(len(set(self.prompts[start : start + self.group])) > 1 for start in starts)


@dataclass(frozen=True)
class Trained:
    """The rows of a step's micro-batches: how many were not generated, and how many have another one's advantage."""

    unknown: int
    astray: int


def generated_in(spec: RunSpec, step: int) -> int:
    """The step whose completions a step trains on: each batch of them serves `num_iterations` steps."""
    return step - (step - 1) % spec.num_iterations


def read_rollout(capture: Capture, step: int, *, group: int) -> Rollout:
    """Raises NoComparison where the step was not recorded, or not all of what it generated was."""
    if step not in capture.steps:
        raise NoComparison(f"its completions were generated in step {step}, which was not recorded")
    read = {name: record.read("full") for name, record in capture.tensors(step, "rollout").items()}
    parts = [read.get(name) for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")]
    rewards, advantages = read.get("rewards"), read.get("advantages")
    prompt_ids, prompt_mask, completion_ids, completion_mask = parts
    if (
        prompt_ids is None
        or prompt_mask is None
        or completion_ids is None
        or completion_mask is None
        or rewards is None
        or advantages is None
    ):
        raise NoComparison("the completions that were generated, or their rewards or advantages, were not recorded")
    count = prompt_ids.shape[0]
    uneven = 0
    if advantages.shape == completion_mask.shape:
        advantages, uneven = take_one_a_row(advantages, completion_mask)
    if advantages.shape != (count,) or rewards.shape[0] != count or count % group:
        found = f"{rewards.shape[0]} rewards and {advantages.numel()} advantages of {count} completions"
        raise NoComparison(f"{found} are no groups of {group}")
    prompts = _cut(prompt_ids, prompt_mask)
    completions = _cut(completion_ids, completion_mask)
    return Rollout(
        rows=tuple((*prompt, *completion) for prompt, completion in zip(prompts, completions, strict=True)),
        prompts=prompts,
        rewards=rewards.double().reshape(count, -1).nansum(dim=1),
        advantages=advantages.double(),
        group=group,
        uneven=uneven,
    )


def take_one_a_row(values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, int]:
    """(rows, tokens) → the value of each row's first token, (rows,), and in how many rows others differ from it."""
    first = mask.bool().int().argmax(dim=1, keepdim=True)
    chosen = values.gather(1, first)
    differs = ((values != chosen) & mask.bool()).any(dim=1)
    return chosen[:, 0], int(differs.sum())


def _cut(ids: torch.Tensor, mask: torch.Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row[kept.bool()].tolist()) for row, kept in zip(ids, mask, strict=True))


def rows_of(micro: MicroBatch) -> tuple[tuple[int, ...], ...]:
    """The tokens of each row without padding, in the order of the rows."""
    documents = sorted(micro.documents, key=lambda one: one.row)
    return tuple(tuple(micro.input_ids[one.row, one.start : one.stop].tolist()) for one in documents)


def match_rows(rollout: Rollout, micro_batches: Sequence[MicroBatch]) -> Trained:
    """Look each trained row up among those that were generated; of equal ones the advantages are equal."""
    known: dict[tuple[int, ...], set[float]] = {}
    for row, advantage in zip(rollout.rows, rollout.advantages.tolist(), strict=True):
        known.setdefault(row, set()).add(advantage)
    unknown = astray = 0
    for index, micro in enumerate(micro_batches):
        advantages = micro.given.get("advantages")
        if advantages is None:
            raise NoComparison(f"micro-batch {index}: the advantages that the loss was given were not recorded")
        uneven = 0
        if advantages.dim() == 2:
            advantages, uneven = take_one_a_row(advantages, micro.given["completion_mask"])
        astray += uneven
        for row, advantage in zip(rows_of(micro), advantages.double().tolist(), strict=True):
            unknown += row not in known
            astray += row in known and advantage not in known[row]
    return Trained(unknown, astray)
