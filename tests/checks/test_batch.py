"""From a capture to rows, documents and counted targets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from checks.material import Material
from checks.references.batch import Corpus, Document, MicroBatch, UnreadableBatch, read_step
from checks.references.kept import IGNORED
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, corpus_of


def micro_batch(documents: tuple[Document, ...], counted: torch.Tensor) -> MicroBatch:
    ids = torch.tensor([[5, 6, 7, 8, 9, 0]])
    return MicroBatch(ids, ids, counted, None, None, documents, "data", None)


def test_the_next_token_ends_with_its_document() -> None:
    documents = (Document(0, 0, 3), Document(0, 3, 5))
    counted = torch.tensor([[True, False, True, True, True, True]])
    micro = micro_batch(documents, counted)
    assert micro.next_tokens.tolist() == [[6, 7, IGNORED, 9, IGNORED, IGNORED]]
    assert micro.targets.tolist() == [[6, IGNORED, IGNORED, 9, IGNORED, IGNORED]]


def test_a_padded_batch_is_read_with_its_documents_from_the_data(healthy: Material, edit: Editor) -> None:
    assert healthy.capture is not None
    first, second = read_step(healthy.capture, 1, corpus=corpus_of(healthy.spec))
    assert first.documents == (Document(0, 0, 117), Document(1, 0, 119))
    assert (first.boundaries, first.unbounded, first.position_ids) == ("data", None, None)
    assert torch.equal(first.targets_seen[first.counted], first.next_tokens[first.counted])
    assert int(second.counted.sum()) == 101
    assert first.token_losses_seen is not None
    assert first.token_losses_seen.shape == first.input_ids.shape


def test_without_the_data_the_mask_bounds_one_document_a_row(healthy: Material, edit: Editor) -> None:
    assert healthy.capture is not None
    (first, _) = read_step(healthy.capture, 1, corpus=None)
    assert first.documents == (Document(0, 0, 117), Document(1, 0, 119))
    assert (first.boundaries, first.unbounded) == ("mask", "no data set to find documents in")

    def pad_left(mask: torch.Tensor) -> torch.Tensor:
        changed = mask.clone()
        changed[0, :4] = 0
        changed[1] = 0
        return changed

    editing = edit(healthy.capture).change("batch", "attention_mask", pad_left, micro_batch=0)
    assert read_step(editing.save(), 1, corpus=None)[0].documents == (Document(0, 4, 117),)


def test_a_row_that_the_data_do_not_explain_falls_back_on_the_mask(healthy: Material) -> None:
    assert healthy.capture is not None
    other = Corpus(((1, 2, 3),), 128, 0)
    (first, _) = read_step(healthy.capture, 1, corpus=other)
    assert first.boundaries == "mask"
    assert first.unbounded is not None
    assert first.unbounded.startswith("no way of joining documents of the data")


def test_without_a_mask_a_row_is_one_document(packed: Material, edit: Editor) -> None:
    assert packed.capture is not None
    first = read_step(packed.capture, 1, corpus=None)[0]
    assert first.documents == (Document(0, 0, 202),)
    assert first.position_ids is not None
    wide = edit(packed.capture).rename("batch", "labels", "attention_mask", micro_batch=0)
    wide.put("batch", "attention_mask", torch.zeros(1, 1, 202, 202, dtype=torch.int64), micro_batch=0)
    assert read_step(wide.save(), 1, corpus=None)[0].documents == (Document(0, 0, 202),)


@pytest.mark.parametrize("layout", ["flat", "short", "flat and short"])
def test_targets_and_losses_are_laid_along_the_row_whatever_their_layout(
    healthy: Material, edit: Editor, layout: str
) -> None:
    assert healthy.capture is not None
    expected = read_step(healthy.capture, 1, corpus=None)[1]

    def lay(tensor: torch.Tensor) -> torch.Tensor:
        part = tensor[:, :-1] if "short" in layout else tensor
        return part.reshape(-1) if "flat" in layout else part

    editing = edit(healthy.capture)
    for kind in ("target", "token_loss"):
        editing.change(kind, kind, lay, micro_batch=1)
    found = read_step(editing.save(), 1, corpus=None)[1]
    assert torch.equal(found.targets_seen, expected.targets_seen)
    assert torch.equal(found.counted, expected.counted)
    assert found.token_losses_seen is not None
    assert expected.token_losses_seen is not None
    assert torch.equal(found.token_losses_seen, expected.token_losses_seen)


def unreadable(editing: Edit) -> str:
    with pytest.raises(UnreadableBatch) as caught:
        read_step(editing.save(), 1, corpus=None)
    return str(caught.value)


def test_a_batch_that_cannot_be_read_says_why(healthy: Material, edit: Editor) -> None:
    without = edit(healthy.capture).drop("batch", "input_ids", micro_batch=1)
    assert unreadable(without) == "micro-batch 1 of step 1 holds no input_ids"
    silent = "micro-batch 0 of step 1 does not say which targets its loss counted"
    assert unreadable(edit(healthy.capture).drop("target", "target", micro_batch=0)) == silent
    odd = edit(healthy.capture).change("target", "target", lambda target: target[:, :-2], micro_batch=0)
    assert unreadable(odd) == silent
    twice = edit(healthy.capture).rename("target", "target", "other", micro_batch=1)
    twice.entry("target", "other", micro_batch=1)["micro_batch"] = 0
    assert unreadable(twice) == silent
    none = edit(healthy.capture)
    none.step()["micro_batches"].clear()
    assert unreadable(none) == "the capture of step 1 holds no forward pass"


def test_losses_in_an_odd_layout_are_not_read(healthy: Material, edit: Editor) -> None:
    odd = edit(healthy.capture).change("token_loss", "token_loss", lambda loss: loss[:, :-3], micro_batch=0)
    assert read_step(odd.save(), 1, corpus=None)[0].token_losses_seen is None


def test_labels_ask_for_what_they_hold_as_tokens_or_shifted(packed: Material, edit: Editor) -> None:
    def asked(change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor | None:
        editing = edit(packed.capture).change("batch", "labels", change, micro_batch=0)
        return read_step(editing.save(), 1, corpus=corpus_of(packed.spec))[0].asked

    ids = packed.batches[1][0].input_ids
    ends = [document.stop - 1 for document in packed.batches[1][0].documents]

    def mask(labels: torch.Tensor) -> torch.Tensor:
        changed = labels.clone()
        changed[0, 7] = -100
        return changed

    as_tokens, shifted = asked(lambda labels: mask(ids)), asked(lambda labels: mask(torch.roll(ids, -1, dims=1)))
    assert as_tokens is not None
    assert shifted is not None
    # A label at position 7 is the target of position 6, unless it was shifted already.
    assert (~as_tokens[0]).nonzero().flatten().tolist() == sorted([6, *ends])
    assert (~shifted[0]).nonzero().flatten().tolist() == sorted([7, *ends])
    assert asked(lambda labels: ids + 1) is None
    assert asked(lambda labels: labels[:, :-1]) is None
    bare = edit(packed.capture).drop("batch", "labels", micro_batch=0).save()
    assert read_step(bare, 1, corpus=None)[0].asked is None
