"""step.rl_loss on reward models: −log σ of the margin and a centring term, of the scores that the run recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from checks.architecture import step_rl_loss
from checks.architecture.step_loss import read_targets
from checks.captures.capture import open_capture
from checks.models import resolve_model
from checks.references.batch import Document, MicroBatch, UnreadableBatch, read_step
from checks.references.dataset import read_dataset
from checks.references.model import SCORE, State, build_model, choose_source
from checks.references.objectives import Computed, RewardMargin, score_losses
from checks.references.objectives.reward import reward_losses
from checks.verdict import Pattern, Status, Verdict
from tests.checks.data_runs import make_spec
from tests.checks.rl_runs import draw, make_rl_material, record_step

BETA = 0.1
ROWS, WIDTH = 4, 6
LAST = (5, 2, 3, 4)
"""where each row's last token stands"""
SCORES = tuple(draw(ROWS, seed=seed) for seed in (1, 2))


def make_scored(scores: torch.Tensor) -> MicroBatch:
    at = torch.arange(WIDTH) == torch.tensor(LAST)[:, None]
    losses = torch.where(at, -scores[:, None], 0.0)
    documents = tuple(Document(row, 0, last + 1) for row, last in enumerate(LAST))
    ids = torch.arange(ROWS * WIDTH).view(ROWS, WIDTH)
    seen = torch.where(at, 0, -100)
    return MicroBatch(ids, seen, at, losses, None, documents, "mask", None, scored=True)


BATCHES = tuple(make_scored(scores) for scores in SCORES)


def as_trl_writes_it(scores: torch.Tensor, *, centring: float = BETA) -> torch.Tensor:
    chosen, rejected = torch.chunk(scores, 2)
    loss = -torch.nn.functional.logsigmoid(chosen - rejected).mean()
    return loss + centring * torch.mean((chosen + rejected) ** 2)


def judge(scalars: Sequence[float], directory: Path, **more: Any) -> Verdict:
    given = {"batches": {1: BATCHES}, **more}
    return step_rl_loss.judge(make_rl_material(directory, objective="reward", scalars={1: scalars}, beta=BETA, **given))


def halves(scalar: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
    return [float(scalar(scores)) / 2 for scores in SCORES]


def test_the_loss_of_the_definition_passes_and_says_what_would_show(tmp_path: Path) -> None:
    verdict = judge(halves(as_trl_writes_it), tmp_path)
    assert verdict.status is Status.PASS
    assert verdict.sentence.startswith("4 pairs of step 1 have the loss of the definition within ")
    chosen, rejected = zip(*(scores.chunk(2) for scores in SCORES), strict=True)
    margins = [first - second for first, second in zip(chosen, rejected, strict=True)]
    slope = sum(abs(float((each * torch.sigmoid(-each)).mean())) / 2 for each in margins)
    allowed = sum(measurement.threshold for measurement in verdict.measurements)
    assert verdict.detection_limits["margins"] == pytest.approx(allowed / slope, rel=1e-9)
    assert verdict.detection_limits["margins"] < 1e-4
    rows: Any = verdict.evidence["rows"]
    assert rows[0]["score, chosen"] == float(SCORES[0][0])
    assert rows[0]["loss"] == pytest.approx(float(reward_losses(SCORES[0][0], SCORES[0][2], centring=BETA)))


OTHERS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str, Pattern]] = {
    "swapped": (lambda s: as_trl_writes_it(s.roll(2)), "pairs", Pattern.LOSS_MASK),
    "not centred": (lambda s: as_trl_writes_it(s, centring=0.0), "centring", Pattern.OBJECTIVE_SCALE),
    "mean centred": (lambda s: as_trl_writes_it(s, centring=BETA / 4), "centring", Pattern.OBJECTIVE_SCALE),
    "margin squared": (
        lambda s: as_trl_writes_it(s, centring=0.0) + BETA * (s[:2] - s[2:]).square().mean(),
        "centring",
        Pattern.OBJECTIVE_SCALE,
    ),
    "chosen alone": (
        lambda s: as_trl_writes_it(torch.cat([s[:2], 0 * s[2:]])),
        "pairs",
        Pattern.OBJECTIVE_SCALE,
    ),
    "not divided": (lambda s: 2 * as_trl_writes_it(s), "loss denominator", Pattern.OBJECTIVE_SCALE),
    "divided twice": (lambda s: as_trl_writes_it(s) / 2, "loss denominator", Pattern.OBJECTIVE_SCALE),
    "something else": (lambda s: as_trl_writes_it(1.01 * s), "loss", Pattern.OBJECTIVE_SCALE),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_loss_fails_and_is_named(name: str, tmp_path: Path) -> None:
    scalar, where, pattern = OTHERS[name]
    verdict = judge(halves(scalar), tmp_path)
    assert (verdict.status, verdict.first_wrong, verdict.pattern) == (Status.FAIL, where, pattern)


def test_without_scores_or_with_margins_of_nothing_it_is_inconclusive(tmp_path: Path) -> None:
    unscored = tuple(replace(micro, scored=False) for micro in BATCHES)
    verdict = judge(halves(as_trl_writes_it), tmp_path / "a", batches={1: unscored})
    assert verdict.status is Status.INCONCLUSIVE
    assert "micro-batch 0: the scores of its rows or the scalar were not recorded" in verdict.sentence
    alike = tuple(make_scored(torch.ones(ROWS, dtype=torch.float64)) for _ in SCORES)
    scalar = float(as_trl_writes_it(torch.ones(ROWS, dtype=torch.float64))) / 2
    verdict = judge([scalar] * 2, tmp_path / "b", batches={1: alike})
    assert verdict.status is Status.INCONCLUSIVE
    assert "an error of the margins would be within the noise" in verdict.sentence


def test_rejected_answers_in_the_place_of_preferred_ones_fail_by_the_data(tmp_path: Path) -> None:
    spec = replace(make_spec("preferences_sample"), framework="trl", objective="reward")
    dataset = read_dataset(spec, now=None)
    rows = [dataset.cut(index) for index in (0, 2, 1, 3)]  # preferred answers have even numbers
    assert len(set(rows)) == ROWS

    def place(order: Sequence[int]) -> Verdict:
        chosen = [rows[index] for index in order]
        width = max(map(len, chosen))
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in chosen])
        at = torch.arange(width) == torch.tensor([len(row) - 1 for row in chosen])[:, None]
        micro = replace(
            BATCHES[0],
            input_ids=ids,
            counted=at,
            token_losses_seen=torch.where(at, -SCORES[0][:, None], 0.0),
            documents=tuple(Document(row, 0, len(each)) for row, each in enumerate(chosen)),
        )
        directory = tmp_path / "".join(map(str, order))
        material = make_rl_material(
            directory, objective="reward", scalars={1: [float(as_trl_writes_it(SCORES[0]))]}, batches={1: (micro,)}
        )
        return step_rl_loss.judge(replace(material, dataset=dataset))

    assert place((0, 1, 2, 3)).status is Status.PASS
    verdict = place((2, 1, 0, 3))
    assert (verdict.status, verdict.first_wrong, verdict.pattern) == (Status.FAIL, "pairs", Pattern.LOSS_MASK)
    assert "2 of 4 rows in micro-batch 0 of step 1 stand on the other side" in verdict.sentence


def test_a_score_has_no_next_token_to_be_beside() -> None:
    assert read_targets(BATCHES) is None
    assert int((BATCHES[0].targets != -100).sum()) == ROWS


def test_the_objective_adds_up_over_however_the_rows_are_computed() -> None:
    objective = RewardMargin(BETA, (ROWS, ROWS))

    def lay(index: int, rows: Sequence[int]) -> Computed:
        scores = torch.stack([SCORES[index][row] for row in rows])
        positions = torch.where(torch.arange(WIDTH) == 2, scores[:, None], 7.0)[..., None]
        targets = torch.where(torch.arange(WIDTH) == 2, 0, -100).expand(len(rows), WIDTH)
        return Computed(score_losses(positions, targets), tuple((index, row) for row in rows))

    due = sum(float(as_trl_writes_it(scores)) for scores in SCORES) / 2
    apart = [objective([lay(index, (row,)) for row in (3, 0, 1, 2)]) for index in range(2)]
    assert float(sum(apart)) == pytest.approx(due, rel=1e-14)
    assert float(objective([lay(1, range(ROWS)), lay(0, range(ROWS))])) == pytest.approx(due, rel=1e-14)


@pytest.mark.usefixtures("_shared_cache")
def test_the_reference_scores_as_transformers_class_does_and_names_its_head_alike() -> None:
    from transformers import AutoModelForSequenceClassification

    spec = replace(make_spec("preferences_sample"), model=resolve_model("tiny:qwen3").path, objective="reward")
    theirs = AutoModelForSequenceClassification.from_pretrained(spec.model, num_labels=1, dtype=torch.float64).eval()
    state = State({}, {SCORE: theirs.score.weight.detach()})
    ours = build_model(choose_source(spec.model), spec, state, dtype=torch.float64, attention="eager")
    assert {name for name, _ in ours.named_parameters()} == {name for name, _ in theirs.named_parameters()}
    ids = torch.arange(3, 13)[None]
    with torch.no_grad():
        scores = ours(input_ids=ids)
        assert scores.shape == (1, 10, 1)
        assert float(scores[0, -1, 0]) == pytest.approx(theirs_of(theirs, ids), abs=1e-7)


def theirs_of(model: torch.nn.Module, ids: torch.Tensor) -> float:
    """transformers takes its norms through float32 whatever the model's dtype, so that it agrees to 1e-7."""
    return float(model(input_ids=ids).logits[0, 0])


def test_recorded_scores_are_laid_at_the_last_token_of_each_row(tmp_path: Path) -> None:
    ids = torch.tensor([[5, 6, 7, 0], [5, 6, 0, 0]])
    tensors = {"ids": ids, "mask": (ids != 0).long(), "score": torch.tensor([0.5, -2.0])}

    def write(name: str, scores: torch.Tensor) -> MicroBatch:
        (tmp_path / name).mkdir()
        save_file({**tensors, "score": scores}, tmp_path / name / "step.safetensors")
        entries = [
            {"kind": kind, "name": each, "representations": {"full": key}, "global_shape": list(tensors[key].shape)}
            | {"step": 1, "rank": 0, "micro_batch": 0, "field": None, "file": "step.safetensors", "dtype": "x"}
            | {"stats": {"norm": 0.0, "nonfinite": 0}}
            for kind, each, key in (
                ("batch", "input_ids", "ids"),
                ("batch", "attention_mask", "mask"),
                ("score", "score", "score"),
            )
        ]
        step = record_step(1, (0.5,))
        ranks = [{"rank": 0, "local_rank": 0, "pid": 1, "steps": [step], "rows": []}]
        size = (tmp_path / name / "step.safetensors").stat().st_size
        manifest = {"format": "plumbline-capture", "version": 1, "ranks": ranks, "tensors": entries, "missing": []}
        manifest["files"] = [{"path": "step.safetensors", "bytes": size}]
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest))
        return read_step(open_capture(tmp_path / name), 1, corpus=None)[0]

    micro = write("whole", tensors["score"])
    assert micro.scored
    assert micro.counted.tolist() == [[False, False, True, False], [False, True, False, False]]
    assert micro.token_losses_seen is not None
    assert micro.token_losses_seen.tolist() == [[0.0, 0.0, -0.5, 0.0], [0.0, 2.0, 0.0, 0.0]]
    with pytest.raises(UnreadableBatch, match="scores of the rows were not recorded whole"):
        write("torn", torch.zeros(3))
