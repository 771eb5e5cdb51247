"""step.rl_loss on ORPO, KTO and GRPO: losses as defined pass, others fail and are named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.architecture import step_rl_loss
from checks.material import Material
from checks.objectives import needs_other_objective
from checks.references.batch import MicroBatch
from checks.references.initial import InitialAnswers
from checks.references.mismatched import ReferencePoints
from checks.references.objectives import VARIANTS, Computed, GroupRelative, OddsRatio, Prospect, Samples, Span
from checks.references.objectives.odds_ratio import odds_ratio_losses
from checks.references.objectives.prospect import value_losses
from checks.references.sampled import read_samples_of
from checks.verdict import Pattern, Status, Verdict
from tests.checks.data_runs import make_spec
from tests.checks.rl_runs import draw, make_micro, make_rl_material

BETA = 0.1


def judge(material: Material) -> Verdict:
    return step_rl_loss.judge(material)


def lay(micro: MicroBatch, index: int) -> Computed:
    assert micro.token_losses_seen is not None
    rows, width = micro.input_ids.shape
    return Computed(micro.token_losses_seen, tuple((index, row) for row in range(rows)), (Span(0, 0, width),) * rows)


# ORPO: two micro-batches of two pairs; a prompt of two tokens, answers of two to four.

ANSWERS = torch.tensor(
    [[0, 1, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0], [0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0]], dtype=torch.bool
)
COUNTED = ANSWERS | torch.tensor([[1, 0, 0, 0, 0, 0]] * 2 + [[0] * 6] * 2, dtype=torch.bool)


def make_pairs() -> tuple[MicroBatch, ...]:
    ids = torch.arange(24).view(4, 6)
    return tuple(make_micro(ids, draw(4, 6, seed=s).abs() + 0.3, COUNTED, answers=ANSWERS) for s in (1, 2))


PAIRS = make_pairs()
ORPO = OddsRatio(BETA, (ANSWERS,) * 2, (COUNTED,) * 2)


def orpo_scalars() -> list[float]:
    return [float(ORPO([lay(micro, index)])) for index, micro in enumerate(PAIRS)]


def parts(micro: MicroBatch) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Likelihood, and means and sums of the answers' log-probabilities."""
    losses = micro.token_losses_seen
    assert losses is not None
    total = -losses.masked_fill(~ANSWERS, 0.0).sum(dim=1)
    return float(losses[:2][COUNTED[:2]].mean()), total / ANSWERS.sum(dim=1), total


def orpo(scalars: Sequence[float], directory: Path, **more: Any) -> Verdict:
    material = make_rl_material(
        directory, objective="orpo", scalars={1: scalars}, batches={1: PAIRS}, beta=BETA, **more
    )
    return judge(material)


def test_orpos_loss_as_defined_passes_and_says_what_of_beta_would_show(tmp_path: Path) -> None:
    verdict = orpo(orpo_scalars(), tmp_path, counted={1: [8, 8]})
    assert verdict.status is Status.PASS
    assert verdict.sentence.startswith("4 pairs of step 1 have the loss of the definition within ")
    assert verdict.detection_limits["beta"] < 1e-3
    slope = sum(BETA * float(odds_ratio_losses(*parts(micro)[1].chunk(2)).mean()) for micro in PAIRS) / 2
    allowed = sum(measurement.threshold for measurement in verdict.measurements)
    assert verdict.detection_limits["beta"] == pytest.approx(allowed / slope, rel=1e-9)
    rows: Any = verdict.evidence["rows"]
    assert [(row["micro-batch"], row["pair"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def odds(ratio: torch.Tensor) -> float:
    return float(odds_ratio_losses(*ratio.chunk(2)).mean())


ORPO_OTHERS: dict[str, tuple[Callable[[MicroBatch], float], str, Pattern]] = {
    "sums": (lambda m: parts(m)[0] + BETA * odds(parts(m)[2]), "answer log-probabilities", Pattern.SEQUENCE_LENGTH),
    "swapped": (
        lambda m: parts(m)[0] + BETA * odds(torch.cat(parts(m)[1].chunk(2)[::-1])),
        "pairs",
        Pattern.OBJECTIVE_SCALE,
    ),
    "subtracted": (lambda m: parts(m)[0] - BETA * odds(parts(m)[1]), "odds ratio", Pattern.OBJECTIVE_SCALE),
    "left out": (lambda m: parts(m)[0], "odds ratio", Pattern.OBJECTIVE_SCALE),
    "likelihood left out": (lambda m: BETA * odds(parts(m)[1]), "likelihood", Pattern.OBJECTIVE_SCALE),
    "beta doubled": (lambda m: parts(m)[0] + 2 * BETA * odds(parts(m)[1]), "loss denominator", Pattern.OBJECTIVE_SCALE),
    "beta tripled": (lambda m: parts(m)[0] + 3 * BETA * odds(parts(m)[1]), "beta", Pattern.OBJECTIVE_SCALE),
    "not divided": (
        lambda m: 2 * (parts(m)[0] + BETA * odds(parts(m)[1])),
        "loss denominator",
        Pattern.OBJECTIVE_SCALE,
    ),
    "no complement": (
        lambda m: parts(m)[0] + BETA * float(torch.nn.functional.softplus(-(parts(m)[1][:2] - parts(m)[1][2:])).mean()),
        "odds ratio",
        Pattern.OBJECTIVE_SCALE,
    ),
}


@pytest.mark.parametrize("name", list(ORPO_OTHERS))
def test_another_objective_than_orpos_fails_and_is_named(name: str, tmp_path: Path) -> None:
    change, where, pattern = ORPO_OTHERS[name]
    verdict = orpo([change(micro) / 2 for micro in PAIRS], tmp_path)
    assert (verdict.status, verdict.first_wrong, verdict.pattern) == (Status.FAIL, where, pattern), verdict.sentence


def test_padding_in_orpos_likelihood_is_told_by_what_the_kernel_counted(tmp_path: Path) -> None:
    verdict = orpo(orpo_scalars(), tmp_path / "padding", counted={1: [8, 10]})
    assert (verdict.status, verdict.pattern, verdict.first_wrong) == (Status.FAIL, Pattern.LOSS_MASK, "labels")
    assert verdict.sentence == (
        "step 1: the likelihood counts 10 tokens in micro-batch 1, and its preferred rows have 8: padding is counted"
    )
    alone = orpo(orpo_scalars(), tmp_path / "alone", counted={1: [6, 6]})
    assert "the likelihood counts the 6 tokens of the answers alone" in alone.sentence


def test_a_loss_just_beyond_what_is_allowed_fails(tmp_path: Path) -> None:
    allowed = orpo(orpo_scalars(), tmp_path / "plain").measurements[0].threshold
    for share, status in ((0.9, Status.PASS), (1.1, Status.FAIL)):
        scalars = [value + share * allowed * (index == 0) for index, value in enumerate(orpo_scalars())]
        assert orpo(scalars, tmp_path / str(share)).status is status


def test_orpos_step_without_its_log_probabilities_is_inconclusive(tmp_path: Path) -> None:
    blind = tuple(replace(micro, token_losses_seen=None) for micro in PAIRS)
    material = make_rl_material(tmp_path, objective="orpo", scalars={1: [1.0, 1.0]}, batches={1: blind})
    verdict = judge(material)
    assert (verdict.status, verdict.sentence) == (
        Status.INCONCLUSIVE,
        "step 1: micro-batch 0: the log-probabilities, the labels or the scalar were not recorded",
    )


# KTO: two micro-batches of two answers.

LABELS = torch.tensor([True, False])
GAINS = ((4.0, -3.0), (-2.0, 5.0))
POINTS = (0.5, 1.25)
TOKENS = torch.tensor([[False, True, True, True], [False, True, True, False]])


def make_answers(gains: Sequence[Sequence[float]] = GAINS, labels: torch.Tensor = LABELS) -> tuple[MicroBatch, ...]:
    """Answers of 3 and 2 tokens; the policy's log-probability of each is −6 and its gain."""
    micro_batches = []
    for part in gains:
        losses = torch.zeros(2, 4, dtype=torch.float64)
        losses[:, 1] = 6.0 - torch.tensor(part, dtype=torch.float64)
        micro_batches.append(make_micro(torch.ones(2, 4, dtype=torch.int64), losses, TOKENS, given={"label": labels}))
    return tuple(micro_batches)


def kto_scalars(gains: Sequence[Sequence[float]] = GAINS, points: Sequence[float] = POINTS) -> list[float]:
    reference = {(m, r): torch.tensor(-6.0, dtype=torch.float64) for m in (0, 1) for r in (0, 1)}
    objective = Prospect(BETA, reference, tuple(torch.tensor(p) for p in points), (LABELS, LABELS))
    return [float(objective([lay(micro, index)])) for index, micro in enumerate(make_answers(gains))]


def kto(
    scalars: Sequence[float],
    directory: Path,
    *,
    gains: Sequence[Sequence[float]] = GAINS,
    points: Sequence[float] = POINTS,
    change: Callable[[Material], Material] = lambda material: material,
) -> Verdict:
    material = make_rl_material(
        directory, objective="kto", scalars={1: scalars}, batches={1: make_answers(gains)}, beta=BETA
    )
    answers = InitialAnswers(
        log_probs=(torch.full((2,), -6.0, dtype=torch.float64),) * 2,
        noise=(torch.full((2,), 1e-6, dtype=torch.float64),) * 2,
        undecided=(torch.zeros(2, dtype=torch.bool),) * 2,
    )
    known = replace(material, answers={1: answers}, reference_points={1: ReferencePoints(tuple(points), (1e-6, 1e-6))})
    return judge(change(known))


def test_ktos_loss_as_defined_passes_and_shows_its_reference_points(tmp_path: Path) -> None:
    verdict = kto(kto_scalars(), tmp_path)
    assert verdict.status is Status.PASS
    assert verdict.sentence.startswith("4 answers of step 1 have the loss of the definition within ")
    assert verdict.detection_limits["beta"] < 0.01
    assert verdict.evidence["reference_points"] == [0.5, 1.25]
    rows: Any = verdict.evidence["rows"]
    assert [row["label"] for row in rows] == ["desirable", "undesirable"] * 2


def value(part: int, *, beta: float = BETA, point: float | None = None, gains: torch.Tensor | None = None) -> float:
    own = torch.tensor(GAINS[part], dtype=torch.float64) if gains is None else gains
    point = POINTS[part] if point is None else point
    return float(value_losses(own, LABELS, beta=beta, reference_point=point).mean()) / 2


def flipped(part: int) -> float:
    gains = torch.tensor(GAINS[part], dtype=torch.float64)
    return float(value_losses(gains, ~LABELS, beta=BETA, reference_point=POINTS[part]).mean()) / 2


def logarithm(part: int) -> float:
    ahead = BETA * (torch.tensor(GAINS[part], dtype=torch.float64) - POINTS[part]) * torch.tensor([1.0, -1.0])
    return float(torch.nn.functional.softplus(-ahead).mean()) / 2


KTO_OTHERS: dict[str, tuple[Callable[[int], float], str, Pattern]] = {
    "its own reference": (lambda part: 0.25, "reference model", Pattern.STATE_TRANSFER),
    "flipped": (flipped, "label", Pattern.LOSS_MASK),
    "no reference point": (lambda part: value(part, point=0.0), "reference point", Pattern.OBJECTIVE_SCALE),
    "beta doubled": (lambda part: value(part, beta=0.2), "beta", Pattern.OBJECTIVE_SCALE),
    "not divided": (lambda part: 2.0 * value(part), "loss denominator", Pattern.OBJECTIVE_SCALE),
    "logarithm": (logarithm, "loss", Pattern.OBJECTIVE_SCALE),
    "means over tokens": (
        lambda part: value(part, gains=torch.tensor(GAINS[part], dtype=torch.float64) / torch.tensor([3.0, 2.0])),
        "answer log-probabilities",
        Pattern.SEQUENCE_LENGTH,
    ),
}


@pytest.mark.parametrize("name", list(KTO_OTHERS))
def test_another_objective_than_ktos_fails_and_is_named(name: str, tmp_path: Path) -> None:
    change, where, pattern = KTO_OTHERS[name]
    verdict = kto([change(part) for part in (0, 1)], tmp_path)
    assert (verdict.status, verdict.first_wrong, verdict.pattern) == (Status.FAIL, where, pattern), verdict.sentence


def test_labels_that_are_not_those_of_the_data_fail_whatever_the_loss_is(tmp_path: Path) -> None:
    """The rows are a preferred answer of the sample data, and the rejected answer of its next pair."""
    from checks.references.dataset import read_dataset

    def change(material: Material) -> Material:
        dataset = read_dataset(material.spec)
        rows = [dataset.cut(0), dataset.cut(3)]
        width = max(len(row) for row in rows)
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
        micro = material.batches[1][0]
        documents = tuple(replace(d, stop=len(row)) for d, row in zip(micro.documents, rows, strict=True))
        seen, counted = torch.zeros(2, width).double(), torch.zeros(2, width, dtype=torch.bool)
        assert micro.token_losses_seen is not None
        seen[:, :4], counted[:, :4] = micro.token_losses_seen, micro.counted
        given = {"label": torch.tensor([False, True])}
        flipped_rows = replace(
            micro, input_ids=ids, documents=documents, token_losses_seen=seen, counted=counted, given=given
        )
        return replace(material, dataset=dataset, batches={1: (flipped_rows, material.batches[1][1])})

    verdict = kto([flipped(0), value(1)], tmp_path, change=change)
    assert (verdict.status, verdict.pattern, verdict.first_wrong) == (Status.FAIL, Pattern.LOSS_MASK, "label")
    assert verdict.sentence.startswith("step 1: 2 of 2 answers in micro-batch 0 of step 1 have the other label, row 0")


def test_a_policy_that_has_gained_nothing_tells_nothing_of_ktos_beta(tmp_path: Path) -> None:
    still = ((0.0, 0.0), (0.0, 0.0))
    verdict = kto(kto_scalars(still, (0.0, 0.0)), tmp_path, gains=still, points=(0.0, 0.0))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.endswith("set steps to 2 or more, and a rate that moves the weights")


def test_kto_without_a_reference_point_says_why_it_is_not_judged(tmp_path: Path) -> None:
    def change(material: Material) -> Material:
        return replace(material, reference_points={}, no_answers={1: "the mismatched answers were not recorded"})

    verdict = kto(kto_scalars(), tmp_path, change=change)
    assert (verdict.status, verdict.sentence) == (
        Status.INCONCLUSIVE,
        "step 1: the mismatched answers were not recorded",
    )


# GRPO: two micro-batches of two completions, of four and two, three and four tokens.

COMPLETIONS = torch.tensor([[10, 11, 12, 13], [20, 21, 0, 0]])
MASKS = (torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]), torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]))
LENGTH = 6


def make_sampled(*, old: bool = True, shift: float = 0.08) -> tuple[MicroBatch, ...]:
    """Prompts of two tokens. The policy has moved from the one that sampled, and a little more from the reference."""
    micro_batches = []
    for index, mask in enumerate(MASKS):
        policy = -1.0 - draw(2, 4, seed=10 + index).abs()
        counted = torch.nn.functional.pad(mask.bool(), (1, 1))
        losses = torch.nn.functional.pad(-policy, (1, 1))
        given = {
            "completion_ids": COMPLETIONS,
            "completion_mask": mask,
            "advantages": torch.tensor([0.7, -0.7]) if index else torch.tensor([-1.2, 0.4]),
            "ref_per_token_logps": policy + draw(2, 4, seed=20 + index, scale=0.4),
        }
        if old:
            given["old_per_token_logps"] = policy + draw(2, 4, seed=30 + index, scale=shift)
        ids = torch.cat([torch.tensor([[1, 2], [1, 2]]), COMPLETIONS], dim=1)
        micro_batches.append(make_micro(ids, losses, counted, given=given))
    return tuple(micro_batches)


SAMPLED = make_sampled()
Change = Callable[[GroupRelative], GroupRelative]


def group_scalars(
    variant: str = "grpo", change: Change = lambda objective: objective, batches: Sequence[MicroBatch] = SAMPLED
) -> list[float]:
    samples = tuple(read_samples_of(micro, index=index) for index, micro in enumerate(batches))
    objective = change(GroupRelative(VARIANTS[variant], BETA, samples, LENGTH))
    return [float(objective([lay(micro, index)])) for index, micro in enumerate(batches)]


def grpo(
    scalars: Sequence[float], directory: Path, *, batches: Sequence[MicroBatch] = SAMPLED, **settings: Any
) -> Verdict:
    given = {"beta": BETA, "max_completion_length": LENGTH, **settings}
    return judge(make_rl_material(directory, objective="grpo", scalars={1: scalars}, batches={1: batches}, **given))


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_every_variants_loss_as_defined_passes(variant: str, tmp_path: Path) -> None:
    verdict = grpo(group_scalars(variant), tmp_path, grpo_loss=variant)
    assert verdict.status is Status.PASS, verdict.sentence
    assert verdict.sentence.startswith("4 completions of step 1 have the loss of the definition within ")
    assert {"beta", "advantages", "ratios"} == set(verdict.detection_limits)
    assert max(verdict.detection_limits.values()) < 0.05
    rows: Any = verdict.evidence["rows"]
    assert [row["tokens"] for row in rows] == [4, 2, 3, 4]


def with_variant(**changes: Any) -> Change:
    return lambda objective: replace(objective, variant=replace(objective.variant, **changes))


def reverse(objective: GroupRelative) -> GroupRelative:
    samples = tuple(replace(one, advantages=-one.advantages) for one in objective.samples)
    return replace(objective, samples=samples)


GRPO_OTHERS: dict[str, tuple[Change, str, Pattern]] = {
    "penalty reversed": (lambda o: replace(o, beta=-BETA), "KL penalty", Pattern.OBJECTIVE_SCALE),
    "no penalty": (lambda o: replace(o, beta=0.0), "KL penalty", Pattern.OBJECTIVE_SCALE),
    "sequence level": (with_variant(level="sequence"), "importance ratio", Pattern.OBJECTIVE_SCALE),
    "mean over tokens": (with_variant(reduction="token_mean"), "loss denominator", Pattern.SEQUENCE_LENGTH),
    "constant": (with_variant(reduction="constant"), "loss denominator", Pattern.SEQUENCE_LENGTH),
    "advantages reversed": (reverse, "advantages", Pattern.OBJECTIVE_SCALE),
}


@pytest.mark.parametrize("name", list(GRPO_OTHERS))
def test_another_objective_than_grpos_fails_and_is_named(name: str, tmp_path: Path) -> None:
    change, where, pattern = GRPO_OTHERS[name]
    verdict = grpo(group_scalars(change=change), tmp_path)
    assert (verdict.status, verdict.first_wrong, verdict.pattern) == (Status.FAIL, where, pattern), verdict.sentence


def test_other_estimates_of_the_penalty_are_named(tmp_path: Path) -> None:
    samples = [read_samples_of(micro, index=index) for index, micro in enumerate(SAMPLED)]

    def scalars(estimate: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
        found = []
        for index, (micro, one, plain) in enumerate(zip(SAMPLED, samples, no_penalty, strict=True)):
            assert micro.token_losses_seen is not None
            assert one.reference is not None
            gaps = one.reference + micro.token_losses_seen
            terms = estimate(gaps).masked_fill(~one.mask, 0.0).sum(dim=1) / one.mask.sum(dim=1)
            found.append(plain + BETA * float(terms.mean()) / 2)
            assert index in (0, 1)
        return found

    no_penalty = group_scalars(change=lambda objective: replace(objective, beta=0.0))
    estimates: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "log π − log π_ref": lambda gaps: -gaps,
        "½ (log π − log π_ref)²": lambda gaps: 0.5 * gaps.square(),
        "changed places": lambda gaps: torch.expm1(-gaps) + gaps,
    }
    for number, (said, estimate) in enumerate(estimates.items()):
        verdict = grpo(scalars(estimate), tmp_path / str(number))
        assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "KL penalty")
        assert said in verdict.sentence


def test_a_penalty_that_is_cut_off_far_from_the_reference_model_is_named(tmp_path: Path) -> None:
    far = tuple(
        replace(micro, given={**micro.given, "ref_per_token_logps": micro.given["ref_per_token_logps"] + shift})
        for micro, shift in zip(SAMPLED, (torch.tensor([0.0, 3.0, 0.0, 0.0]), torch.zeros(4)), strict=True)
    )
    samples = [read_samples_of(micro, index=index) for index, micro in enumerate(far)]
    cut = group_scalars(batches=far)
    one, losses = samples[0], far[0].token_losses_seen
    assert losses is not None
    assert one.reference is not None
    gaps = (one.reference + losses).masked_fill(~one.mask, 0.0)
    beyond = (torch.expm1(gaps) - gaps - 10.0).clamp(min=0.0)
    assert int((beyond > 0.0).sum()) == 2
    cut[0] -= BETA * float((beyond.sum(dim=1) / one.mask.sum(dim=1)).mean()) / 2
    verdict = grpo(cut, tmp_path, batches=far)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "KL penalty")
    assert "cut off at 10 nats" in verdict.sentence
    assert grpo(group_scalars(batches=far), tmp_path / "whole", batches=far).status is Status.PASS


def test_ratios_that_are_not_clipped_are_named(tmp_path: Path) -> None:
    far = make_sampled(shift=0.6)
    scalars = group_scalars(change=with_variant(low=1.0, high=1e9), batches=far)
    verdict = grpo(scalars, tmp_path, batches=far)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "clip")


def test_a_completion_mask_that_is_one_position_off_is_told(tmp_path: Path) -> None:
    moved = tuple(replace(micro, counted=torch.roll(micro.counted, 1, dims=1)) for micro in SAMPLED)
    verdict = grpo(group_scalars(), tmp_path, batches=moved)
    assert (verdict.status, verdict.pattern, verdict.first_wrong) == (Status.FAIL, Pattern.LOSS_MASK, "completion mask")
    assert "one after the completion's" in verdict.sentence


def test_a_reference_model_that_the_loss_never_met_fails(tmp_path: Path) -> None:
    without = [
        replace(micro, given={name: one for name, one in micro.given.items() if name != "ref_per_token_logps"})
        for micro in SAMPLED
    ]
    verdict = grpo(group_scalars(batches=without), tmp_path, batches=without)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "reference model")


def test_completions_that_are_trained_on_once_say_that_their_ratios_show_nothing(tmp_path: Path) -> None:
    fresh = make_sampled(old=False)
    verdict = grpo(group_scalars(batches=fresh), tmp_path, batches=fresh)
    assert verdict.status is Status.PASS
    assert verdict.sentence.endswith("so that neither their level nor the clip shows: set num_iterations=steps")


def test_a_step_without_any_advantage_is_inconclusive(tmp_path: Path) -> None:
    equal = [replace(m, given={**m.given, "advantages": torch.zeros(2)}) for m in make_sampled(old=False)]
    verdict = grpo(group_scalars(batches=equal), tmp_path, batches=equal)
    assert verdict.status is Status.INCONCLUSIVE
    assert "set num_generations higher, so that rewards differ in a group" in verdict.sentence


def test_completions_that_were_not_recorded_are_inconclusive(tmp_path: Path) -> None:
    blind = [replace(micro, given={}) for micro in SAMPLED]
    verdict = grpo([0.1, 0.1], tmp_path, batches=blind)
    assert (verdict.status, verdict.sentence) == (
        Status.INCONCLUSIVE,
        "step 1: micro-batch 0: completions or advantages were not recorded as the loss was given them",
    )


def test_supervised_fine_tuning_is_no_matter_of_this_check() -> None:
    assert needs_other_objective(make_spec()) == "the run is supervised fine-tuning (objective=sft)"
    assert needs_other_objective(replace(make_spec(), objective="grpo")) is None


def test_samples_are_laid_at_the_positions_that_predict_them() -> None:
    samples: Samples = read_samples_of(SAMPLED[0], index=0)
    assert samples.mask.tolist() == [[False, True, True, True, True, False], [False, True, True, False, False, False]]
    assert samples.old is not None
    assert samples.old[0, 1].item() == SAMPLED[0].given["old_per_token_logps"][0, 0].item()
    assert samples.old[0, 5].item() == 0.0
