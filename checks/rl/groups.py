"""The loss of GRPO, or of one of its variants, of one captured step, and what else it might be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from checks.captures.capture import Capture
from checks.diagnosis.signatures import Signature
from checks.material import Material
from checks.references.objectives import VARIANTS, GroupVariant, Samples
from checks.references.objectives.group_relative import Reduction, weigh
from checks.references.objectives.ratios import clipped_losses, estimate_kl, sequence_ratios, token_ratios
from checks.references.sampled import NoSamples, penalty_of, read_samples_of, variant_of
from checks.rl.reading import Alternative, LossReading, NoComparison, name_scaled, round_off
from checks.tolerance import MULTIPLES
from checks.verdict import Pattern

REDUCTIONS: Mapping[Reduction, str] = {
    "sequence_mean": "the mean over a completion's tokens, and then over completions",
    "token_mean": "the mean over the step's tokens",
    "micro_token_mean": "the mean over each micro-batch's tokens",
    "constant": "the sum over tokens, divided by the longest completion that may be",
}

CUT_OFF = 10.0
"""nats: https://github.com/modelscope/ms-swift/pull/8464, https://github.com/verl-project/verl/pull/1779"""


@dataclass(frozen=True)
class Part:
    """One micro-batch: what its loss was given, and (B, S) float64 log-probabilities of the policy as computed."""

    samples: Samples
    policy: torch.Tensor

    @property
    def old(self) -> torch.Tensor:
        return self.policy if self.samples.old is None else self.samples.old

    @property
    def gaps(self) -> torch.Tensor:
        """log π_ref − log π of each token; 0 where there is no penalty."""
        reference = self.samples.reference
        return torch.zeros_like(self.policy) if reference is None else reference - self.policy


Terms = Callable[[Part], torch.Tensor]
"""What each token of a micro-batch is minimised by, (B, S)."""


def read_group_step(material: Material, capture: Capture, number: int) -> LossReading:
    """Raises NoComparison where the step's completions, advantages or scalars were not recorded."""
    batches, spec = material.batches.get(number), material.spec
    if batches is None:
        raise NoComparison(material.why_not(number))
    variant, beta, parts = variant_of(spec), penalty_of(spec), list[Part]()
    wrong: Signature | None = None
    found: dict[int, float] = {}
    epsilon = 0.0
    for index, (micro, record) in enumerate(zip(batches, capture.micro_batches(number), strict=True)):
        if micro.token_losses_seen is None or record.backward is None:
            raise NoComparison(f"micro-batch {index}: the log-probabilities or the scalar were not recorded")
        try:
            samples = read_samples_of(micro, index=index)
        except NoSamples as error:
            raise NoComparison(str(error)) from None
        if beta and samples.reference is None:
            wrong = wrong or Signature(
                f"the loss was given no log-probabilities of a reference model in micro-batch {index}: there is no "
                f"penalty, and beta={beta:g} was asked",
                Pattern.OBJECTIVE_SCALE,
                "reference model",
            )
        if wrong is None and not torch.equal(samples.mask, micro.counted):
            wrong = _name_mask(index, samples.mask, micro.counted)
        parts.append(Part(samples, -micro.token_losses_seen.masked_fill(~samples.mask, 0.0)))
        found[index] = record.backward
        epsilon = max(epsilon, round_off(record.backward_dtype, spec.precision))
    asked = Definition(variant, beta, spec.max_completion_length)
    expected = asked.scalars(parts)
    allowed = asked.allow(parts, epsilon=epsilon, multiple=MULTIPLES[spec.precision])
    penalty = abs(sum(asked.weighted(parts, lambda part: beta * estimate_kl_of(part)).values()))
    policy = sum(asked.weighted(parts, lambda part: asked.policy_terms(part).abs()).values())
    limits = {}
    if penalty > 0.0:
        limits["beta"] = sum(allowed.values()) / penalty
    if policy > 0.0:
        limits["advantages"] = sum(allowed.values()) / policy
    if any(part.samples.old is not None for part in parts):
        change = sum(asked.weighted(parts, lambda part: (asked.ratios(part) - 1.0).abs()).values())
        if change > 0.0:
            limits["ratios"] = sum(allowed.values()) / change
    return LossReading(
        step=number,
        found=found,
        expected=expected,
        allowed=allowed,
        limits=limits,
        alternatives=list(list_alternatives(parts, asked, expected)),
        described=f"{sum(part.policy.shape[0] for part in parts)} completions",
        rows=_list_rows(number, parts, asked),
        wrong=wrong,
    )


@dataclass(frozen=True)
class Definition:
    """The variant that was asked, with the weight of its penalty."""

    variant: GroupVariant
    beta: float
    max_tokens: int

    def ratios(self, part: Part) -> torch.Tensor:
        if self.variant.level == "token":
            return token_ratios(part.policy, part.old)
        return sequence_ratios(part.policy, part.old, part.samples.mask).expand_as(part.policy)

    def policy_terms(self, part: Part) -> torch.Tensor:
        advantages = part.samples.token_advantages
        return clipped_losses(self.ratios(part), advantages, low=self.variant.low, high=self.variant.high)

    def terms(self, part: Part) -> torch.Tensor:
        return self.policy_terms(part) + self.beta * estimate_kl_of(part)

    def weighted(self, parts: Sequence[Part], terms: Terms) -> dict[int, float]:
        """Each micro-batch's share of the weighted sum."""
        weights = weigh([part.samples for part in parts], reduction=self.variant.reduction, max_tokens=self.max_tokens)
        return {
            index: float((terms(part).masked_fill(~part.samples.mask, 0.0).sum(dim=1) * weight).sum())
            for index, (part, weight) in enumerate(zip(parts, weights, strict=True))
        }

    def scalars(self, parts: Sequence[Part]) -> dict[int, float]:
        return self.weighted(parts, self.terms)

    def allow(self, parts: Sequence[Part], *, epsilon: float, multiple: float) -> dict[int, float]:
        """Each token's term carries the rounding of two log-probabilities, of an exponential, and of the sums."""

        def noise(part: Part) -> torch.Tensor:
            sizes = part.policy.abs().clamp(min=1.0)
            advantages = part.samples.token_advantages.abs()
            penalty = self.beta * (part.gaps.exp() + part.gaps.abs() + 1.0)
            return epsilon * sizes * (4.0 * advantages * self.ratios(part) + 4.0 * penalty)

        # A step whose advantages are all zero has a loss of the size of its rounding.
        return {index: multiple * (value + epsilon**2) for index, value in self.weighted(parts, noise).items()}


def estimate_kl_of(part: Part) -> torch.Tensor:
    reference = part.samples.reference
    return torch.zeros_like(part.policy) if reference is None else estimate_kl(part.policy, reference)


def _name_mask(index: int, mask: torch.Tensor, counted: torch.Tensor) -> Signature:
    for shift in (1, -1):
        if torch.equal(torch.roll(mask, shift, dims=1), counted):
            side = "after" if shift > 0 else "before"
            sentence = (
                f"the log-probabilities of micro-batch {index} are those of the positions one {side} the completion's"
            )
            return Signature(sentence, Pattern.LOSS_MASK, "completion mask")
    sentence = (
        f"the loss masks {int(mask.sum())} tokens of micro-batch {index} as its completions', and "
        f"{int(counted.sum())} log-probabilities were taken"
    )
    return Signature(sentence, Pattern.LOSS_MASK, "completion mask")


def list_alternatives(parts: Sequence[Part], asked: Definition, expected: Mapping[int, float]) -> Iterator[Alternative]:
    """Other objectives of the same completions, the plainest first."""
    scale, length = Pattern.OBJECTIVE_SCALE, Pattern.SEQUENCE_LENGTH

    def make(sentence: str, where: str, scalars: Mapping[int, float], pattern: Pattern = scale) -> Alternative:
        return Alternative(Signature(sentence, pattern, where), scalars)

    def with_penalty(penalty: Terms) -> dict[int, float]:
        return asked.weighted(parts, lambda part: asked.policy_terms(part) + asked.beta * penalty(part))

    if asked.beta:
        yield make(
            "the penalty has the wrong sign: the policy is pushed away from the reference model",
            "KL penalty",
            with_penalty(lambda part: -estimate_kl_of(part)),
        )
        yield make("there is no penalty", "KL penalty", with_penalty(lambda part: torch.zeros_like(part.policy)))
        yield make(
            "the penalty is log π − log π_ref, whose gradient is no penalty's, and not the published estimate",
            "KL penalty",
            with_penalty(lambda part: -part.gaps),
        )
        yield make(
            "the penalty is ½ (log π − log π_ref)², not the published estimate",
            "KL penalty",
            with_penalty(lambda part: 0.5 * part.gaps.square()),
        )
        yield make(
            "policy and reference model have changed places in the penalty",
            "KL penalty",
            with_penalty(lambda part: torch.expm1(-part.gaps) + part.gaps),
        )
        yield make(
            "the penalty is multiplied by the ratio",
            "KL penalty",
            with_penalty(lambda part: estimate_kl_of(part) * asked.ratios(part)),
        )
        yield make(
            f"the penalty of a token is cut off at {CUT_OFF:g} nats: what is farther from the reference model is not "
            "pulled back",
            "KL penalty",
            with_penalty(lambda part: estimate_kl_of(part).clamp(max=CUT_OFF)),
        )
    other = replace(asked.variant, level="token" if asked.variant.level == "sequence" else "sequence")
    yield make(
        f"ratios are those of a {other.level}, and those of a {asked.variant.level} were asked",
        "importance ratio",
        replace(asked, variant=other).scalars(parts),
    )
    if any(part.samples.old is not None for part in parts):
        still = [replace(part, samples=replace(part.samples, old=None)) for part in parts]
        sentence = "the old policy is the policy itself: every ratio is 1, and nothing is clipped"
        yield make(sentence, "importance ratio", asked.scalars(still), Pattern.STATE_TRANSFER)
    for reduction, said in REDUCTIONS.items():
        if reduction != asked.variant.reduction:
            sentence = f"the loss is {said}, and not {REDUCTIONS[asked.variant.reduction]}"
            variant = replace(asked.variant, reduction=reduction)
            yield make(sentence, "loss denominator", replace(asked, variant=variant).scalars(parts), length)
    yield make(
        "ratios are not clipped",
        "clip",
        asked.weighted(
            parts,
            lambda part: -asked.ratios(part) * part.samples.token_advantages + asked.beta * estimate_kl_of(part),
        ),
    )
    for name, variant in VARIANTS.items():
        if (variant.low, variant.high) != (asked.variant.low, asked.variant.high):
            clipped = replace(asked.variant, low=variant.low, high=variant.high)
            sentence = f"the clip is that of {name}: {variant.low:g} below and {variant.high:g} above 1"
            yield make(sentence, "clip", replace(asked, variant=clipped).scalars(parts))
    yield make(
        "the advantages have the wrong sign: better completions are made less likely",
        "advantages",
        asked.weighted(
            [replace(part, samples=replace(part.samples, advantages=-part.samples.advantages)) for part in parts],
            asked.terms,
        ),
    )
    yield from name_scaled(
        expected,
        micro_batches=len(parts),
        units="completions",
        count=sum(part.policy.shape[0] for part in parts),
    )


def _list_rows(number: int, parts: Sequence[Part], asked: Definition) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for index, part in enumerate(parts):
        ratios, penalties = asked.ratios(part), estimate_kl_of(part)
        for row in range(part.policy.shape[0]):
            kept = part.samples.mask[row]
            rows.append(
                {
                    "step": number,
                    "micro-batch": index,
                    "row": row,
                    "tokens": int(kept.sum()),
                    "advantage": float(part.samples.token_advantages[row][kept].mean()) if bool(kept.any()) else 0.0,
                    "smallest ratio": float(ratios[row][kept].min()) if bool(kept.any()) else 1.0,
                    "largest ratio": float(ratios[row][kept].max()) if bool(kept.any()) else 1.0,
                    "mean KL": float(penalties[row][kept].mean()) if bool(kept.any()) else 0.0,
                }
            )
    return rows
