"""Tokens around the first difference of a wrong row, as a page shows them: what the checks of the data share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from checks.references.dataset import Dataset
from checks.references.mask import Aligned

SHOWN_ROWS, SHOWN_TOKENS = 5, 200
"""What the evidence holds of wrong rows: so many, and so many tokens around the first difference."""


def cut_window(first: int, ids: Sequence[int], dataset: Dataset) -> tuple[int, list[str]]:
    """Where the shown tokens begin, and their texts."""
    start = max(first - SHOWN_TOKENS // 2, 0)
    decode = dataset.tokenizer.tokenizer.decode
    return start, [decode([token], skip_special_tokens=False) for token in ids[start : start + SHOWN_TOKENS]]


def show_mask(one: Aligned, dataset: Dataset, *, place: str) -> Mapping[str, object]:
    """A wrong mask: [text, trained, expected] a token. `place`: of the row in the captured batches."""
    assert one.found.sample is not None
    start, texts = cut_window(one.wrong[0], one.found.ids, dataset)
    window = slice(start, start + SHOWN_TOKENS)
    return {
        "place": place,
        "sample": dataset.place(one.found.sample),
        "first_difference": one.wrong[0],
        "from": start,
        "tokens": [list(token) for token in zip(texts, one.trained[window], one.expected[window], strict=True)],
    }
