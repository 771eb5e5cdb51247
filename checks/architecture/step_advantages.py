"""Advantages are the rewards of one prompt's completions, centred and scaled in their group, and reach their own rows.

Reference: (reward − mean) / (standard deviation + ε) over the `num_generations` completions of a prompt, in float64,
from the rewards that the run recorded (https://arxiv.org/abs/2402.03300, section 4.1.2); the deviation is the sample's
(n − 1), as torch.std takes it, and ε the framework's, at most 1e-4. With `grpo_loss=dr_grpo` rewards are centred and
not divided (https://arxiv.org/abs/2503.20783). reinforce_plus_plus: a token's reward less beta times log π_old −
log π_ref of what follows, normalised over all tokens of the batch on all ranks (https://arxiv.org/abs/2501.03262,
section 3; deviation of the population or of a sample). ppo: generalised advantages of such rewards against the recorded
values (https://arxiv.org/abs/1506.02438, equation 16; γ 1, λ 0.95). The floor is the rounding of a float32 computation.
Each row that is trained on must have the advantages of the completion that it holds.
Catches: rewards that are not centred, or centred over the batch; a deviation of the population (n), of the whole
batch, of one rank's tokens alone, or none where it was asked (`trl-scale-rewards-swapped`,
`slime-advantage-whitening-wrong-group`, `miles-rewards-normalised-per-segment`); advantages that stand beside other
completions after the rows were shuffled (`mswift-grpo-kl-gathered-twice`); groups that mix prompts.
Cannot see: whether the rewards are right, which the reward function alone knows; with one group a step, whether the
deviation is the group's or the batch's; advantages of steps whose completions were generated in a step that was not
recorded.
Cost: nothing beyond the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from checks.captures.capture import Capture
from checks.check import Check, inconclusive
from checks.diagnosis.signatures import Signature
from checks.material import Material
from checks.objectives import needs_completions
from checks.references.objectives import PROXIMAL
from checks.references.objectives.advantages import GROUP_EPSILON, Scale, group_advantages
from checks.references.sampled import variant_of
from checks.rl.reading import NoComparison
from checks.rl.rollout import Rollout, Trained, generated_in, match_rows, read_rollout
from checks.rl.token_advantages import judge_token_advantages
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.advantages"

EPSILONS = (GROUP_EPSILON, 1e-6, 1e-8, 0.0)
"""What frameworks add to the deviation: TRL and ms-swift, verl, others, and the paper."""

FLOAT32 = 2.0**-24
"""Rewards and advantages are float32 whatever the run's precision is."""

ROUNDINGS = 4.0
"""Of a reward: in the mean, the difference, the deviation and the quotient."""

USEFUL_LIMIT = 0.25
"""A step that would hide an advantage that is a quarter wrong says nothing."""


@dataclass(frozen=True)
class Step:
    """One captured step. `generated`: the step that its completions come from; `found`, `expected`, `allowed`: (groups,
    samples) float64; `epsilon`: of those that are known, the one that fits best.
    """

    step: int
    generated: int
    rollout: Rollout
    found: torch.Tensor
    expected: torch.Tensor
    allowed: torch.Tensor
    epsilon: float
    rows: Trained

    @property
    def error(self) -> torch.Tensor:
        return (self.found - self.expected).abs()

    @property
    def limit(self) -> float:
        """The smallest relative error of the advantages that would have shown in the group that shows most."""
        sizes, allowed = self.expected.abs().amax(dim=1), self.allowed.amax(dim=1)
        seen = sizes > 0.0
        return float((allowed[seen] / sizes[seen]).min()) if bool(seen.any()) else float("inf")


def judge(material: Material) -> Verdict:
    if material.spec.objective in PROXIMAL:
        return judge_token_advantages(NAME, material)
    capture = material.whole
    if capture is None or not capture.steps:
        return inconclusive(NAME, material.why_not())
    steps: list[Step] = []
    open_: list[str] = []
    for number in sorted(capture.steps):
        try:
            steps.append(_read_step(material, capture, number))
        except NoComparison as error:
            open_.append(f"step {number}: {error}")
    if not steps:
        return inconclusive(NAME, open_[0])
    measurements = tuple(measurement for step in steps for measurement in _measure(step))
    limit = min(step.limit for step in steps)
    limits = {"advantages": limit} if limit < float("inf") else {}
    evidence: dict[str, object] = {
        "rows": [row for step in steps for row in _list_rows(step)],
        "epsilon": steps[0].epsilon,
        "not_judged": open_,
    }
    wrong = next((step for step in steps if not all(m.holds for m in _measure(step))), None)
    if wrong is not None:
        signature = _explain(material, wrong)
        return Verdict(
            NAME,
            Status.FAIL,
            f"step {wrong.step}: {signature.sentence}",
            measurements,
            limits,
            pattern=signature.pattern,
            first_wrong=signature.where,
            evidence=evidence,
        )
    if not limit <= USEFUL_LIMIT:
        sentence = "the rewards of every group are equal, so that all advantages are zero and nothing is compared"
        remedy = "set num_generations higher, or temperature"
        return inconclusive(NAME, f"{sentence}; {remedy}", measurements=measurements, evidence=evidence)
    return Verdict(NAME, Status.PASS, _say(material, steps, open_), measurements, limits, evidence=evidence)


def _say(material: Material, steps: Sequence[Step], open_: Sequence[str]) -> str:
    groups, samples = steps[0].found.shape
    worst = max(float(step.error.max()) for step in steps)
    scaled = variant_of(material.spec).scaled
    how = f"divided by their sample deviation + {steps[0].epsilon:g}" if scaled else "not divided"
    sentence = (
        f"advantages of {groups} groups of {samples} completions in {len(steps)} steps are their rewards, centred in "
        f"the group and {how}, within {worst:.2g}; each row is trained with its own"
    )
    if scaled and groups == 1:
        sentence += "; with one group a step the deviation may be the batch's: set batch or accumulation higher"
    return f"{sentence}; not judged: {open_[0]}" if open_ else sentence


def _read_step(material: Material, capture: Capture, number: int) -> Step:
    batches = material.batches.get(number)
    if batches is None:
        raise NoComparison(material.why_not(number))
    generated = generated_in(material.spec, number)
    rollout = read_rollout(capture, generated, group=material.spec.num_generations)
    scale: Scale = "group" if variant_of(material.spec).scaled else "none"
    rewards = rollout.grouped(rollout.rewards)
    found = rollout.grouped(rollout.advantages)
    epsilon = next((one for one in EPSILONS if _fits(found, rewards, scale=scale, epsilon=one)), GROUP_EPSILON)
    return Step(
        step=number,
        generated=generated,
        rollout=rollout,
        found=found,
        expected=group_advantages(rewards, scale=scale, epsilon=epsilon),
        allowed=_allow(rewards, scale=scale, epsilon=epsilon),
        epsilon=epsilon,
        rows=match_rows(rollout, batches),
    )


def _fits(found: torch.Tensor, rewards: torch.Tensor, *, scale: Scale, epsilon: float) -> bool:
    error = (found - group_advantages(rewards, scale=scale, epsilon=epsilon)).abs()
    return bool((error <= _allow(rewards, scale=scale, epsilon=epsilon)).all())


def _allow(rewards: torch.Tensor, *, scale: Scale, epsilon: float) -> torch.Tensor:
    """(groups, samples): what rounding the rewards, and what is computed of them, may change."""
    advantages = group_advantages(rewards, scale=scale, epsilon=epsilon).abs()
    sizes = rewards.double().abs().amax(dim=1, keepdim=True).clamp(min=FLOAT32)
    if scale != "none":
        deviation = rewards.double().std(dim=1, keepdim=True) if rewards.shape[1] > 1 else torch.zeros_like(sizes)
        sizes = sizes / (deviation + max(epsilon, FLOAT32)) * (1.0 + advantages)
    return MULTIPLES["float32"] * ROUNDINGS * FLOAT32 * (sizes + advantages)


def _measure(step: Step) -> tuple[Measurement, ...]:
    worst = int((step.error / step.allowed).argmax())
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
                ("groups that mix prompts", step.rollout.mixed),
                ("completions whose tokens have several advantages", step.rollout.uneven),
                ("rows that were not generated", step.rows.unknown),
                ("rows with another completion's advantage", step.rows.astray),
            )
        ),
    )


def _explain(material: Material, step: Step) -> Signature:
    if step.rollout.mixed:
        count = f"{step.rollout.mixed} of {step.found.shape[0]} groups"
        return Signature(f"{count} hold completions of several prompts", Pattern.OBJECTIVE_SCALE, "groups")
    if step.rollout.uneven:
        count = f"{step.rollout.uneven} of {step.found.numel()} completions"
        return Signature(
            f"the tokens of {count} have several advantages, and each has one", Pattern.OBJECTIVE_SCALE, "advantages"
        )
    if not bool((step.error <= step.allowed).all()):
        rewards = step.rollout.grouped(step.rollout.rewards)
        for sentence, where, values in _list_alternatives(rewards, scaled=variant_of(material.spec).scaled):
            if bool(((step.found - values).abs() <= 2.0 * step.allowed).all()):
                return Signature(sentence, Pattern.OBJECTIVE_SCALE, where)
        group, sample = divmod(int((step.error / step.allowed).argmax()), step.found.shape[1])
        sentence = (
            f"the advantage of completion {sample} in group {group} is {float(step.found[group, sample]):.6g}, and its "
            f"rewards give {float(step.expected[group, sample]):.6g}"
        )
        return Signature(sentence, Pattern.OBJECTIVE_SCALE, "advantages")
    if step.rows.astray:
        sentence = (
            f"{step.rows.astray} rows are trained with the advantage of another completion: the shuffle parts them"
        )
        return Signature(sentence, Pattern.STATE_TRANSFER, "rows")
    sentence = f"{step.rows.unknown} rows are none of the completions that were generated in step {step.generated}"
    return Signature(sentence, Pattern.STATE_TRANSFER, "rows")


def _list_alternatives(rewards: torch.Tensor, *, scaled: bool) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Sentence, where, and advantages of other definitions, the plainest first."""
    values = rewards.double()
    deviation, over_all = values.std(dim=1, keepdim=True), values.std()
    if not scaled:
        yield (
            "advantages are divided by their group's deviation, which Dr. GRPO does not",
            "standard deviation",
            group_advantages(rewards),
        )
    yield (
        "advantages are centred and not divided by a deviation",
        "standard deviation",
        group_advantages(rewards, scale="none"),
    )
    yield (
        "rewards are not centred: a group's mean is not taken from them",
        "mean",
        values / (deviation + GROUP_EPSILON) if scaled else values,
    )
    for epsilon in EPSILONS:
        yield (
            "the deviation is that of the population (n) and not of a sample (n − 1)",
            "standard deviation",
            group_advantages(rewards, ddof=0, epsilon=epsilon),
        )
        yield (
            "the deviation is that of all rewards of the step, not of each group's",
            "standard deviation",
            group_advantages(rewards, scale="batch", epsilon=epsilon),
        )
        whole = (values - values.mean()) / (over_all + epsilon)
        yield "mean and deviation are those of all rewards of the step, not of each group's", "groups", whole
    yield "the advantages have the wrong sign", "advantages", -group_advantages(rewards, scale="group")
    yield "advantages are the rewards", "advantages", values


def _list_rows(step: Step) -> list[Mapping[str, object]]:
    rewards = step.rollout.grouped(step.rollout.rewards)
    return [
        {
            "step": step.step,
            "group": group,
            "completion": sample,
            "reward": float(rewards[group, sample]),
            "advantage": float(step.found[group, sample]),
            "expected": float(step.expected[group, sample]),
        }
        for group in range(rewards.shape[0])
        for sample in range(rewards.shape[1])
    ]


CHECK = Check(NAME, "advantages are centred and scaled in their group", __doc__ or "", judge, applies=needs_completions)
