"""step.rl_loss: losses of preferences that are another objective's, each told by its name; and its own definition."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.architecture import step_rl_loss
from checks.diagnosis.preference_loss import Answers, difference, expect, read_preference_loss
from checks.material import Material
from checks.references.batch import Document, MicroBatch
from checks.references.initial import InitialAnswers
from checks.references.objectives import Computed, PreferenceMargin, TokenMean
from checks.references.objectives.preference import answer_log_probs, pair_losses
from checks.spec import RunSpec
from checks.verdict import Pattern, Status, Verdict
from tests.checks.data_runs import make_material, make_spec

BETA = 0.1
ALLOWED = 1e-6


def log_sigmoid(value: float) -> float:
    return -math.log1p(math.exp(-value))


def test_the_loss_is_the_papers_equation_7() -> None:
    margins = torch.tensor([0.0, 3.0, -2.0], dtype=torch.float64)
    expected = [-log_sigmoid(0.5 * margin) for margin in (0.0, 3.0, -2.0)]
    assert pair_losses(margins, beta=0.5).tolist() == pytest.approx(expected, abs=1e-15)
    assert pair_losses(margins[:1], beta=0.5).item() == pytest.approx(math.log(2.0), abs=1e-15)


def test_an_answers_log_probability_is_the_sum_over_its_counted_tokens() -> None:
    losses = torch.tensor([[9.0, 1.0, 2.0], [9.0, 9.0, 4.0]])
    counted = torch.tensor([[False, True, True], [False, False, True]])
    assert answer_log_probs(losses, counted).tolist() == [-3.0, -4.0]


def test_the_objective_averages_over_the_pairs_of_all_micro_batches() -> None:
    """Two micro-batches of one pair, in two forwards of the first and one of the second, and all merged into one."""
    policy = {(0, 0): -3.0, (0, 1): -5.0, (1, 0): -7.0, (1, 1): -2.0}
    initial = {(0, 0): -4.0, (0, 1): -4.5, (1, 0): -6.0, (1, 1): -2.5}
    reference = {place: torch.tensor(value, dtype=torch.float64) for place, value in initial.items()}
    objective = PreferenceMargin(0.2, reference, (2, 2))
    rows = {place: torch.tensor([-value - 1.0, 1.0], dtype=torch.float64) for place, value in policy.items()}
    first = objective([Computed(rows[0, 0][None], ((0, 0),)), Computed(rows[0, 1][None], ((0, 1),))])
    second = objective([Computed(torch.stack([rows[1, 1], rows[1, 0]]), ((1, 1), (1, 0)))])
    margins = [(-3.0 + 4.0) - (-5.0 + 4.5), (-7.0 + 6.0) - (-2.0 + 2.5)]
    assert first.item() == pytest.approx(-log_sigmoid(0.2 * margins[0]) / 2.0, abs=1e-15)
    assert second.item() == pytest.approx(-log_sigmoid(0.2 * margins[1]) / 2.0, abs=1e-15)
    merged = objective([Computed(torch.stack(list(rows.values())), tuple(rows))])
    assert merged.item() == pytest.approx(first.item() + second.item(), abs=1e-15)


def test_the_gradient_of_the_objective_is_the_papers() -> None:
    """∂L/∂log π(y_w) = −β σ(−β margin) / n, and the reverse for y_l: section 4 of the paper."""
    losses = torch.tensor([[1.0, 2.0], [4.0, 1.0]], dtype=torch.float64, requires_grad=True)
    reference = {(0, row): torch.tensor(-2.0, dtype=torch.float64) for row in range(2)}
    PreferenceMargin(0.3, reference, (2,))([Computed(losses, ((0, 0), (0, 1)))]).backward()  # type: ignore[no-untyped-call]
    weight = 0.3 / (1.0 + math.exp(0.3 * 2.0))
    assert losses.grad is not None
    assert losses.grad.tolist() == [pytest.approx([weight] * 2), pytest.approx([-weight] * 2)]


def test_the_mean_over_tokens_adds_the_forwards_of_a_group() -> None:
    group = [Computed(torch.tensor([[1.0, 2.0]]), ((0, 0),)), Computed(torch.tensor([[3.0, 0.0]]), ((0, 1),))]
    assert TokenMean(4)(group).item() == 1.5


def draw(seed: int) -> Answers:
    generator = torch.Generator().manual_seed(seed)
    reference = -20.0 - 40.0 * torch.rand(4, generator=generator, dtype=torch.float64)
    policy = reference + 6.0 * torch.randn(4, generator=generator, dtype=torch.float64)
    tokens = torch.randint(5, 30, (4,), generator=generator).double()
    return Answers(policy, reference, tokens, 0.0, ALLOWED)


STEP = (draw(1), draw(2))
PAIRS = 4

OTHERS: dict[str, tuple[Callable[[Answers], float], str, Pattern]] = {
    "its own reference": (lambda one: 2 * math.log(2.0) / PAIRS, "reference model", Pattern.STATE_TRANSFER),
    "no reference": (
        lambda one: float(pair_losses(difference(one.policy), beta=BETA).sum()) / PAIRS,
        "reference model",
        Pattern.OBJECTIVE_SCALE,
    ),
    "wrong sign": (
        lambda one: float(pair_losses(-one.margins, beta=BETA).sum()) / PAIRS,
        "pairs",
        Pattern.OBJECTIVE_SCALE,
    ),
    "means over tokens": (
        lambda one: float(pair_losses(difference((one.policy - one.reference) / one.tokens), beta=BETA).sum()) / PAIRS,
        "answer log-probabilities",
        Pattern.SEQUENCE_LENGTH,
    ),
    "not divided": (
        lambda one: 2.0 * expect(one, beta=BETA, pairs=PAIRS),
        "loss denominator",
        Pattern.OBJECTIVE_SCALE,
    ),
    "added up": (lambda one: 4.0 * expect(one, beta=BETA, pairs=PAIRS), "loss denominator", Pattern.OBJECTIVE_SCALE),
    "beta doubled": (lambda one: expect(one, beta=2.0 * BETA, pairs=PAIRS), "beta", Pattern.OBJECTIVE_SCALE),
    "a tenth of beta": (lambda one: expect(one, beta=0.1 * BETA, pairs=PAIRS), "beta", Pattern.OBJECTIVE_SCALE),
    "smoothed": (
        lambda one: (
            0.9 * expect(one, beta=BETA, pairs=PAIRS) + 0.1 * float(pair_losses(-one.margins, beta=BETA).sum()) / PAIRS
        ),
        "label smoothing",
        Pattern.OBJECTIVE_SCALE,
    ),
}


def read(change: Callable[[Answers], float], step: Sequence[Answers] = STEP) -> Any:
    found = tuple(replace(one, found=change(one)) for one in step)
    return read_preference_loss(found, beta=BETA, pairs=PAIRS, micro_batches=2)


@pytest.mark.parametrize("name", list(OTHERS))
def test_another_objective_is_told_by_its_name(name: str) -> None:
    change, where, pattern = OTHERS[name]
    signature = read(change)
    assert (signature.where, signature.pattern) == (where, pattern), signature.sentence
    if "beta" in name:
        assert signature.sentence.startswith(f"beta is {0.2 if 'doubled' in name else 0.01} in the loss, asked 0.1: ")
    if name == "smoothed":
        assert "0.1 of each pair's loss" in signature.sentence


def test_a_loss_of_no_known_objective_has_no_name() -> None:
    assert read(lambda one: 1.3 * expect(one, beta=BETA, pairs=PAIRS) + 0.01) is None


def test_one_scalar_alone_fits_any_beta_and_names_none() -> None:
    assert read(lambda one: expect(one, beta=2.0 * BETA, pairs=PAIRS), STEP[:1]) is None


Scalars = Callable[[list[torch.Tensor]], list[float]]


def make_step(
    directory: Path, margins: Sequence[Sequence[float]], scalars: Scalars | None = None, **settings: Any
) -> Material:
    """One captured step of micro-batches whose pairs have these margins, and the scalars that were back-propagated.

    Rows have two counted tokens of one nat each, less the margin of a preferred one.
    """
    spec: RunSpec = replace(make_spec("preferences_sample"), framework="trl", objective="dpo", **settings)
    gains = [torch.tensor(part, dtype=torch.float64) for part in margins]
    pairs = sum(part.numel() for part in gains)
    found = scalars(gains) if scalars else [float(pair_losses(g, beta=spec.beta).sum()) / pairs for g in gains]

    def record(manifest: dict[str, Any]) -> None:
        (step,) = manifest["ranks"][0]["steps"]
        step["micro_batches"] = [
            {"index": index, "backward": value, "backward_dtype": "torch.float32"} for index, value in enumerate(found)
        ]

    batch = {"input_ids": torch.ones(2, 3, dtype=torch.int64)}
    material = make_material(spec, [batch], directory, edit=record)
    micro_batches = []
    for part in gains:
        rows = 2 * part.numel()
        counted = torch.tensor([[False, True, True]]).expand(rows, 3)
        losses = torch.tensor([[0.0, 1.0, 1.0]], dtype=torch.float64).repeat(rows, 1)
        losses[: part.numel(), 2] -= part
        ids = torch.ones(rows, 3, dtype=torch.int64)
        documents = tuple(Document(row, 0, 3) for row in range(rows))
        micro_batches.append(MicroBatch(ids, ids, counted, losses, None, documents, "data", None))
    sizes = [2 * part.numel() for part in gains]
    answers = InitialAnswers(
        log_probs=tuple(torch.full((size,), -2.0, dtype=torch.float64) for size in sizes),
        noise=tuple(torch.full((size,), 1e-6, dtype=torch.float64) for size in sizes),
        undecided=tuple(torch.zeros(size, dtype=torch.bool) for size in sizes),
    )
    return replace(material, batches={1: tuple(micro_batches)}, answers={1: answers})


def judge(material: Material) -> Verdict:
    return step_rl_loss.judge(material)


MARGINS = ((1.5, -0.5), (2.0, 0.25))


def test_losses_as_defined_pass_with_the_smallest_error_of_beta_that_would_show(tmp_path: Path) -> None:
    verdict = judge(make_step(tmp_path, MARGINS))
    assert verdict.status is Status.PASS
    # Of each log-probability: 1e-6 of noise, and two roundings of its own and its partner's size, in float32.
    logs = [2.0 - margin for part in MARGINS for margin in part] + [2.0] * 4
    noise = sum(1e-6 + 2.0 * 2.0**-24 * (abs(value) + 2.0) for value in logs)
    losses = [max(-log_sigmoid(0.1 * margin), math.log(2.0)) for part in MARGINS for margin in part]
    allowed = 8.0 * (0.1 * noise + 2.0 * 2.0**-24 * sum(losses)) / 4.0
    slope = sum(m / (1.0 + math.exp(0.1 * m)) for part in MARGINS for m in part) / 4.0
    assert verdict.detection_limits["beta"] == pytest.approx(allowed / (0.1 * slope), rel=1e-9)
    assert sum(m.threshold for m in verdict.measurements) == pytest.approx(allowed, rel=1e-9)
    assert [m.name for m in verdict.measurements] == [f"loss of step 1, micro-batch {index}" for index in (0, 1)]
    assert verdict.sentence.startswith("4 pairs of step 1 have the loss of the definition within ")
    pairs: Any = verdict.evidence["pairs"]
    assert [(row["micro-batch"], row["pair"]) for row in pairs] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [row["margin"] for row in pairs] == pytest.approx([1.5, -0.5, 2.0, 0.25])


def test_a_loss_just_beyond_what_is_allowed_fails_and_one_just_within_passes(tmp_path: Path) -> None:
    allowed = judge(make_step(tmp_path / _made(tmp_path, "plain"), MARGINS)).measurements[0].threshold

    def off_by(share: float) -> Scalars:
        return lambda gains: [float(pair_losses(g, beta=0.1).sum()) / 4.0 + share * allowed for g in gains]

    within = make_step(tmp_path / _made(tmp_path, "within"), MARGINS, off_by(0.9))
    beyond = make_step(tmp_path / _made(tmp_path, "beyond"), MARGINS, off_by(1.1))
    assert judge(within).status is Status.PASS
    assert judge(beyond).status is Status.FAIL


def _made(directory: Path, name: str) -> str:
    (directory / name).mkdir()
    return name


def test_another_beta_fails_and_is_named(tmp_path: Path) -> None:
    verdict = judge(
        make_step(tmp_path, MARGINS, lambda gains: [float(pair_losses(g, beta=0.2).sum()) / 4.0 for g in gains])
    )
    assert (verdict.status, verdict.pattern, verdict.first_wrong) == (Status.FAIL, Pattern.OBJECTIVE_SCALE, "beta")
    assert verdict.sentence == "step 1: beta is 0.2 in the loss, asked 0.1: 2 times"


def test_an_unknown_loss_fails_with_both_numbers(tmp_path: Path) -> None:
    verdict = judge(make_step(tmp_path, MARGINS, lambda gains: [0.5, 0.1]))
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "loss")
    assert "the loss of micro-batch 1 is 0.1 nats, and the definition gives 0.3" in verdict.sentence


def test_a_policy_that_has_gained_nothing_tells_neither_beta_nor_its_reference(tmp_path: Path) -> None:
    verdict = judge(make_step(tmp_path, ((0.0, 0.0), (0.0, 0.0))))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.endswith("set steps to 2 or more, and a rate that moves the weights")
    assert all(measurement.holds for measurement in verdict.measurements)


def test_a_step_that_would_hide_a_quarter_of_beta_says_nothing(tmp_path: Path) -> None:
    limit = judge(make_step(tmp_path / _made(tmp_path, "one"), ((1.0, 1.0), (1.0, 1.0)))).detection_limits["beta"]
    for share, status in ((0.22, Status.PASS), (0.28, Status.INCONCLUSIVE)):
        margin = limit / share  # what would show grows in step with the margin
        verdict = judge(make_step(tmp_path / _made(tmp_path, str(share)), ((margin, margin), (margin, margin))))
        assert verdict.status is status
        assert verdict.detection_limits["beta"] == pytest.approx(share, rel=0.06)


def test_micro_batches_with_an_undecided_choice_are_left_out(tmp_path: Path) -> None:
    material = make_step(tmp_path, MARGINS, lambda gains: [float(pair_losses(gains[0], beta=0.1).sum()) / 4.0, 9.0])
    undecided = (torch.zeros(4, dtype=torch.bool), torch.tensor([False, True, False, False]))
    answers = replace(material.answers[1], undecided=undecided)
    verdict = judge(replace(material, answers={1: answers}))
    assert verdict.status is Status.PASS
    assert "1 micro-batches are left out" in verdict.sentence
    none = replace(answers, undecided=(undecided[1], undecided[1]))
    assert judge(replace(material, answers={1: none})).sentence == (
        "step 1: every micro-batch holds a token whose expert the run's precision does not decide"
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: replace(m, answers={}, no_answers={1: "it has no reference"}), "step 1: it has no reference"),
        (lambda m: replace(m, run=replace(m.run, capture=None)), "the run left no capture to judge; see run.completes"),
        (
            lambda m: replace(m, batches={1: tuple(replace(b, token_losses_seen=None) for b in m.batches[1])}),
            "step 1: micro-batch 0: the per-token losses or the scalar were not recorded",
        ),
    ],
)
def test_what_cannot_be_compared_is_inconclusive_with_the_reason(
    change: Callable[[Material], Material], sentence: str, tmp_path: Path
) -> None:
    verdict = judge(change(make_step(tmp_path, MARGINS)))
    assert (verdict.status, verdict.sentence) == (Status.INCONCLUSIVE, sentence)


def test_micro_batches_of_unequal_size_are_not_judged(tmp_path: Path) -> None:
    verdict = judge(make_step(tmp_path, ((1.5, -0.5), (2.0,))))
    assert verdict.status is Status.INCONCLUSIVE
    assert (
        verdict.sentence == "step 1: micro-batches hold 2, 1 pairs; a mean of their means is not the mean over the step"
    )
