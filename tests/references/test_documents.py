"""Documents are found in a packed row from its tokens alone, or it is said why they cannot be."""

from __future__ import annotations

from itertools import pairwise

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from trl import pack_dataset

from checks.models.tiny import build_tiny
from checks.references.documents import NoBoundaries, split_documents
from checks.references.template import load_tokenizer, render_document
from checks.samples import read_samples

START, END, PAD = 1, 2, 0

bodies = st.lists(st.integers(3, 6), min_size=1, max_size=9)


@st.composite
def packed_rows(draw: st.DrawFn) -> tuple[list[int], list[list[int]], int, list[range]]:
    """A row, the data set, the length at which its documents were cut, and where they truly are."""
    documents = [[START, *body, END] for body in draw(st.lists(bodies, min_size=1, max_size=6))]
    seq_len = draw(st.integers(2, 12))
    chosen = draw(st.lists(st.sampled_from(documents), min_size=1, max_size=5))
    pieces = [document[:seq_len] for document in chosen]
    edges = [0]
    for piece in pieces:
        edges.append(edges[-1] + len(piece))
    row = [token for piece in pieces for token in piece] + [PAD] * draw(st.integers(0, 4))
    return row, documents, seq_len, [range(start, stop) for start, stop in pairwise(edges)]


@given(packed_rows())
def test_the_documents_of_a_row_are_found_with_the_length_stated(
    case: tuple[list[int], list[list[int]], int, list[range]],
) -> None:
    row, documents, seq_len, expected = case
    assert list(split_documents(row, documents, seq_len=seq_len, pad_token_id=PAD)) == expected


def explain(row: list[int], documents: list[list[int]], seq_len: int | None) -> set[tuple[int, ...]]:
    """Edges of every way of joining documents into the row, by trying them all."""
    found = {(0,)} if row and all(token == PAD for token in row) else set()
    for piece in {tuple(document[:seq_len]) for document in documents}:
        if tuple(row[: len(piece)]) == piece:
            rest = row[len(piece) :]
            tails = explain(rest, documents, seq_len) if rest else {(0,)}
            found |= {(0, *(edge + len(piece) for edge in tail)) for tail in tails}
    return found


@given(packed_rows())
def test_with_the_length_unknown_the_answer_is_that_of_trying_everything(
    case: tuple[list[int], list[list[int]], int, list[range]],
) -> None:
    row, documents, _, expected = case
    ways = explain(row, documents, None) or set().union(*(explain(row, documents, n) for n in range(1, len(row) + 1)))
    if len(ways) > 1:
        with pytest.raises(NoBoundaries, match="more than one way"):
            split_documents(row, documents, pad_token_id=PAD)
    else:
        assert list(split_documents(row, documents, pad_token_id=PAD)) == expected


@given(packed_rows(), st.data())
def test_a_token_that_no_document_has_is_never_explained(
    case: tuple[list[int], list[list[int]], int, list[range]], data: st.DataObject
) -> None:
    row, documents, seq_len, expected = case
    position = data.draw(st.integers(0, expected[-1].stop - 1))
    broken = [*row[:position], 7, *row[position + 1 :]]
    with pytest.raises(NoBoundaries):
        split_documents([*broken, END], documents, seq_len=seq_len)


@pytest.mark.parametrize("seq_len", [128, 256])
@pytest.mark.parametrize("name", ["gsm8k_sample", "tulu3_sample"])
def test_rows_that_trl_packs_are_split_where_trl_joined_them(name: str, seq_len: int) -> None:
    tokenizer = load_tokenizer(build_tiny("qwen3"))
    documents = [render_document(sample, tokenizer).token_ids for sample in read_samples(name)]
    packed = pack_dataset(Dataset.from_dict({"input_ids": [list(ids) for ids in documents]}), seq_len, "bfd")
    several = 0
    # Two rows at a time, as the padding-free collator joins those of a micro-batch.
    for one, other in zip(packed, packed.select(range(len(packed))[::-1]), strict=True):
        row = one["input_ids"] + other["input_ids"]
        lengths = [part.stop - part.start for part in split_documents(row, documents)]
        assert lengths == one["seq_lengths"] + other["seq_lengths"]
        assert lengths == [len(part) for part in split_documents(row, documents, seq_len=seq_len)]
        several += len(one["seq_lengths"]) > 1
    assert several >= 3


def test_padding_is_left_out() -> None:
    documents = [[5, 6], [5, 7, 8, 9]]
    row = [5, 6, 5, 7, 8, 0, 0]
    assert split_documents(row, documents, seq_len=3, pad_token_id=0) == (range(2), range(2, 5))
    assert split_documents([5, 6, 4, 4], documents, pad_token_id=4) == (range(2),)
    for pad_token_id in (None, 0, 6):
        with pytest.raises(NoBoundaries):
            split_documents([5, 6, 4, 4], documents, pad_token_id=pad_token_id)
    with pytest.raises(NoBoundaries):
        split_documents([5, 6, 4, 0], documents, pad_token_id=0)


def test_a_document_may_end_in_the_padding_token() -> None:
    assert split_documents([5, 6, 2, 2, 2], [[5, 6, 2], [5, 7, 2]], pad_token_id=2) == (range(3),)


def test_the_same_document_twice_has_one_boundary_between() -> None:
    assert split_documents([5, 6, 5, 6], [[5, 6], [5, 6]]) == (range(2), range(2, 4))


@pytest.mark.parametrize(
    ("row", "documents", "reason"),
    [
        ([], [[5]], "the row is empty"),
        ([5], [], "there is no document to find in the row"),
        ([5], [[]], "there is no document to find in the row"),
        ([5, 6, 7], [[5, 6], [7], [5], [6, 7]], "more than one way of joining documents gives the row"),
        ([5, 6, 9], [[5, 6]], "no way of joining documents of the data, whole or cut to one length, gives the row"),
        ([6, 5], [[5, 6]], "no way of joining documents of the data, whole or cut to one length, gives the row"),
        ([0, 0], [[5, 6]], "no way of joining documents of the data, whole or cut to one length, gives the row"),
    ],
)
def test_a_row_that_cannot_be_told_says_why(row: list[int], documents: list[list[int]], reason: str) -> None:
    with pytest.raises(NoBoundaries) as caught:
        split_documents(row, documents)
    assert str(caught.value) == reason


def test_documents_cut_to_different_lengths_are_not_explained() -> None:
    documents = [[1, 3, 4, 5, 6, 7], [1, 8, 9, 10, 11]]
    assert split_documents([1, 3, 4, 1, 8, 9], documents) == (range(3), range(3, 6))
    with pytest.raises(NoBoundaries):
        split_documents([1, 3, 4, 1, 8, 9, 10, 1, 3, 4], documents)


def test_the_stated_length_is_the_one_that_cuts() -> None:
    documents = [[1, 3, 4, 5, 6, 7], [1, 8, 9, 10, 11]]
    row = [1, 3, 4, 1, 8, 9]
    assert split_documents(row, documents, seq_len=3) == (range(3), range(3, 6))
    for other in (2, 4, 6):
        with pytest.raises(NoBoundaries):
            split_documents(row, documents, seq_len=other)


def test_too_many_possible_lengths_ask_for_the_true_one() -> None:
    documents = [[1] * 200 + [2]]
    with pytest.raises(NoBoundaries, match=r"documents may have been cut at \d+ lengths; state seq_len"):
        split_documents([1] * 180 + [3], documents)
