"""The keys that sparse attention chose: replayed in every layout, judged by their scores, compared between two runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from plumbline_capture.modules import _INDEXER_CLASS, _ROUTER_CLASS

from checks.references.batch import Document, MicroBatch
from checks.references.hf import lift_casts, load_hf
from checks.references.selection import (
    SelectionReplay,
    choose_keys,
    hit_keys,
    judge_selections,
    lost_keys,
)
from checks.references.step import Layout, lay_out, run_step
from tests.references.checkpoints import draw_batch, save_checkpoint
from tests.references.test_routing import one_micro_batch

INDEXER = "model.layers.0.self_attn.indexer"
INF = math.inf


def replay(model: Any, micro: MicroBatch, keys: torch.Tensor, layout: Layout) -> tuple[Any, SelectionReplay]:
    held = SelectionReplay({INDEXER: (keys,), INDEXER.replace("0", "1"): (keys,)}, [micro])
    held.attach(model)
    with lift_casts():
        result = run_step(model, [micro], denominator=46, layout=layout, before_forward=held.begin)
    held.detach()
    return result, held


def test_recorded_keys_give_the_same_step_in_every_layout_and_another_than_the_indexer_s_own(tmp_path: Path) -> None:
    model = load_hf(save_checkpoint(tmp_path, "deepseek_v32"), dtype=torch.float64, attention="eager")
    plain = one_micro_batch(draw_batch())
    documents = (Document(0, 0, 10), Document(0, 10, 24), Document(1, 0, 24))
    packed = MicroBatch(**{**vars(plain), "documents": documents})
    score = torch.rand(2, 24, 24, generator=torch.Generator().manual_seed(3))
    seen = torch.zeros(2, 24, 24, dtype=torch.bool)
    for document in documents:
        span = slice(document.start, document.stop)
        seen[document.row, span, span] = True
    # As the indexer does: where fewer than 8 keys are to be seen, the others are filled up with what is masked anyway.
    keys = score.masked_fill(~seen.tril(), -INF).topk(8, dim=-1).indices
    alone, held = replay(model, packed, keys, "documents")
    for layout in ("right", "left", "merged"):
        other, scores = replay(model, packed, keys, layout)
        assert abs(other.loss - alone.loss) < 1e-12
        assert all(torch.allclose(other.gradients[n], g, rtol=0, atol=1e-11) for n, g in alone.gradients.items())
        a, b = scores.scores[INDEXER][0], held.scores[INDEXER][0]
        assert torch.equal(a.isfinite(), b.isfinite())
        assert torch.allclose(a[a.isfinite()], b[b.isfinite()], rtol=0, atol=1e-12)
    assert torch.equal(held.scores[INDEXER][0].isfinite(), seen.tril())
    with lift_casts():
        free = run_step(model, [packed], denominator=46)
    assert abs(free.loss - alone.loss) > 1e-4
    (error,) = judge_selections({INDEXER: (keys,)}, held.scores, [])
    assert (error.what, error.tokens) == ("keys", 48)
    assert error.differing > 10
    assert error.margin > 1e-3
    own = held.scores[INDEXER][0].topk(8, dim=-1).indices
    assert judge_selections({INDEXER: (own,)}, held.scores, [held.scores])[0].margin == 0.0


def test_keys_are_taken_from_the_document_and_filled_up_with_the_first() -> None:
    recorded = torch.tensor([[0, 3], [1, 0], [0, 2], [1, 7]])
    own = torch.full((4, 3), 9)
    # The last query looked at a key outside of its document: what the model itself chooses stands.
    assert choose_keys(recorded, own).tolist() == [[0, 0, 0], [0, 1, 0], [0, 2, 0], [9, 9, 9]]
    assert hit_keys(torch.tensor([[0, 2, -1, 5]]), 4).tolist() == [[True, False, True, False]]


def test_a_key_left_out_loses_by_its_score_and_a_hidden_one_by_infinity() -> None:
    row = [3.0, 2.0, 1.0, -INF]
    scores = torch.tensor([row, row, row, [0.5, -INF, -INF, -INF]])
    chosen = torch.tensor([[0, 1], [0, 2], [0, 3], [0, 3]])
    assert lost_keys(scores, chosen).tolist() == [0.0, 1.0, INF, 0.0]
    assert lost_keys(torch.empty(0, 4), torch.empty(0, 2, dtype=torch.int64)).tolist() == []


def test_the_floor_of_a_choice_of_keys_is_what_its_scores_move() -> None:
    exact = torch.tensor([[[1.0, -INF], [1.0, 2.0]], [[1.0, -INF], [math.nan, math.nan]]], dtype=torch.float64)
    moved = exact + torch.tensor([[[0.25], [0.5]], [[0.125], [9.0]]])
    keys = torch.tensor([[[0], [0]], [[0], [0]]])
    (error,) = judge_selections({INDEXER: (keys,)}, {INDEXER: [exact]}, [{INDEXER: [moved]}, {}])
    assert (error.tokens, error.differing, error.margin, error.floor) == (3, 1, 1.0, 0.5)
    assert judge_selections({INDEXER: (keys,)}, {}, []) == ()


def test_an_indexer_that_does_not_score_every_key_is_left_alone() -> None:
    micro = one_micro_batch(draw_batch(rows=1, length=4))
    held = SelectionReplay({INDEXER: (torch.zeros(1, 4, 1, dtype=torch.int64),)}, [micro])
    held.begin(lay_out([micro], "documents")[0][0])
    own = torch.ones(1, 4, 1, dtype=torch.int64)
    assert held._replay(INDEXER, own, None) is own
    assert held._replay(INDEXER, own, torch.zeros(1, 4, 2)) is own
    assert held.scores == {}
    replayed = held._replay(INDEXER, own, torch.zeros(1, 4, 4))
    assert replayed.tolist() == [[[0], [0], [0], [0]]]
    assert list(held.scores) == [INDEXER]


@pytest.mark.parametrize("family", ["deepseek_v32"])
def test_the_recorder_keeps_the_keys_of_each_indexer(family: str, tmp_path: Path) -> None:
    model = load_hf(save_checkpoint(tmp_path, family), dtype=torch.float32, attention="eager")
    named = {path: type(module).__name__ for path, module in model.named_modules()}
    indexers = [path for path, name in named.items() if _INDEXER_CLASS.fullmatch(name)]
    assert indexers == ["model.layers.0.self_attn.indexer", "model.layers.1.self_attn.indexer"]
    assert not any(_ROUTER_CLASS.fullmatch(named[path]) for path in indexers)
