"""Labels, targets and losses that are as long as the positions with logits go back along the tokens."""

from __future__ import annotations

import pytest
import torch

from checks.references.kept import IGNORED, lay_labels, lay_targets, lay_unpadded

IDS = torch.tensor([[11, 12, 13, 14, 15], [21, 22, 23, 24, 25]])
LAST_THREE = torch.tensor([2, 3, 4])
SCATTERED = torch.tensor([0, 3, 4])


def test_without_a_choice_of_positions_tensors_are_as_long_as_the_rows() -> None:
    shifted = torch.tensor([[12, 13, 14, 15], [22, 23, 24, 25]])
    wanted = torch.tensor([[12, 13, 14, 15, IGNORED], [22, 23, 24, 25, IGNORED]])
    for given in (shifted, shifted.flatten(), wanted, wanted.flatten()):
        laid = lay_targets(given, IDS, None)
        assert laid is not None
        assert torch.equal(laid, wanted)
    assert lay_targets(torch.zeros(3, 5), IDS, None) is None
    assert lay_targets(torch.zeros(7), IDS, None) is None


def test_targets_of_the_last_positions_stand_at_these() -> None:
    laid = lay_targets(torch.tensor([[14, 15], [24, 25]]), IDS, LAST_THREE)
    assert laid is not None
    assert laid.tolist() == [[IGNORED, IGNORED, 14, 15, IGNORED], [IGNORED, IGNORED, 24, 25, IGNORED]]


def test_losses_are_zero_where_there_are_no_logits() -> None:
    laid = lay_targets(torch.tensor([0.5, 0.25, 1.5, 1.25]).double(), IDS, LAST_THREE)
    assert laid is not None
    assert laid.tolist() == [[0.0, 0.0, 0.5, 0.25, 0.0], [0.0, 0.0, 1.5, 1.25, 0.0]]


def test_targets_of_chosen_positions_stand_at_these() -> None:
    laid = lay_targets(torch.tensor([[12, 15, IGNORED]]), IDS[:1], SCATTERED)
    assert laid is not None
    assert laid.tolist() == [[12, IGNORED, IGNORED, 15, IGNORED]]
    assert lay_targets(torch.zeros(1, 5), IDS[:1], SCATTERED) is None


@pytest.mark.parametrize(
    ("mask", "wanted"),
    [
        ([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], [[1, 2, 3, 0, 0], [4, 0, 0, 0, 0]]),
        ([[0, 1, 1, 1, 0], [0, 0, 0, 1, 0]], [[1, 2, 3, 0, 0], [0, 0, 4, 0, 0]]),  # pads before: a token follows a pad
    ],
)
def test_without_padding_a_flat_tensor_stands_before_the_tokens_that_are_none(
    mask: list[list[int]], wanted: list[list[int]]
) -> None:
    laid = lay_unpadded(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor(mask))
    assert laid is not None
    assert laid.tolist() == wanted
    targets = lay_unpadded(torch.tensor([1, IGNORED, 3, 4]), torch.tensor(mask))
    assert targets is not None
    assert targets.tolist() == [[{0: IGNORED, 2: IGNORED}.get(each, each) for each in row] for row in wanted]


@pytest.mark.parametrize("tensor", [torch.zeros(3), torch.zeros(5), torch.zeros(2, 2)])
def test_a_tensor_of_another_size_is_not_laid(tensor: torch.Tensor) -> None:
    assert lay_unpadded(tensor, torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])) is None
    assert lay_unpadded(tensor, None) is None


@pytest.mark.parametrize(
    ("kept", "cut", "wanted"),
    [
        (LAST_THREE, [IGNORED, 14, 15], [IGNORED, IGNORED, IGNORED, 14, 15]),
        (SCATTERED, [IGNORED, 12, 15], [IGNORED, 12, IGNORED, IGNORED, 15]),
    ],
)
def test_cut_labels_stand_at_their_tokens_again(kept: torch.Tensor, cut: list[int], wanted: list[int]) -> None:
    assert lay_labels(torch.tensor([cut]), IDS[:1], kept).tolist() == [wanted]


def test_labels_that_were_not_cut_stay_as_they_are() -> None:
    whole = IDS.clone()
    assert lay_labels(whole, IDS, None) is whole
    assert lay_labels(whole, IDS, LAST_THREE) is whole
    other = torch.zeros(2, 4, dtype=torch.int64)
    assert lay_labels(other, IDS, LAST_THREE) is other
