"""Advantages of tokens: returns that are normalised over the batch, or generalised ones against a value function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from checks.captures.capture import Capture
from checks.check import inconclusive
from checks.diagnosis.signatures import Signature
from checks.material import Material
from checks.references.objectives.advantages import (
    DISCOUNT,
    TRACE,
    generalised_advantages,
    normalise_over_batch,
    token_returns,
)
from checks.rl.reading import NoComparison
from checks.rl.rollout import generated_in
from checks.rl.token_rollout import NORMALISED, TokenRollout, match_token_rows, read_token_rollout
from checks.spec import RunSpec
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern, Status, Verdict

FLOAT32 = 2.0**-24

ROUNDINGS = 8.0
"""Of a value: in its KL, the sum over what follows, the mean, the mean square, the difference and the quotient."""

USEFUL_LIMIT = 0.25
"""Standard deviations: a step that would hide so much of an advantage says nothing."""

Statistics = tuple[str, str, torch.Tensor]
"""sentence, where, and the advantages that it would give"""


@dataclass(frozen=True)
class Step:
    """`found`, `expected`, `allowed`: (rows, tokens) float64; `how`: which definition fits best, for a person."""

    step: int
    rollout: TokenRollout
    expected: torch.Tensor
    allowed: torch.Tensor
    how: str
    unknown: int
    astray: int

    @property
    def error(self) -> torch.Tensor:
        return (self.rollout.found - self.expected).abs().masked_fill(~self.rollout.mask, 0.0)

    @property
    def limit(self) -> float:
        kept = self.rollout.mask
        largest = float(self.expected[kept].abs().max()) if bool(kept.any()) else 0.0
        return float(self.allowed[kept].max()) / largest if largest else float("inf")

    @property
    def holds(self) -> bool:
        return bool((self.error <= self.allowed).all()) and not self.unknown and not self.astray


def judge_token_advantages(name: str, material: Material) -> Verdict:
    """Hold every captured step's advantages against their definition."""
    capture = material.whole
    if capture is None or not capture.steps:
        return inconclusive(name, material.why_not())
    steps: list[Step] = []
    open_: list[str] = []
    for number in sorted(capture.steps):
        try:
            steps.append(_read_step(material, capture, number))
        except NoComparison as error:
            open_.append(f"step {number}: {error}")
    if not steps:
        return inconclusive(name, open_[0])
    measurements = tuple(measurement for step in steps for measurement in _measure(step))
    limits = {"advantages": min(step.limit for step in steps)}
    evidence: dict[str, object] = {"rows": [row for step in steps for row in _list_rows(step)], "not_judged": open_}
    wrong = next((step for step in steps if not step.holds), None)
    if wrong is not None:
        signature = _explain(material.spec, wrong)
        return Verdict(
            name,
            Status.FAIL,
            f"step {wrong.step}: {signature.sentence}",
            measurements,
            limits,
            pattern=signature.pattern,
            first_wrong=signature.where,
            evidence=evidence,
        )
    if not limits["advantages"] <= USEFUL_LIMIT:
        sentence = "every advantage is zero, or within the noise, so that nothing is compared"
        remedy = "set batch or accumulation higher"
        return inconclusive(name, f"{sentence}; {remedy}", measurements=measurements, evidence=evidence)
    worst = max(float(step.error.max()) for step in steps)
    tokens = sum(int(step.rollout.mask.sum()) for step in steps)
    sentence = f"advantages of {tokens} tokens in {len(steps)} steps are {steps[0].how}, within {worst:.2g}"
    sentence += "; each row is trained with its own"
    if open_:
        sentence += f"; not judged: {open_[0]}"
    return Verdict(name, Status.PASS, sentence, measurements, limits, evidence=evidence)


def _read_step(material: Material, capture: Capture, number: int) -> Step:
    batches = material.batches.get(number)
    if batches is None:
        raise NoComparison(material.why_not(number))
    generated = generated_in(material.spec, number)
    rollout = read_token_rollout(material, capture, generated)
    spec = material.spec
    allowed = _allow(rollout, spec)
    best = min(
        _list_definitions(rollout, spec), key=lambda one: float((rollout.found - one[1])[rollout.mask].abs().max())
    )
    unknown, astray = match_token_rows(rollout, batches)
    return Step(number, rollout, best[1], allowed, best[0], unknown, astray)


def _list_definitions(rollout: TokenRollout, spec: RunSpec) -> Iterator[tuple[str, torch.Tensor]]:
    if spec.objective == NORMALISED:
        for ddof, kind in ((0, "population"), (1, "sample")):
            how = f"their returns, normalised over the tokens of the batch by the deviation of a {kind}"
            yield how, normalise_over_batch(_returns(rollout, spec), rollout.mask, ddof=ddof)
        return
    generalised, _ = generalised_advantages(
        _token_rewards(rollout, spec), rollout.values, rollout.mask, gamma=DISCOUNT, lam=TRACE
    )
    yield "generalised ones of their rewards and recorded values", generalised


def _returns(rollout: TokenRollout, spec: RunSpec) -> torch.Tensor:
    return token_returns(rollout.rewards, rollout.kl, rollout.mask, beta=spec.beta)


def _token_rewards(rollout: TokenRollout, spec: RunSpec) -> torch.Tensor:
    """−β times the KL of each token, and the completion's reward at its last one."""
    rewards = -spec.beta * rollout.kl
    for row, mask in enumerate(rollout.mask):
        kept = mask.nonzero().flatten()
        if kept.numel():
            rewards[row, kept[-1]] += rollout.rewards[row]
    return rewards


def _allow(rollout: TokenRollout, spec: RunSpec) -> torch.Tensor:
    """What a computation in float32 may change: of log-probabilities, of sums over a row, of mean and mean square."""
    sizes = rollout.rewards.abs()[:, None] + spec.beta * rollout.kl.abs().sum(dim=1, keepdim=True) + 1.0
    sizes = sizes + rollout.values.abs().amax()
    if spec.objective == NORMALISED:
        kept = _returns(rollout, spec)[rollout.mask]
        deviation = kept.std().clamp(min=FLOAT32)
        # the mean square less the square of the mean loses what both have in common
        sizes = sizes / deviation * (1.0 + (kept.mean() / deviation) ** 2)
    return (MULTIPLES["float32"] * ROUNDINGS * FLOAT32 * sizes).expand(rollout.mask.shape)


def _measure(step: Step) -> tuple[Measurement, ...]:
    kept = step.rollout.mask
    worst = int((step.error / step.allowed).masked_fill(~kept, 0.0).argmax())
    error, allowed = float(step.error.flatten()[worst]), float(step.allowed.flatten()[worst])
    return (
        Measurement(
            f"advantages of step {step.step}",
            error,
            allowed,
            error <= allowed,
            allowed / MULTIPLES["float32"],
            allowed * (1.0 + 1.0 / MULTIPLES["float32"]),
            unit="standard deviations",
        ),
        *(
            Measurement(f"{what} of step {step.step}", float(count), 0.0, count == 0, limit=1.0, unit="count")
            for what, count in (
                ("rows that were not generated", step.unknown),
                ("rows with other advantages than were computed", step.astray),
            )
        ),
    )


def _explain(spec: RunSpec, step: Step) -> Signature:
    rollout = step.rollout
    if not bool((step.error <= step.allowed).all()):
        for sentence, where, values in _list_alternatives(rollout, spec):
            if bool(((rollout.found - values).abs() <= 2.0 * step.allowed)[rollout.mask].all()):
                pattern = Pattern.PARALLELISM if where == "whitening" else Pattern.OBJECTIVE_SCALE
                return Signature(sentence, pattern, where)
        row, token = divmod(int((step.error / step.allowed).argmax()), rollout.mask.shape[1])
        sentence = (
            f"the advantage of token {token} in completion {row} is {float(rollout.found[row, token]):.6g}, and its "
            f"rewards give {float(step.expected[row, token]):.6g}"
        )
        return Signature(sentence, Pattern.OBJECTIVE_SCALE, "advantages")
    if step.astray:
        sentence = f"{step.astray} rows are trained with other advantages than were computed of their completions"
        return Signature(sentence, Pattern.STATE_TRANSFER, "rows")
    return Signature(
        f"{step.unknown} rows are none of the completions that were generated", Pattern.STATE_TRANSFER, "rows"
    )


def _list_alternatives(rollout: TokenRollout, spec: RunSpec) -> Iterator[Statistics]:
    """Sentence, where, and advantages of other definitions, the plainest first."""
    if spec.objective != NORMALISED:
        rewards = _token_rewards(rollout, spec)
        for lam, said in ((1.0, "λ is 1: each is the rewards to come less the value"), (0.0, "λ is 0: one step ahead")):
            found, _ = generalised_advantages(rewards, rollout.values, rollout.mask, gamma=DISCOUNT, lam=lam)
            yield f"advantages are generalised ones whose {said}", "trace", found
        generalised, returns = generalised_advantages(rewards, rollout.values, rollout.mask, gamma=DISCOUNT, lam=TRACE)
        yield "advantages are the returns: no value is taken from them", "values", returns
        yield "the advantages have the wrong sign", "advantages", -generalised
        return
    returns = _returns(rollout, spec)
    for ddof in (0, 1):
        if rollout.owners:
            parts = [normalise_over_batch(returns, rollout.mask & own, ddof=ddof) for own in rollout.owners]
            yield (
                "the whitening is over the tokens of each context-parallel rank alone and not over the batch: mean and "
                "deviation are reduced over the data-parallel ranks, without those that share a row's tokens",
                "whitening",
                torch.stack(parts).sum(0),
            )
        firsts = torch.zeros_like(rollout.mask)
        firsts[torch.arange(firsts.shape[0]), rollout.mask.int().argmax(dim=1)] = True
        yield (
            "mean and deviation are those of completions, each counted once, and not of tokens",
            "whitening",
            _normalise_by(returns, returns[firsts], rollout.mask, ddof=ddof),
        )
    yield "advantages are not normalised", "whitening", returns
    yield "advantages are centred and not divided", "whitening", returns - returns[rollout.mask].mean()
    yield "the advantages have the wrong sign", "advantages", -normalise_over_batch(returns, rollout.mask)


def _normalise_by(values: torch.Tensor, of: torch.Tensor, mask: torch.Tensor, *, ddof: int) -> torch.Tensor:
    deviation = of.std(correction=ddof).clamp(min=FLOAT32) if of.numel() > ddof else torch.ones(())
    return ((values - of.mean()) / deviation).masked_fill(~mask, 0.0)


def _list_rows(step: Step) -> list[Mapping[str, object]]:
    rollout = step.rollout
    return [
        {
            "step": step.step,
            "completion": row,
            "tokens": int(mask.sum()),
            "reward": float(rollout.rewards[row]),
            "first advantage": float(rollout.found[row][mask][0]) if bool(mask.any()) else 0.0,
            "expected": float(step.expected[row][mask][0]) if bool(mask.any()) else 0.0,
            "largest error": float(step.error[row].max()),
        }
        for row, mask in enumerate(rollout.mask)
    ]
