"""The loss of preferences or rewards is that of its paper: what is compared, weighed, clipped and averaged.

Reference: the objective's definition in float64, with its reduction stated, on the log-probabilities that the run
recorded; each micro-batch's scalar, as given to autograd, must be its share. dpo: −log σ of beta times the margin, a
mean over the step's pairs (https://arxiv.org/abs/2305.18290, equation 7). orpo: the mean loss of each micro-batch's
preferred rows, prompts included, and beta times the mean −log σ of the log odds ratio
(https://arxiv.org/abs/2403.07691). kto: the mean of 1 − σ(±beta (gain − z)), with z, each micro-batch's reference
point, of the mismatched answers that the run recorded, and each row's label that of the data
(https://arxiv.org/abs/2402.01306). reward: −log σ of the margin of a pair's scores, and beta times their sum squared, a
mean over the pairs (https://arxiv.org/abs/2203.02155, equation 1; https://arxiv.org/abs/2312.09244), with the data's
preferred answers first. grpo: the variant that `grpo_loss` names, on the advantages and log-probabilities that the loss
was given (https://arxiv.org/abs/2402.03300 and those after it). log π_ref of an answer is what the
checkpoint's own weights give, without adapters. Judged at every captured step.
Catches: another beta, a reference model that is the policy itself, that moves with it, or that is missing, a margin
with the wrong sign, means over tokens in the place of sums or sums in that of means, losses that are summed or not
divided over the accumulation (`trl-dpo-ga-scale`, `trl-orpo-ga-scale`), smoothed preferences, padding in ORPO's
likelihood (`trl-orpo-pad-in-labels`), flipped labels, another estimate or sign of the KL penalty, ratios of another
level, a clip that is missing, a mean over tokens for one over completions (`slime-per-token-loss-scaled-twice`), a
mask that is one position off (`mswift-grpo-completion-mask-not-shifted`).
Cannot see: which tokens of preferences count and which answer is preferred (`data.preference`, `data.mask`); whether
advantages and log-probabilities that the loss was given are right (`step.advantages`, `step.rl_logprobs`); which
answers KTO mismatches, and what its policy says of them; what follows the loss (`step.gradients`). While the policy is
its own reference, as in the first step of a whole model, dpo's and kto's losses are constants, and only the reduction
shows; while completions are trained on once, every ratio is 1. Micro-batches whose rows hold an expert choice of the
reference model that the run's precision does not decide are left out.
Cost: dpo, kto: four to seven forwards of the checkpoint a captured step, kto as many again for z; else none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from checks.captures.capture import Capture
from checks.check import Check, inconclusive
from checks.diagnosis.preference_loss import Answers, expect, read_preference_loss
from checks.diagnosis.signatures import Signature
from checks.material import Material
from checks.objectives import needs_other_objective
from checks.references.auxiliary import AuxiliaryLoss
from checks.references.initial import InitialAnswers
from checks.references.objectives.preference import answer_log_probs, pair_losses
from checks.references.reference import root_config
from checks.rl.groups import read_group_step
from checks.rl.judging import Read, judge_losses
from checks.rl.odds import read_odds_step
from checks.rl.prospects import read_prospect_step
from checks.rl.reading import ROUND_OFF, NoComparison
from checks.rl.rewards import read_reward_step
from checks.spec import POLICY_OBJECTIVES
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.rl_loss"

USEFUL_BETA_LIMIT = 0.25
"""A step that would hide an error of a quarter of beta says nothing of beta, nor of the reference model."""


@dataclass(frozen=True)
class Step:
    """One captured step that can be held against its definition.

    `answers`: of the micro-batches that can be judged, by their index; `pairs`, `micro_batches`: of the whole step.
    """

    step: int
    answers: Mapping[int, Answers]
    pairs: int
    micro_batches: int
    beta: float

    @property
    def expected(self) -> tuple[float, ...]:
        return tuple(expect(one, beta=self.beta, pairs=self.pairs) for one in self.answers.values())

    @property
    def allowed(self) -> float:
        return math.fsum(one.allowed for one in self.answers.values())

    @property
    def beta_limit(self) -> float:
        """The smallest relative error of beta that the step's loss would have shown."""
        slope = abs(math.fsum(float(_slopes(one.margins, self.beta).sum()) for one in self.answers.values()))
        slope /= self.pairs
        return self.allowed / (self.beta * slope) if slope else math.inf


READERS: Mapping[str, Read] = {
    "orpo": read_odds_step,
    "kto": read_prospect_step,
    "reward": read_reward_step,
    **dict.fromkeys(POLICY_OBJECTIVES, read_group_step),
}
"""objective → how the losses of a captured step are read; dpo's are read here"""


def judge(material: Material) -> Verdict:
    read = READERS.get(material.spec.objective)
    return judge_preferences(material) if read is None else judge_losses(NAME, material, read)


def judge_preferences(material: Material) -> Verdict:
    """Of dpo."""
    capture = material.capture
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
    multiple = MULTIPLES[material.spec.precision]
    measurements = tuple(m for step in steps for m in _measure(step, multiple))
    limit = min(step.beta_limit for step in steps)
    limits = {"beta": limit} if math.isfinite(limit) else {}
    evidence: dict[str, object] = {
        "beta": material.spec.beta,
        "pairs": [row for step in steps for row in _list_pairs(step)],
        "not_judged": open_,
    }
    if all(measurement.holds for measurement in measurements):
        return _decide(steps, open_, measurements, limits, evidence, precision=material.spec.precision)
    first = next(step for step in steps if not all(m.holds for m in _measure(step, multiple)))
    signature = _explain(first)
    return Verdict(
        NAME,
        Status.FAIL,
        f"step {first.step}: {signature.sentence}",
        measurements,
        limits,
        pattern=signature.pattern,
        first_wrong=signature.where,
        evidence=evidence,
    )


def _decide(
    steps: Sequence[Step],
    open_: Sequence[str],
    measurements: tuple[Measurement, ...],
    limits: dict[str, float],
    evidence: dict[str, object],
    *,
    precision: str,
) -> Verdict:
    best = min(steps, key=lambda step: step.beta_limit)
    judged = f"steps {', '.join(str(step.step) for step in steps)}" if len(steps) > 1 else f"step {steps[0].step}"
    if not best.beta_limit <= USEFUL_BETA_LIMIT:
        remedy = "set steps to 2 or more, and a rate that moves the weights"
        if open_:
            remedy = f"not judged: {open_[0]}"
        elif precision != "float32":
            remedy = "run with precision=float32"
        sentence = (
            f"the losses of {judged} are as defined, but what the policy has gained on the checkpoint there is within "
            f"the noise, which would hide another beta or reference model; {remedy}"
        )
        return inconclusive(NAME, sentence, measurements=measurements, detection_limits=limits, evidence=evidence)
    worst = max(measurement.value for measurement in measurements)
    pairs = sum(one.pairs for step in steps for one in step.answers.values())
    sentence = (
        f"{pairs} pairs of {judged} have the loss of the definition within {worst:.2g} "
        f"nats; an error of {best.beta_limit:.2g} in beta would show in step {best.step}"
    )
    left = sum(step.micro_batches - len(step.answers) for step in steps)
    if left:
        sentence += f"; {left} micro-batches are left out, whose experts the run's precision does not decide"
    if open_:
        sentence += f"; not judged: {open_[0]}"
    return Verdict(NAME, Status.PASS, sentence, measurements, limits, evidence=evidence)


def _read_step(material: Material, capture: Capture, number: int) -> Step:
    initial, batches = material.answers.get(number), material.batches.get(number)
    if initial is None or batches is None:
        raise NoComparison(material.no_answers.get(number) or material.why_not(number))
    if AuxiliaryLoss.of(root_config(capture, number), batches) is not None:
        raise NoComparison("the config adds a load-balancing term to the loss; set router_aux_loss_coef to 0")
    records = capture.micro_batches(number)
    if len({micro.input_ids.shape[0] for micro in batches}) > 1:
        counts = ", ".join(str(micro.input_ids.shape[0] // 2) for micro in batches)
        raise NoComparison(f"micro-batches hold {counts} pairs; a mean of their means is not the mean over the step")
    pairs = sum(micro.input_ids.shape[0] for micro in batches) // 2
    answers: dict[int, Answers] = {}
    for index, (micro, record) in enumerate(zip(batches, records, strict=True)):
        if micro.token_losses_seen is None or record.backward is None:
            raise NoComparison(f"micro-batch {index}: the per-token losses or the scalar were not recorded")
        if bool(initial.undecided[index].any()):
            continue
        policy = answer_log_probs(micro.token_losses_seen, micro.counted)
        floor = _find_floor(initial, index, policy, beta=material.spec.beta, dtype=record.backward_dtype) / pairs
        answers[index] = Answers(
            policy=policy,
            reference=initial.log_probs[index],
            tokens=micro.counted.sum(dim=1).double(),
            found=record.backward,
            allowed=MULTIPLES[material.spec.precision] * floor,
        )
    if not answers:
        raise NoComparison("every micro-batch holds a token whose expert the run's precision does not decide")
    return Step(number, answers, pairs, len(batches), material.spec.beta)


def _find_floor(initial: InitialAnswers, index: int, policy: torch.Tensor, *, beta: float, dtype: str | None) -> float:
    """What the sum of a micro-batch's losses moves by where each log-probability moves by its noise.

    −log σ has a slope of at most 1: beta times the noise of the four log-probabilities of a pair, each rounded as it is
    summed and as it is subtracted, and the rounding of the losses, which are not much above log 2 where it matters.
    """
    epsilon = ROUND_OFF.get(dtype or "torch.float32", 2.0**-9)
    reference, noise = initial.log_probs[index], initial.noise[index]
    rounding = 2.0 * epsilon * (policy.abs() + reference.abs())
    first, second = (policy - reference).chunk(2)
    losses = pair_losses(first - second, beta=beta)
    return float(beta * (noise + rounding).sum() + 2.0 * epsilon * losses.clamp(min=math.log(2.0)).sum())


def _measure(step: Step, multiple: float) -> tuple[Measurement, ...]:
    return tuple(
        Measurement(
            f"loss of step {step.step}, micro-batch {index}",
            abs(one.found - expected),
            one.allowed,
            abs(one.found - expected) <= one.allowed,
            one.allowed / multiple,
            one.allowed * (1.0 + 1.0 / multiple),
            unit="nats",
        )
        for (index, one), expected in zip(step.answers.items(), step.expected, strict=True)
    )


def _slopes(margins: torch.Tensor, beta: float) -> torch.Tensor:
    """The derivative of each pair's loss by beta."""
    return -margins * torch.sigmoid(-beta * margins)


def _explain(step: Step) -> Signature:
    known = read_preference_loss(
        tuple(step.answers.values()), beta=step.beta, pairs=step.pairs, micro_batches=step.micro_batches
    )
    if known is not None:
        return known
    (index, one), expected = max(
        zip(step.answers.items(), step.expected, strict=True), key=lambda item: abs(item[0][1].found - item[1])
    )
    return Signature(
        f"the loss of micro-batch {index} is {one.found:.6g} nats, and the definition gives {expected:.6g} for its "
        f"{one.pairs} pairs (allowed {one.allowed:.2g}): another objective, or another reference model",
        Pattern.OBJECTIVE_SCALE,
        "loss",
    )


def _list_pairs(step: Step) -> list[dict[str, object]]:
    """Every pair's numbers, for a page."""
    rows: list[dict[str, object]] = []
    for index, one in step.answers.items():
        for pair in range(one.pairs):
            row: dict[str, object] = {"step": step.step, "micro-batch": index, "pair": pair}
            for name, place in (("chosen", pair), ("rejected", one.pairs + pair)):
                row[f"log π, {name}"] = float(one.policy[place])
                row[f"log π_ref, {name}"] = float(one.reference[place])
            row["margin"] = float(one.margins[pair])
            row["loss"] = float(pair_losses(one.margins[pair : pair + 1], beta=step.beta))
            rows.append(row)
    return rows


CHECK = Check(
    NAME,
    "the loss of preferences or rewards is that of its paper",
    __doc__ or "",
    judge,
    reference=True,
    applies=needs_other_objective,
)
