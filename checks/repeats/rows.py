"""Which rows reached the model in a step, and how two steps' rows relate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from checks.captures.capture import Capture

Row = tuple[int, ...]
SHOWN_TOKENS = 12


def read_rows(capture: Capture, step: int) -> tuple[Row, ...]:
    """The token ids of each row in the order of the step, without what the attention mask leaves out."""
    rows: list[Row] = []
    for micro in capture.micro_batches(step):
        fields = capture.micro_batch_tensors(step, "batch", micro.index)
        ids = fields["input_ids"].read("full") if "input_ids" in fields else None
        mask = fields["attention_mask"].read("full") if "attention_mask" in fields else None
        if ids is None:
            continue
        if mask is None or mask.shape != ids.shape:
            rows += [tuple(row.tolist()) for row in ids]
        else:
            rows += [tuple(row[kept.bool()].tolist()) for row, kept in zip(ids, mask, strict=True)]
    return tuple(rows)


@dataclass(frozen=True)
class RowDifference:
    """Rows that came instead of others: `first`: the place of the first one; `earlier`: how many are of step 1."""

    count: int
    expected: int
    first: int
    got: Row
    wanted: Row
    same_rows: bool
    earlier: int

    @property
    def sentence(self) -> str:
        if self.same_rows:
            return f"the rows are the same in another order, from row {self.first} on"
        if self.earlier == self.count:
            return "its rows are those of step 1: the order of the data starts over"
        some = f", {self.earlier} of them rows of step 1" if self.earlier else ""
        return f"other rows came than in the uninterrupted run, first row {self.first} of {self.expected}{some}"


def compare_rows(resumed: tuple[Row, ...], whole: tuple[Row, ...], first_step: tuple[Row, ...]) -> RowDifference | None:
    """None where the rows are the same in the same order; `first_step`: those of the uninterrupted run's step 1."""
    if resumed == whole:
        return None
    shared = min(len(resumed), len(whole))
    first = next((i for i in range(shared) if resumed[i] != whole[i]), shared)
    return RowDifference(
        count=len(resumed),
        expected=len(whole),
        first=first,
        got=resumed[first] if first < len(resumed) else (),
        wanted=whole[first] if first < len(whole) else (),
        same_rows=Counter(resumed) == Counter(whole),
        earlier=sum((Counter(resumed) & Counter(first_step)).values()),
    )
