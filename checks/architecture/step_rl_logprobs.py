"""The log-probabilities that the loss takes are the models' own, of the tokens that were sampled, at their temperature.

Reference: each completion token's log-probability in float64, logits divided by `temperature`: of the policy from the
step's weights, of the old policy from the weights of the step that generated the completions, of the reference model
from the checkpoint without adapters. The floor of each is what forms that must not matter, in the run's own precision,
show.
Catches: log-probabilities that ignore the temperature (`trl-grpo-temperature`, `verl-megatron-temperature`,
`mswift-grpo-old-ref-logps-without-temperature`, `slime-fsdp-logprob-temperature-missing`), an attention mask that is
missing under left padding (`trl-grpo-no-attention-mask`), reference log-probabilities of the policy
(`slime-reference-logprobs-from-actor`), old ones that follow the policy so that every ratio is 1
(`miles-async-ppo-wrong-denominator`), values that stand one token off.
Cannot see: whether the engine sampled at that temperature, or from those weights (`serving.logprobs`,
`transfer.sync`); old log-probabilities of a step that was not recorded; reference log-probabilities of experts that
the reference model chose otherwise than the policy.
Cost: seven forwards of the checkpoint a captured step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from checks.check import Check, inconclusive
from checks.diagnosis.signatures import Signature
from checks.material import Material
from checks.objectives import needs_completions
from checks.references.batch import MicroBatch
from checks.references.sampled import NoSamples, read_samples_of
from checks.rl.rollout import generated_in, rows_of
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.rl_logprobs"

POLICY, OLD, REFERENCE = "policy", "old policy", "reference model"

USEFUL_LIMIT = 0.25
"""Nats: a step that would hide so much in a token's log-probability hides another temperature."""


@dataclass(frozen=True)
class Compared:
    """The log-probabilities of one kind in one micro-batch, (tokens,) float64 each; `allowed`: in nats."""

    kind: str
    step: int
    micro_batch: int
    found: torch.Tensor
    expected: torch.Tensor
    allowed: float
    policy: torch.Tensor
    """what the policy itself was recorded to say"""
    untempered: torch.Tensor | None
    """what the checkpoint says at a temperature of 1"""

    @property
    def error(self) -> float:
        return float((self.found - self.expected).abs().max()) if self.found.numel() else 0.0

    @property
    def holds(self) -> bool:
        return self.error <= self.allowed

    def fits(self, other: torch.Tensor) -> bool:
        return other.shape == self.found.shape and bool(((self.found - other).abs() <= 2.0 * self.allowed).all())


def judge(material: Material) -> Verdict:
    capture = material.whole
    if capture is None or not capture.steps:
        return inconclusive(NAME, material.why_not())
    compared: list[Compared] = []
    open_: list[str] = []
    for number in sorted(capture.steps):
        for index, micro in enumerate(material.batches.get(number, ())):
            compared += _compare(material, number, index, micro, open_)
        if number not in material.batches:
            open_.append(f"step {number}: {material.why_not(number)}")
    if not compared:
        return inconclusive(NAME, open_[0] if open_ else "no step trains on completions that were recorded")
    measurements = tuple(_measure(material, group) for group in _group(compared))
    limits = {group[0].kind: max(one.allowed for one in group) for group in _group(compared)}
    evidence: dict[str, object] = {
        "temperature": material.spec.temperature,
        "compared": [_show(one) for one in compared],
        "not_judged": list(dict.fromkeys(open_)),
    }
    wrong = next((one for one in compared if not one.holds), None)
    if wrong is not None:
        signature = _explain(material, wrong)
        return Verdict(
            NAME,
            Status.FAIL,
            f"step {wrong.step}, micro-batch {wrong.micro_batch}: {signature.sentence}",
            measurements,
            limits,
            pattern=signature.pattern,
            first_wrong=signature.where,
            evidence=evidence,
        )
    if max(limits.values()) > USEFUL_LIMIT:
        sentence = (
            f"log-probabilities agree within {max(limits.values()):.2g} nats, which would hide another temperature"
        )
        return inconclusive(
            NAME,
            f"{sentence}; run with precision=float32",
            measurements=measurements,
            detection_limits=limits,
            evidence=evidence,
        )
    kinds = {kind: sum(one.found.numel() for one in compared if one.kind == kind) for kind in limits}
    said = ", ".join(f"{count} of the {kind}" for kind, count in kinds.items())
    worst = max(one.error for one in compared)
    sentence = f"log-probabilities of completion tokens are the models' own within {worst:.2g} nats: {said}"
    if open_:
        sentence += f"; not judged: {open_[0]}"
    return Verdict(NAME, Status.PASS, sentence, measurements, limits, evidence=evidence)


def _compare(material: Material, number: int, index: int, micro: MicroBatch, open_: list[str]) -> Iterator[Compared]:
    try:
        samples = read_samples_of(micro, index=index)
    except NoSamples as error:
        open_.append(f"step {number}, {error}")
        return
    reference, initial = material.references.get(number), material.token_answers.get(number)
    seen, kept = micro.token_losses_seen, samples.mask & micro.counted
    multiple, plain = MULTIPLES[material.spec.precision], None
    policy = torch.zeros(0, dtype=torch.float64) if seen is None else -seen[kept]
    if initial is not None and material.spec.temperature != 1.0:
        plain = initial.untempered[index][kept]

    def make(kind: str, found: torch.Tensor, expected: torch.Tensor, floor: float) -> Compared:
        return Compared(kind, number, index, found, expected, multiple * floor, policy, plain)

    if reference is None:
        open_.append(f"step {number}: {material.why_not(number)}")
    elif seen is not None:
        yield make(POLICY, policy, -reference.token_losses[index][kept], reference.token_floor)
    if samples.old is not None:
        generated = generated_in(material.spec, number)
        source = material.references.get(generated)
        expected = None if source is None else find_old(micro, source.micro_batches, source.token_losses)
        if source is None or expected is None:
            open_.append(
                f"step {number}: the weights of step {generated}, which generated its completions, are not known"
            )
        else:
            yield make(OLD, samples.old[kept], -expected[kept], source.token_floor)
    if samples.reference is not None:
        if initial is None:
            open_.append(f"step {number}: {material.no_answers.get(number) or material.why_not(number)}")
        else:
            expected = initial.log_probs[index][kept]
            largest = float(expected.abs().max()) if expected.numel() else 0.0
            floor = float(initial.noise[index].max()) + 2.0**-24 * max(largest, 1.0)
            yield make(REFERENCE, samples.reference[kept], expected, floor)


def find_old(micro: MicroBatch, others: Sequence[MicroBatch], losses: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """(B, S) float64: the token losses that another step's reference gives for this micro-batch's rows; None where one
    of them was not in that step.
    """
    known: dict[tuple[int, ...], torch.Tensor] = {}
    for other, values in zip(others, losses, strict=True):
        for ids, document in zip(rows_of(other), sorted(other.documents, key=lambda one: one.row), strict=True):
            known[ids] = values[document.row, document.start : document.stop]
    found = torch.zeros(micro.input_ids.shape, dtype=torch.float64)
    for ids, document in zip(rows_of(micro), sorted(micro.documents, key=lambda one: one.row), strict=True):
        if ids not in known:
            return None
        found[document.row, document.start : document.stop] = known[ids]
    return found


def _group(compared: Sequence[Compared]) -> list[list[Compared]]:
    groups: dict[str, list[Compared]] = {}
    for one in compared:
        groups.setdefault(one.kind, []).append(one)
    return list(groups.values())


def _measure(material: Material, group: Sequence[Compared]) -> Measurement:
    worst = max(group, key=lambda one: one.error / one.allowed)
    multiple = MULTIPLES[material.spec.precision]
    return Measurement(
        f"log-probabilities of the {worst.kind}",
        worst.error,
        worst.allowed,
        worst.holds,
        worst.allowed / multiple,
        worst.allowed * (1.0 + 1.0 / multiple),
        unit="nats",
    )


def _explain(material: Material, one: Compared) -> Signature:
    what = f"log-probabilities of the {one.kind}"
    if one.untempered is not None and one.fits(one.untempered):
        asked = f"{material.spec.temperature:g} was asked"
        return Signature(f"{what} are those at a temperature of 1, and {asked}", Pattern.OBJECTIVE_SCALE, "temperature")
    if one.kind != POLICY and one.fits(one.policy):
        follows = "every ratio is 1" if one.kind == OLD else "there is no penalty"
        return Signature(
            f"{what} are the policy's own of this step, so that {follows}", Pattern.STATE_TRANSFER, one.kind
        )
    for shift, side in ((1, "before"), (-1, "after")):
        moved = torch.roll(one.expected, shift)
        inside = slice(1, None) if shift > 0 else slice(None, -1)
        if one.found.numel() > 1 and bool(
            ((one.found - moved)[inside].abs() <= 2.0 * one.allowed).double().mean() > 0.5
        ):
            return Signature(f"{what} are those of the token {side}", Pattern.LOSS_MASK, "completion mask")
    worst = int((one.found - one.expected).abs().argmax())
    sentence = (
        f"{what} differ from those of its weights by up to {one.error:.3g} nats (allowed {one.allowed:.2g}), first in "
        f"token {worst}: {float(one.found[worst]):.6g} for {float(one.expected[worst]):.6g}"
    )
    return Signature(sentence, Pattern.OBJECTIVE_SCALE, one.kind)


def _show(one: Compared) -> Mapping[str, object]:
    return {
        "step": one.step,
        "micro-batch": one.micro_batch,
        "of": one.kind,
        "tokens": one.found.numel(),
        "largest error": one.error,
        "allowed": one.allowed,
    }


CHECK = Check(
    NAME,
    "log-probabilities in the loss are the models' own",
    __doc__ or "",
    judge,
    reference=True,
    applies=needs_completions,
)
