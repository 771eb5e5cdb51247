"""data.preference: rows that are no pairs, or are not quite theirs, and masks that score other tokens than answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.lifecycle import data_preference
from checks.objectives import why_not_objective
from checks.references.conversation import Part
from checks.references.dataset import Dataset, read_dataset
from checks.references.deviation import Kind as RowKind
from checks.references.mask import Kind as MaskKind
from checks.references.pairs import Kind
from checks.spec import RunSpec
from checks.verdict import Pattern, Status, Verdict
from plumbline_web.validations.pictures import read_token_rows
from tests.checks.data_runs import IGNORED, Batch, make_material, make_spec, write_data

PAD = 0
Pair = dict[str, list[int]]
"""prompt, chosen and rejected, each token ids"""


def pairs_of(dataset: Dataset) -> list[Pair]:
    """The preferences as a framework tokenises them: one prompt, cut where it parts from an answer."""
    found = []
    for index in range(0, len(dataset.documents), 2):
        shared = dataset.count_context(index)
        chosen, rejected = dataset.documents[index], dataset.documents[index + 1]
        pair = {"prompt": list(chosen[:shared]), "chosen": list(chosen[shared:]), "rejected": list(rejected[shared:])}
        found.append(pair)
    return found


def collate(
    pairs: Sequence[Pair], *, seq_len: int = 128, prompts: Callable[[list[int]], list[int]] | None = None
) -> Batch:
    """Preferred answers first, then the rejected ones; `prompts`: what becomes of the prompts of these."""
    change = prompts or (lambda prompt: prompt)
    sides = [(pair["prompt"], pair["chosen"]) for pair in pairs]
    sides += [(change(pair["prompt"]), pair["rejected"]) for pair in pairs]
    rows = [(prompt + answer)[:seq_len] for prompt, answer in sides]
    width = max(map(len, rows))
    batch = {name: torch.full((len(rows), width), fill) for name, fill in (("input_ids", PAD), ("labels", IGNORED))}
    batch["attention_mask"] = torch.zeros(len(rows), width, dtype=torch.int64)
    for row, (ids, (prompt, _)) in enumerate(zip(rows, sides, strict=True)):
        batch["input_ids"][row, : len(ids)] = torch.tensor(ids)
        batch["attention_mask"][row, : len(ids)] = 1
        batch["labels"][row, len(prompt) : len(ids)] = batch["input_ids"][row, len(prompt) : len(ids)]
    return batch


def dpo(data: str = "preferences_sample", **settings: Any) -> RunSpec:
    return replace(make_spec(data, **settings), framework="trl", objective="dpo")


def judge(spec: RunSpec, batches: Sequence[Batch], directory: Path) -> Verdict:
    return data_preference.judge(make_material(spec, batches, directory, captured=None))


@pytest.fixture(scope="module")
def spec(_shared_cache: None) -> RunSpec:
    return dpo()


@pytest.fixture(scope="module")
def dataset(spec: RunSpec) -> Dataset:
    return read_dataset(spec)


@pytest.fixture(scope="module")
def pairs(dataset: Dataset) -> list[Pair]:
    return pairs_of(dataset)


def counts(verdict: Verdict) -> list[int]:
    return [int(measurement.value) for measurement in verdict.measurements]


def test_pairs_as_the_data_imply_them_pass_and_say_what_was_compared(
    spec: RunSpec, dataset: Dataset, pairs: list[Pair], tmp_path: Path
) -> None:
    verdict = judge(spec, [collate(pairs[:3]), collate(pairs[3:6])], tmp_path)
    assert verdict.status is Status.PASS
    scored = sum(len(pair["chosen"]) + len(pair["rejected"]) for pair in pairs[:6])
    judged = sum(must is not None for index in range(12) for must in dataset.mark(index).expected)
    assert verdict.sentence == (
        "6 pairs are the data's, in order, with one prompt each, and score their answers and nothing else: "
        f"{scored} tokens count, {judged} were compared; 0 of 12 rows cut at seq_len=128"
    )
    assert counts(verdict) == [0] * 9
    assert all(m.threshold == 0.0 and m.limit == 1.0 and m.unit == "count" for m in verdict.measurements)


def test_what_is_to_be_scored_is_the_last_answer_whoever_spoke_before(dataset: Dataset) -> None:
    index = next(i for i, sample in enumerate(dataset.samples) if sample.prompt_turns == 5)
    marked = dataset.mark(index)
    answers = {piece.turn for piece, must in zip(marked.pieces, marked.expected, strict=True) if must}
    assert answers == {5}
    earlier = [must for piece, must in zip(marked.pieces, marked.expected, strict=True) if 0 <= piece.turn < 5]
    assert set(earlier[1:]) == {False}
    ends = [must for piece, must in zip(marked.pieces, marked.expected, strict=True) if piece.part is Part.END]
    assert ends[-1] is True


def test_what_others_say_inside_an_answer_may_be_scored_or_not(tmp_path: Path) -> None:
    turns = [("assistant", "Let me add."), ("tool", "The sum is 5."), ("assistant", "It is five.")]
    answer = [{"role": role, "content": content} for role, content in turns]
    ask = [{"role": "user", "content": "What is 2 and 3?"}]
    row = {"prompt": ask, "chosen": answer, "rejected": [{"role": "assistant", "content": "Seven, I would say."}]}
    spec = dpo(write_data(tmp_path, [row]))
    dataset = read_dataset(spec)
    marked = dataset.mark(0)
    said = {
        (piece.turn, piece.part): must
        for piece, must in zip(marked.pieces, marked.expected, strict=True)
        if piece.turn >= 1
    }
    assert (said[1, Part.HEADER], said[1, Part.CONTENT], said[3, Part.CONTENT], said[3, Part.END]) == (
        False,
        *[True] * 3,
    )
    assert said[2, Part.CONTENT] is said[2, Part.HEADER] is said[3, Part.HEADER] is None
    tool = [place for place, piece in enumerate(marked.pieces) if piece.turn == 2]
    for name, scored in (("all", True), ("not the tool", False)):
        (tmp_path / name).mkdir()
        batch = collate(pairs_of(dataset))
        if not scored:
            batch["labels"][0, tool] = IGNORED
        assert judge(spec, [batch], tmp_path / name).status is Status.PASS


@pytest.mark.parametrize("form", ["text", "implicit text", "implicit messages"])
def test_every_form_of_the_data_passes(form: str, tmp_path: Path) -> None:
    ask, good, bad = "Q: How many?\nA:", " Twenty-two of them.", " None at all, I fear."
    turns = [{"role": "user", "content": "How many?"}]
    answers = [[{"role": "assistant", "content": text.strip()}] for text in (good, bad)]
    rows: dict[str, dict[str, Any]] = {
        "text": {"prompt": ask, "chosen": good, "rejected": bad},
        "implicit text": {"chosen": ask + good, "rejected": ask + bad},
        "implicit messages": {"chosen": turns + answers[0], "rejected": turns + answers[1]},
    }
    spec = dpo(write_data(tmp_path, [rows[form]]))
    (tmp_path / "capture").mkdir()
    verdict = judge(spec, [collate(pairs_of(read_dataset(spec)))], tmp_path / "capture")
    assert verdict.status is Status.PASS, verdict.sentence


def test_a_prompt_whose_last_token_merges_with_one_answer_is_open_from_there_on_both_sides(tmp_path: Path) -> None:
    spec = dpo(write_data(tmp_path, [{"prompt": "One two thr", "chosen": "ee four", "rejected": "x four"}]))
    dataset = read_dataset(spec)
    shared = dataset.count_context(0)
    assert shared == dataset.count_context(1)
    alone = dataset.tokenizer.tokenizer.encode("One two thr").ids
    assert shared < len(alone)
    for index in (0, 1):
        expected = dataset.mark(index).expected
        assert set(expected[1:shared]) <= {False}
        assert False not in expected[shared:]
    (tmp_path / "capture").mkdir()
    assert judge(spec, [collate(pairs_of(dataset))], tmp_path / "capture").status is Status.PASS


def swap(pair: Pair) -> Pair:
    return {"prompt": pair["prompt"], "chosen": pair["rejected"], "rejected": pair["chosen"]}


def test_answers_that_change_places_are_swapped(spec: RunSpec, pairs: list[Pair], tmp_path: Path) -> None:
    verdict = judge(spec, [collate([swap(pairs[0]), pairs[1]])], tmp_path)
    assert (verdict.status, verdict.pattern, verdict.first_wrong) == (Status.FAIL, Pattern.LOSS_MASK, "pairs")
    first = len(pairs[0]["prompt"])
    assert verdict.sentence == (
        f"{Kind.SWAPPED.value} in 1 of 2 pairs, first at token {first}: step 1, micro-batch 0, row 0 (chosen) holds "
        "pair 1 (line 1), rejected and step 1, micro-batch 0, row 2 (rejected) holds pair 1 (line 1), chosen"
    )
    assert counts(verdict) == [1, 0, 0, 0, 0, 0, 0, 0, 0]
    (row,) = read_token_rows(verdict.evidence)
    assert [strip.label for strip in row.strips] == ["seen", "expected"]


def test_answers_of_two_pairs_are_torn_apart(spec: RunSpec, pairs: list[Pair], tmp_path: Path) -> None:
    batch = collate(pairs[:3])
    for name in batch:
        batch[name][3:] = batch[name][3:].roll(1, dims=0)
    verdict = judge(spec, [batch], tmp_path)
    assert verdict.sentence.startswith(f"{Kind.TORN.value} in 3 of 3 pairs, first at token ")
    assert counts(verdict)[:2] == [0, 3]


def test_answers_of_two_pairs_are_torn_apart_even_where_they_are_not_whole(
    spec: RunSpec, pairs: list[Pair], tmp_path: Path
) -> None:
    batch = collate([{**pair, "rejected": pair["rejected"][:-2]} for pair in (pairs[1], pairs[7])])
    for name in batch:
        batch[name][2:] = batch[name][2:].flip(0)
    verdict = judge(spec, [batch], tmp_path)
    assert verdict.sentence.startswith(f"{Kind.TORN.value} in 2 of 2 pairs")
    assert verdict.evidence["kinds"] == {Kind.TORN.value: 2, RowKind.MISSING_END.value: 2}


def test_one_answer_in_both_places_is_told(spec: RunSpec, pairs: list[Pair], tmp_path: Path) -> None:
    same = {**pairs[0], "rejected": pairs[0]["chosen"]}
    verdict = judge(spec, [collate([same, pairs[1]])], tmp_path)
    assert verdict.sentence.startswith(f"{Kind.SAME.value} in 1 of 2 pairs")
    assert counts(verdict)[:2] == [0, 1]


def test_prompts_that_are_cut_differently_are_told_with_row_side_and_token(
    spec: RunSpec, pairs: list[Pair], tmp_path: Path
) -> None:
    verdict = judge(spec, [collate(pairs[:2], prompts=lambda prompt: prompt[3:])], tmp_path)
    assert (verdict.pattern, verdict.first_wrong) == (Pattern.SEQUENCE_LENGTH, "truncation")
    assert verdict.sentence.startswith(
        f"{Kind.PROMPT.value} in 2 of 2 pairs, first at step 1, micro-batch 0, row 2 (rejected), token 0, of pair 1 "
        f"(line 1), rejected: {RowKind.CUT_LEFT.value}, tokens 3 to "
    )
    assert counts(verdict)[2] == 2


def test_prompts_that_are_cut_alike_are_not_said_to_differ(spec: RunSpec, pairs: list[Pair], tmp_path: Path) -> None:
    cut = [{**pair, "prompt": pair["prompt"][3:]} for pair in pairs[:2]]
    verdict = judge(spec, [collate(cut)], tmp_path)
    assert verdict.sentence.startswith(f"4 of 4 rows are not what the data imply: {RowKind.CUT_LEFT.value} in 4")
    assert counts(verdict)[2] == 0


ROWS: dict[str, tuple[Callable[[Pair], Pair], RowKind, str]] = {
    "no end": (lambda pair: {**pair, "rejected": pair["rejected"][:-2]}, RowKind.MISSING_END, "special tokens"),
    "first token twice": (
        lambda pair: {**pair, "prompt": [pair["prompt"][0], *pair["prompt"]]},
        RowKind.DOUBLED_START,
        "special tokens",
    ),
    "second end": (
        lambda pair: {**pair, "chosen": [*pair["chosen"], pair["chosen"][-2]]},
        RowKind.ADDED_END,
        "special tokens",
    ),
    "half an answer": (
        lambda pair: {**pair, "chosen": pair["chosen"][: len(pair["chosen"]) // 2]},
        RowKind.CUT_SHORT,
        "truncation",
    ),
}


@pytest.mark.parametrize("name", list(ROWS))
def test_a_row_that_is_not_its_sample_is_told_by_its_deviation(
    name: str, spec: RunSpec, pairs: list[Pair], tmp_path: Path
) -> None:
    change, kind, cause = ROWS[name]
    verdict = judge(spec, [collate([pairs[0], change(pairs[2])])], tmp_path)
    assert verdict.status is Status.FAIL
    assert verdict.evidence["kinds"] == {kind.value: 2 if name == "first token twice" else 1}, verdict.sentence
    assert verdict.first_wrong == cause
    assert f"{kind.value} in " in verdict.sentence
    assert "pair 3 (line 3)" in verdict.sentence
    shown = verdict.evidence["rows"][0]
    assert {"place", "sample", "seen", "expected", "first_difference"} <= set(shown)


MASKS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[MaskKind]]] = {
    "early": (lambda kept: torch.nn.functional.pad(kept[:, 1:], (0, 1)), [MaskKind.OFF_BY_ONE]),
    "late": (lambda kept: torch.nn.functional.pad(kept[:, :-1], (1, 0)), [MaskKind.OFF_BY_ONE]),
    "nothing": (torch.zeros_like, [MaskKind.ALL_MASKED]),
}


@pytest.mark.parametrize("name", list(MASKS))
def test_a_wrong_mask_is_told_by_its_name(name: str, spec: RunSpec, pairs: list[Pair], tmp_path: Path) -> None:
    change, kinds = MASKS[name]
    batch = collate(pairs[:2])
    kept = change(batch["labels"] != IGNORED) & (batch["attention_mask"] == 1)
    batch["labels"] = torch.where(kept, batch["input_ids"], IGNORED)
    verdict = judge(spec, [batch], tmp_path)
    assert (verdict.status, verdict.pattern, verdict.first_wrong) == (Status.FAIL, Pattern.LOSS_MASK, "labels")
    assert list(verdict.evidence["kinds"]) == [kind.value for kind in kinds], verdict.sentence
    assert counts(verdict)[5] + counts(verdict)[6] > 0
    (strip,) = read_token_rows(verdict.evidence)[0].strips
    assert strip.label == "labels"
    assert {token.standing for token in strip.tokens} & {"extra", "lost"}


def test_prompts_and_padding_that_are_scored_are_told_apart(spec: RunSpec, pairs: list[Pair], tmp_path: Path) -> None:
    batch = collate(pairs[:2])
    batch["labels"] = batch["input_ids"].clone()
    verdict = judge(spec, [batch], tmp_path)
    padding = int((batch["attention_mask"] == 0).sum())
    assert padding > 0
    assert verdict.evidence["kinds"][MaskKind.PADDING_TRAINED.value] == padding == counts(verdict)[7]
    assert verdict.evidence["kinds"][MaskKind.PROMPT_TRAINED.value] > 0
    assert verdict.evidence["kinds"][MaskKind.HEADER_TRAINED.value] > 0
    assert counts(verdict)[5] == 0


def test_truncation_at_seq_len_is_asked_for_unless_it_leaves_nothing_of_an_answer(
    pairs: list[Pair], tmp_path: Path
) -> None:
    pair = next(pair for pair in pairs if len(pair["prompt"]) > 20 and len(pair["rejected"]) > 6)
    long = len(pair["prompt"]) + 4
    (tmp_path / "cut").mkdir()
    verdict = judge(dpo(seq_len=long), [collate([pair], seq_len=long)], tmp_path / "cut")
    assert verdict.status is Status.PASS
    assert verdict.sentence.endswith(f"2 of 2 rows cut at seq_len={long}")
    (tmp_path / "eaten").mkdir()
    short = len(pair["prompt"])
    verdict = judge(dpo(seq_len=short), [collate([pair], seq_len=short)], tmp_path / "eaten")
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith(f"{Kind.EATEN.value} in 1 of 1 pairs")
    assert f"raise seq_len={short} or leave such pairs out" in verdict.sentence
    assert (verdict.pattern, counts(verdict)[3]) == (Pattern.SEQUENCE_LENGTH, 1)


def test_pairs_whose_cut_rows_are_equal_to_those_of_others_are_still_pairs(tmp_path: Path) -> None:
    ask = [{"role": "user", "content": "What is six times seven, in words, please?"}]
    answers = ["Forty-two it is.", "Forty-two it is, as everyone knows.", "Forty-three."]
    reply = [[{"role": "assistant", "content": answer}] for answer in answers]
    rows = [{"prompt": ask, "chosen": reply[0], "rejected": reply[2]}]
    rows += [{"prompt": ask, "chosen": reply[2], "rejected": reply[1]}]
    spec = dpo(write_data(tmp_path, rows))
    (tmp_path / "capture").mkdir()
    verdict = judge(spec, [collate(pairs_of(read_dataset(spec)))], tmp_path / "capture")
    assert verdict.status is Status.PASS, verdict.sentence


def test_rows_that_are_nothing_of_the_data_are_said_to_be_none(
    spec: RunSpec, pairs: list[Pair], tmp_path: Path
) -> None:
    batch = collate(pairs[:1])
    batch["input_ids"][:] = torch.arange(batch["input_ids"].shape[1]) % 7 + 300
    verdict = judge(spec, [batch], tmp_path)
    assert verdict.status is Status.FAIL
    assert "row 0 (chosen), which is no sample of the data" in verdict.sentence
    assert verdict.first_wrong == "data"


def test_an_odd_number_of_rows_is_inconclusive(spec: RunSpec, pairs: list[Pair], tmp_path: Path) -> None:
    batch = {name: tensor[:3] for name, tensor in collate(pairs[:2]).items()}
    verdict = judge(spec, [batch], tmp_path)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.endswith("step 1, rank 0, micro-batch 0 holds 3 rows, which are no pairs")


def test_rows_without_labels_leave_their_masks_open(spec: RunSpec, pairs: list[Pair], tmp_path: Path) -> None:
    batch = collate(pairs[:2])
    del batch["labels"]
    verdict = judge(spec, [batch], tmp_path)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith("the rows are pairs, but no mask could be judged: neither labels nor the loss's")


def test_it_judges_preferences_and_leaves_other_runs_to_the_other_checks(spec: RunSpec) -> None:
    applies = data_preference.CHECK.applies
    assert applies(spec) is None
    assert applies(make_spec()) == "the run does not train on preferences (objective=sft)"
    assert why_not_objective("data.mask", spec) == "data.preference judges the rows of preferences"
    assert why_not_objective("step.loss", spec) == "its reference is that of supervised fine-tuning"
    assert why_not_objective("step.update", spec) is why_not_objective("step.loss", make_spec()) is None
