"""Two runs of the same documents: where they chose other experts or keys, whatever the order and place of the rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from checks.references.batch import Document, MicroBatch
from checks.references.same_choices import OtherChoice, RecordedStep, compare_choices, say_other_choices

ROUTER, INDEXER = "model.layers.1.mlp.gate", "model.layers.0.self_attn.indexer"
FIRST, SECOND = [5, 6, 7], [8, 9]


class Held:
    """A capture that holds one micro-batch's choices."""

    def __init__(self, **fields: torch.Tensor) -> None:
        names = {"indices": f"{ROUTER}/indices", "keys": f"{INDEXER}/keys"}
        self.held = {names[field]: SimpleNamespace(read=lambda _, v=value: v) for field, value in fields.items()}

    def micro_batch_tensors(self, step: int, kind: str, index: int) -> dict[str, Any]:
        return self.held


def recorded(tokens: list[list[int]], documents: tuple[Document, ...], **fields: torch.Tensor) -> RecordedStep:
    ids = torch.tensor(tokens)
    counted = torch.ones_like(ids, dtype=torch.bool)
    micro = MicroBatch(ids, ids, counted, None, None, documents, "data", None)
    return RecordedStep(Held(**fields), 1, (micro,))  # type: ignore[arg-type]


def test_choices_are_compared_token_by_token_wherever_a_document_lies() -> None:
    packed = recorded(
        [FIRST + SECOND],
        (Document(0, 0, 3), Document(0, 3, 5)),
        indices=torch.tensor([[0, 1], [1, 2], [3, 0], [2, 1], [0, 3]]),
        # Relative to the row; the first query of each document has one key, and any other beside it.
        keys=torch.tensor([[[0, 4], [0, 1], [0, 2], [3, 0], [3, 4]]]),
    )
    padded = recorded(
        [[*SECOND, 0], FIRST],
        (Document(0, 0, 2), Document(1, 0, 3)),
        indices=torch.tensor([[[1, 2], [3, 0], [0, 0]], [[1, 0], [2, 1], [0, 3]]]),
        keys=torch.tensor([[[0, 2], [1, 0], [0, 0]], [[0, 2], [1, 0], [2, 0]]]),
    )
    assert compare_choices(packed, padded) == ()
    other = recorded(
        [[*SECOND, 0], FIRST],
        (Document(0, 0, 2), Document(1, 0, 3)),
        indices=torch.tensor([[[1, 2], [3, 0], [0, 0]], [[1, 0], [2, 3], [0, 3]]]),
        keys=torch.tensor([[[0, 2], [1, 0], [0, 0]], [[0, 2], [1, 0], [2, 1]]]),
    )
    found = compare_choices(packed, other)
    assert set(found) == {OtherChoice(ROUTER, "experts", 5, 1), OtherChoice(INDEXER, "keys", 5, 1)}
    assert say_other_choices(found[:1]) in {
        f"{ROUTER} chose other experts for 1 of 5 tokens",
        f"{INDEXER} chose other keys for 1 of 5 tokens",
    }
    assert say_other_choices(found).endswith(", and so did 1 more")


def test_documents_and_routers_of_one_run_alone_are_left_out() -> None:
    ours = recorded([FIRST], (Document(0, 0, 3),), indices=torch.tensor([[0], [1], [2]]))
    theirs = recorded([[5, 6, 8]], (Document(0, 0, 3),), indices=torch.tensor([[3], [3], [3]]))
    assert compare_choices(ours, theirs) == ()
    assert compare_choices(ours, recorded([FIRST], (Document(0, 0, 3),))) == ()
