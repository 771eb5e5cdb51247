"""The numbers that the recorder computes by itself."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plumbline_capture.backward import clip_factor
from plumbline_capture.calls import bind_arguments, first_floating, first_output, rows_and_positions, to_float
from plumbline_capture.loss import defer_logits, settle_losses, token_losses
from plumbline_capture.represent import describe, norm_of
from plumbline_capture.settings import Settings
from plumbline_capture.state import MicroBatch, Recorder
from torch.nn import functional

from tests.capture.plain_lm import PlainLM


@settings(deadline=None, max_examples=20)
@given(rows=st.integers(1, 300), classes=st.integers(2, 900), seed=st.integers(0, 1000))
def test_token_losses_are_minus_log_p_in_float64_and_zero_where_ignored(rows: int, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, classes, generator=generator) * 20).to(torch.bfloat16)
    target = torch.randint(0, classes, (rows,), generator=generator)
    target[::3] = -100
    expected = functional.cross_entropy(logits.double(), target, reduction="none")
    torch.testing.assert_close(token_losses(logits, target), expected, rtol=1e-12, atol=1e-12)


def test_statistics_are_those_of_the_finite_part() -> None:
    values = torch.tensor([3.0, -4.0, math.nan, math.inf, 0.0])
    assert describe(values) == {
        "count": 5,
        "mean": pytest.approx(-1 / 3),
        "rms": pytest.approx(math.sqrt(25 / 3)),
        "norm": 5.0,
        "min": -4.0,
        "max": 3.0,
        "nonfinite": 2,
    }
    nothing = {"mean": None, "rms": None, "norm": None, "min": None, "max": None}
    assert describe(torch.full((2,), math.nan)) == {"count": 2, "nonfinite": 2, **nothing}
    assert describe(torch.zeros(0)) == {"count": 0, "nonfinite": 0, **nothing}


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64])
def test_statistics_of_many_blocks_are_those_of_the_whole(dtype: torch.dtype) -> None:
    values = torch.randint(0, 2, (3, 70_001), generator=torch.Generator().manual_seed(0)).to(dtype)
    wide = values.double()
    stats = describe(values)
    assert stats["mean"] == pytest.approx(float(wide.mean()), rel=1e-12)
    assert stats["norm"] == pytest.approx(float(wide.norm()), rel=1e-12)
    assert stats["rms"] == pytest.approx(float(wide.square().mean().sqrt()), rel=1e-12)
    assert (stats["min"], stats["max"]) == (0.0, 1.0)
    assert norm_of(values) == pytest.approx(stats["norm"], rel=1e-15)


@pytest.mark.parametrize(
    ("max_norm", "total_norm", "factor"),
    [(1.0, 4.0, 1 / (4 + 1e-6)), (1.0, 0.5, 1.0), (0.1, 0.1, 0.1 / (0.1 + 1e-6)), (math.inf, 3.0, 1.0)],
)
def test_the_clip_factor_is_torchs(max_norm: float, total_norm: float, factor: float) -> None:
    assert clip_factor(max_norm=max_norm, total_norm=total_norm) == factor


def test_arguments_take_names_from_the_signature_and_keywords_keep_theirs() -> None:
    tokens, mask, extra = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3), torch.ones(1)
    bound = bind_arguments(PlainLM(), (tokens, mask, extra), {"labels": tokens})
    assert list(bound) == ["tokens", "mask", "argument_2", "labels"]
    assert bound["mask"] is mask
    assert rows_and_positions(bound) == (2, 3)
    assert rows_and_positions({"mask": mask}) is None


def test_the_hidden_states_of_a_call_are_told_from_its_other_arguments() -> None:
    hidden, ids = torch.ones(2), torch.zeros(2, dtype=torch.long)
    assert first_floating((ids,), {"scale": torch.ones(1), "hidden_states": hidden}) is hidden
    assert first_floating((ids,), {}) is None
    assert first_output((hidden, ids)) is hidden
    assert first_output({"loss": torch.ones(()), "logits": hidden}) is hidden
    assert first_output(None) is None


def test_only_single_numbers_become_floats() -> None:
    assert to_float(torch.tensor([2.5], dtype=torch.bfloat16)) == 2.5
    assert to_float(3) == 3.0
    assert [to_float(value) for value in (None, True, "1", torch.ones(2))] == [None, None, None, None]


def settle(tmp_path: Path, **arguments: torch.Tensor) -> tuple[Recorder, MicroBatch]:
    """A forward that gives these logits (2, 5, 300), and the beginning of its backward."""
    recorder = Recorder(Settings(out=str(tmp_path), steps=(1,)))
    micro_batch = recorder.micro_batch()
    defer_logits(micro_batch, arguments=arguments, output={"logits": LOGITS})
    settle_losses(recorder, micro_batch)
    return recorder, micro_batch


LOGITS = torch.randn(2, 5, 300, generator=torch.Generator().manual_seed(0), requires_grad=True)
TOKENS = torch.randint(0, 300, (2, 5), generator=torch.Generator().manual_seed(1))


def test_of_a_loss_out_of_sight_is_kept_what_it_can_be_made_of(tmp_path: Path) -> None:
    recorder, micro_batch = settle(tmp_path, input_ids=TOKENS)
    kept = {key: recorder.now.tensors[key] for key in sorted(recorder.now.tensors)}
    assert list(kept) == ["next_token/0/next_token/loss/full", "next_token/0/next_token/mean/full"]
    log_p = functional.log_softmax(LOGITS.detach().double(), dim=-1)[:, :-1]
    loss, mean = kept.values()
    torch.testing.assert_close(loss, -log_p.gather(2, TOKENS[:, 1:, None])[..., 0], rtol=1e-12, atol=0)
    torch.testing.assert_close(mean, -log_p.mean(-1), rtol=1e-12, atol=0)
    assert [note.what for note in recorder.missing] == ["target of micro-batch 0"]
    assert micro_batch.unlabelled is None
    assert LOGITS.grad is None


def test_labels_come_before_the_rows_own_tokens(tmp_path: Path) -> None:
    recorder, micro_batch = settle(tmp_path, input_ids=TOKENS, labels=TOKENS)
    assert sorted(recorder.now.tensors) == ["target/0/target/full", "token_loss/0/token_loss/full"]
    assert micro_batch.loss_source == "logits"
    assert recorder.missing == []


def test_logits_of_another_shape_than_the_tokens_are_not_kept(tmp_path: Path) -> None:
    recorder, _ = settle(tmp_path, input_ids=TOKENS[:, 1:])
    assert recorder.now.tensors == {}
