"""What the model that a run began as says of the answers, and the step of an objective that compares with it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.models import resolve_model
from checks.probes import choices as probed_choices
from checks.references.batch import Document, MicroBatch
from checks.references.initial import (
    CannotCompare,
    check_pairs,
    chooses_alone,
    compute_initial_answers,
    refer_answers,
)
from checks.references.kept import IGNORED
from checks.references.loss import token_losses
from checks.references.model import ModelSource, State, build_model, choose_source
from checks.references.objectives.preference import answer_log_probs, pair_losses
from checks.references.step import Layout, run_step
from checks.references.variants import StepInputs
from checks.spec import RunSpec

LENGTHS = ((9, 12, 11, 7), (8, 8, 10, 13))
"""tokens of the rows of two micro-batches of two pairs; the first four of each are its prompt"""
PROMPT = 4
LAYOUTS: tuple[Layout, ...] = ("documents", "right", "left", "merged")


def make_batch(lengths: tuple[int, ...], seed: int) -> MicroBatch:
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.randint(5, 200, (len(lengths), width), generator=generator)
    counted = torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        counted[row, PROMPT - 1 : length - 1] = True
    documents = tuple(Document(row, 0, length) for row, length in enumerate(lengths))
    micro = MicroBatch(ids, ids, counted, None, None, documents, "data", None)
    return replace(micro, targets_seen=micro.targets)


BATCHES = tuple(make_batch(lengths, seed) for seed, lengths in enumerate(LENGTHS))


@pytest.fixture(scope="module")
def spec(_shared_cache: None) -> RunSpec:
    return RunSpec("trl", resolve_model("tiny:qwen3").path, Path("data"), objective="dpo", beta=0.2)


@pytest.fixture(scope="module")
def source(spec: RunSpec) -> ModelSource:
    return choose_source(spec.model)


def build(spec: RunSpec, source: ModelSource) -> Any:
    return build_model(source, spec, State({}, {}), dtype=torch.float64, attention="eager")


def test_answers_are_sums_of_their_tokens_in_every_layout(spec: RunSpec, source: ModelSource) -> None:
    model = build(spec, source)
    alone = run_step(model, BATCHES, denominator=1).token_losses
    for layout in LAYOUTS:
        found = refer_answers(model, BATCHES, layout=layout)
        assert set(found) == {(micro, row) for micro in range(2) for row in range(4)}
        for micro, losses in enumerate(alone):
            expected = answer_log_probs(losses, BATCHES[micro].counted)
            together = torch.stack([found[micro, row] for row in range(4)])
            assert torch.allclose(together, expected, rtol=0.0, atol=1e-9)
            assert not together.requires_grad


def test_the_noise_is_that_of_the_runs_own_precision(spec: RunSpec, source: ModelSource) -> None:
    answers = {
        precision: compute_initial_answers(
            replace(spec, precision=precision), source, BATCHES, choices={}, keys={}, step=3
        )
        for precision in ("float32", "bf16")
    }
    for one in answers.values():
        assert [part.shape for part in (*one.log_probs, *one.noise, *one.undecided)] == [(4,)] * 6
        assert not any(bool(rows.any()) for rows in one.undecided)
    sharp, coarse = (float(torch.cat(answers[name].noise).max()) for name in ("float32", "bf16"))
    assert 0.0 < sharp < 1e-3 < coarse < 5.0
    assert torch.equal(answers["float32"].log_probs[0], answers["bf16"].log_probs[0])


def move(name: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor + 0.02 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name)))


def test_the_step_has_the_loss_and_gradients_of_the_definition(spec: RunSpec, source: ModelSource) -> None:
    initial = build(spec, source)
    moved = {name: move(name, parameter.detach()).float() for name, parameter in initial.named_parameters()}
    inputs = StepInputs(
        spec=spec,
        source=source,
        state=State({}, moved),
        micro_batches=BATCHES,
        trainable=frozenset(moved),
        config={},
        choices={},
    )
    model = inputs.build(dtype=torch.float64, attention="eager")
    result = inputs.compute(model, exact=True, initial=inputs.build_initial(dtype=torch.float64, attention="eager"))
    found = {name: gradient.clone() for name, gradient in result.result.gradients.items()}
    model.zero_grad()
    losses = []
    for micro in BATCHES:
        gains = []
        for one, grad in ((model, True), (initial, False)):
            with torch.set_grad_enabled(grad):
                out = one(input_ids=micro.input_ids, attention_mask=None, position_ids=None)
                logits = out if isinstance(out, torch.Tensor) else out.logits
                gains.append(-token_losses(logits, micro.targets).sum(dim=1))
        chosen, rejected = (gains[0] - gains[1]).chunk(2)
        losses.append(pair_losses(chosen - rejected, beta=0.2))
    loss = torch.cat(losses).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    assert abs(loss.item() - math.log(2.0)) > 0.01
    assert result.result.loss == pytest.approx(loss.item(), abs=1e-12)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(found[name], parameter.grad, rtol=1e-7, atol=1e-12), name


def test_a_model_of_one_objective_has_no_initial_one(spec: RunSpec, source: ModelSource) -> None:
    inputs = StepInputs(replace(spec, objective="sft"), source, State({}, {}), BATCHES, frozenset(), {}, {})
    assert inputs.build_initial(dtype=torch.float64, attention="eager") is None


def test_an_initial_model_chooses_its_experts_where_they_need_not_be_the_runs(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: Any = {"model.layers.0.mlp.gate": (torch.zeros(1),)}
    assert not chooses_alone(spec, choices=chosen, keys={}, step=1)
    assert chooses_alone(spec, choices=chosen, keys={}, step=2)
    assert chooses_alone(replace(spec, lora=True), choices=chosen, keys={}, step=1)
    assert not chooses_alone(replace(spec, lora=True), choices={}, keys={}, step=2)
    routed = replace(spec, model=resolve_model("tiny:qwen3_moe").path)
    source = choose_source(routed.model)
    answers = compute_initial_answers(routed, source, BATCHES, choices=chosen, keys={}, step=2)
    assert sum(int(rows.sum()) for rows in answers.undecided) <= 1
    assert float(torch.cat(answers.noise).max()) < 1e-3
    monkeypatch.setattr(probed_choices, "SAFETY", 1e12)
    open_ = compute_initial_answers(routed, source, BATCHES, choices=chosen, keys={}, step=2)
    assert all(bool(rows.all()) for rows in open_.undecided)


@pytest.mark.parametrize(
    ("micro", "sentence"),
    [
        (make_batch((9, 12, 11), 3), "micro-batch 1 of step 4 has 3 rows, no pairs"),
        (
            replace(BATCHES[0], documents=(*BATCHES[0].documents[:3], Document(2, 5, 9))),
            "the rows of micro-batch 1 of step 4 are not one document each",
        ),
        (
            replace(BATCHES[0], counted=BATCHES[0].counted & (torch.arange(4) != 2)[:, None]),
            "a row of micro-batch 1 of step 4 counts no token of its answer",
        ),
    ],
)
def test_rows_that_are_no_pairs_cannot_be_compared(micro: MicroBatch, sentence: str) -> None:
    assert int((BATCHES[0].targets != IGNORED).sum()) == sum(length - PROMPT for length in LENGTHS[0])
    with pytest.raises(CannotCompare) as caught:
        check_pairs((BATCHES[0], micro), step=4)
    assert str(caught.value) == sentence
