"""data.template: rows that are not what the data imply, each told by what is wrong with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.faults import fault
from checks.lifecycle import data_template, shown_tokens
from checks.material import Material
from checks.references.dataset import read_dataset
from checks.references.deviation import Kind
from checks.verdict import Pattern, Status, Verdict
from tests.checks.data_runs import (
    Batch,
    Example,
    batch_up,
    each,
    inject,
    load,
    make_material,
    make_spec,
    pack,
    tokenize_all,
    with_settings,
    write_data,
)

END = 2
"""<|im_end|>, the end-of-sequence token of the tiny models"""


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    return tokenize_all(make_spec("tulu3_sample"))[:8]


def judge_examples(examples: list[Example], directory: Path, **settings: Any) -> Verdict:
    material = make_material(make_spec("tulu3_sample", **settings), batch_up(examples), directory, captured=None)
    return data_template.judge(material)


def show(verdict: Verdict) -> dict[str, Any]:
    """The first wrong row of the evidence."""
    return verdict.evidence["rows"][0]  # type: ignore[no-any-return]


def test_rows_as_the_trainer_makes_them_pass_and_say_what_was_compared(examples: list[Example], tmp_path: Path) -> None:
    verdict = judge_examples(examples, tmp_path)
    assert verdict.status is Status.PASS
    tokens = sum(len(example["input_ids"]) for example in examples)
    assert verdict.sentence == (
        f"8 documents ({tokens} tokens) equal their samples' independent rendering, token by token; "
        "0 of them cut at seq_len=128"
    )
    assert verdict.shared_code == ("tokenizers",)
    (measurement,) = verdict.measurements
    assert (measurement.value, measurement.threshold, measurement.limit, measurement.unit) == (0.0, 0.0, 1.0, "count")


@pytest.mark.parametrize("data", ["gsm8k_sample", "tulu3_sample", "tools_sample"])
@pytest.mark.parametrize("assistant_only", [False, True])
def test_every_shipped_sample_passes(data: str, assistant_only: bool, tmp_path: Path) -> None:
    spec = make_spec(data, assistant_only=assistant_only)
    kept = [example for example in tokenize_all(spec) if any(label != -100 for label in example["labels"][1:])]
    verdict = data_template.judge(make_material(spec, batch_up(kept, batch=8), tmp_path, captured=None))
    assert verdict.status is Status.PASS, verdict.sentence
    assert verdict.evidence["documents"] == len(kept)


@pytest.mark.parametrize(
    ("row", "end"),
    [
        ({"text": "Once upon a time"}, True),
        ({"text": "Once upon<|im_end|>"}, True),
        ({"prompt": "7 hens", "completion": " lay eggs"}, True),
        ({"text": "Once upon a time"}, False),
        ({"prompt": "7 hens", "completion": " lay eggs"}, False),
    ],
)
def test_text_and_completions_end_in_the_end_token(row: dict[str, str], end: bool, tmp_path: Path) -> None:
    spec = make_spec(write_data(tmp_path, [row]))
    examples = list(
        each(tokenize_all(spec), lambda one: {name: ids[: None if end else -1] for name, ids in one.items()})
    )
    verdict = data_template.judge(make_material(spec, batch_up(examples), tmp_path))
    assert verdict.status is (Status.PASS if end else Status.FAIL)
    if not end:
        assert verdict.sentence.startswith(
            f"1 of 1 documents are not what the data imply: {Kind.MISSING_END.value} in 1"
        )
        assert "'<|im_end|>' should follow" in verdict.sentence
        assert (verdict.pattern, verdict.first_wrong) == (Pattern.LOSS_MASK, "special tokens")


def edit_ids(change: Callable[[list[int]], list[int]]) -> Callable[[Example], Example]:
    def edit(example: Example) -> Example:
        ids = change(example["input_ids"])
        return {"input_ids": ids, "labels": list(ids)}

    return edit


def split_end(ids: list[int]) -> list[int]:
    pieces = load(make_spec().model)("<|im", add_special_tokens=False)["input_ids"]
    rest = load(make_spec().model)("_end|>", add_special_tokens=False)["input_ids"]
    place = ids.index(END)
    return [*ids[:place], *pieces, *rest, *ids[place + 1 :]]


def generation_prompt(ids: list[int]) -> list[int]:
    return ids + list(load(make_spec().model)("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"])


EDITS: dict[str, tuple[Callable[[list[int]], list[int]], Kind, str]] = {
    "first token doubled": (lambda ids: [ids[0], *ids], Kind.DOUBLED_START, "special tokens"),
    "a token in front": (lambda ids: [END, *ids], Kind.ADDED_START, "special tokens"),
    "first token missing": (lambda ids: ids[1:], Kind.MISSING_START, "special tokens"),
    "end missing": (lambda ids: ids[:-2], Kind.MISSING_END, "special tokens"),
    "end doubled": (lambda ids: [*ids, END], Kind.ADDED_END, "special tokens"),
    "cut short": (lambda ids: ids[: len(ids) * 2 // 3], Kind.CUT_SHORT, "truncation"),
    "cut left": (lambda ids: ids[len(ids) // 3 + 2 :], Kind.CUT_LEFT, "truncation"),
    "special token split": (split_end, Kind.SPLIT_SPECIAL, "tokenizer"),
    "generation prompt": (generation_prompt, Kind.GENERATION_PROMPT, "chat template"),
}


@pytest.mark.parametrize("name", list(EDITS))
def test_each_fault_is_told_by_its_name_and_the_sample_is_found(
    name: str, examples: list[Example], tmp_path: Path
) -> None:
    change, kind, cause = EDITS[name]
    changed = [*examples[:3], *each(examples[3:4], edit_ids(change)), *examples[4:]]
    verdict = judge_examples(changed, tmp_path)
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith(
        f"1 of 8 documents are not what the data imply: {kind.value} in 1, first at step 2, micro-batch 0, row 1 "
        "(sample 4 (line 4)): "
    ), verdict.sentence
    assert verdict.evidence["kinds"] == {kind.value: 1}
    assert verdict.first_wrong == cause
    assert verdict.pattern is (Pattern.SEQUENCE_LENGTH if cause == "truncation" else Pattern.LOSS_MASK)
    assert show(verdict)["sample"] == "sample 4 (line 4)"
    assert verdict.measurements[0].value == 1.0


def test_a_row_longer_than_seq_len_is_not_cut(examples: list[Example], tmp_path: Path) -> None:
    long = max(examples, key=lambda one: len(one["input_ids"]))
    length = len(long["input_ids"])
    verdict = judge_examples([long], tmp_path, seq_len=length - 1)
    assert verdict.evidence["kinds"] == {Kind.NOT_CUT.value: 1}
    assert f"{length} tokens reached the model, seq_len is {length - 1}" in verdict.sentence
    exact = tmp_path / "exact"
    exact.mkdir()
    assert judge_examples([long], exact, seq_len=length).status is Status.PASS


def test_other_tokens_of_the_same_text_are_told_from_another_text(examples: list[Example], tmp_path: Path) -> None:
    tokenizer = load(make_spec().model)

    def by_character(ids: list[int]) -> list[int]:
        place = next(p for p, token in enumerate(ids) if len(tokenizer.decode([token])) > 2 and token > 2 and p > 3)
        pieces = [
            tokenizer(letter, add_special_tokens=False)["input_ids"][0] for letter in tokenizer.decode([ids[place]])
        ]
        return [*ids[:place], *pieces, *ids[place + 1 :]]

    verdict = judge_examples(list(each(examples[:2], edit_ids(by_character))), tmp_path)
    assert verdict.evidence["kinds"] == {Kind.OTHER_TOKENS.value: 2}
    assert verdict.first_wrong == "tokenizer"


def test_a_lost_turn_another_template_and_another_text_are_told_apart(tmp_path: Path) -> None:
    talk = [("system", "Be brief."), ("user", "Name a noble gas."), ("assistant", "Helium is one of them.")]
    spec = make_spec(write_data(tmp_path, [{"messages": [{"role": r, "content": c} for r, c in talk]}]))
    texts = {
        Kind.LOST_TURN: "<|im_start|>user\nName a noble gas.<|im_end|>\n"
        "<|im_start|>assistant\nHelium is one of them.<|im_end|>\n",
        Kind.OTHER_TEMPLATE: "<|im_start|>[system] Be brief.<|im_end|><|im_start|>[user] Name a noble gas.<|im_end|>"
        "<|im_start|>[assistant] Helium is one of them.<|im_end|>",
        Kind.NO_TEMPLATE: "Be brief.\nName a noble gas.\nHelium is one of them.\n",
        Kind.OTHER_TEXT: "<|im_start|>system\nBe long.<|im_end|>\n<|im_start|>user\nName a noble gas.<|im_end|>\n"
        "<|im_start|>assistant\nHelium is one of those.<|im_end|>\n",
    }
    for number, (kind, text) in enumerate(texts.items()):
        ids = load(spec.model)(text, add_special_tokens=False)["input_ids"]
        directory = tmp_path / str(number)
        directory.mkdir()
        batches = batch_up([{"input_ids": ids, "labels": list(ids)}])
        verdict = data_template.judge(make_material(spec, batches, directory))
        assert verdict.evidence["kinds"] == {kind.value: 1}, verdict.sentence
        assert verdict.first_wrong == "chat template"
        if kind is Kind.LOST_TURN:
            assert "turn 1 (system) is not there" in verdict.sentence


def test_a_row_of_no_sample_fails_and_names_the_nearest(examples: list[Example], tmp_path: Path) -> None:
    tokenizer = load(make_spec().model)
    ids = tokenizer("Quick zebras jump over lazy foxes while it rains in Bergen", add_special_tokens=False)["input_ids"]
    verdict = judge_examples([examples[0], {"input_ids": ids, "labels": list(ids)}], tmp_path)
    assert verdict.evidence["kinds"] == {Kind.UNKNOWN.value: 1}
    assert verdict.first_wrong == "data"
    assert "it is no sample of the data set in 1, first at step 1, micro-batch 0, row 1: the nearest is sample " in (
        verdict.sentence
    )


def test_the_evidence_shows_the_tokens_around_the_first_difference(examples: list[Example], tmp_path: Path) -> None:
    example = max(examples, key=lambda one: len(one["input_ids"]))
    wrong = edit_ids(lambda ids: [*ids[:40], END, *ids[41:]])(example)
    row = show(judge_examples([wrong], tmp_path))
    assert (row["first_difference"], row["from"]) == (40, 0)
    assert row["seen"][40] == "<|im_end|>"
    assert row["expected"][40] != "<|im_end|>"
    assert row["seen"][:40] == row["expected"][:40]


def test_evidence_is_bounded_whatever_is_wrong(tmp_path: Path) -> None:
    spec = make_spec(write_data(tmp_path, [{"text": f"{n} " + "word after word " * 60} for n in range(7)]), seq_len=400)
    wrong = list(each(tokenize_all(spec), edit_ids(lambda ids: [*ids[:150], END, *ids[151:]])))
    verdict = data_template.judge(make_material(spec, batch_up(wrong), tmp_path, captured=None))
    rows = verdict.evidence["rows"]
    assert verdict.measurements[0].value == 7.0
    assert len(rows) == shown_tokens.SHOWN_ROWS == 5
    assert {(row["from"], len(row["seen"])) for row in rows} == {(50, 200)}


def test_truncation_that_eats_the_answer_fails_where_the_answer_alone_is_learned(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "word " * 60}, {"role": "assistant", "content": "Yes."}]
    data = write_data(tmp_path, [{"messages": talk}, {"text": "x", "messages": talk[::-1]}])
    spec = make_spec(data, seq_len=32)
    first, second = batch_up(tokenize_all(spec), batch=1)
    plain = make_material(spec, [first], tmp_path)
    verdict = data_template.judge(plain)
    assert verdict.status is Status.PASS
    assert verdict.sentence.endswith(
        "; 1 of them cut at seq_len=32, 1 before their answer begins, so that they train on the prompt alone"
    )
    alone = data_template.judge(with_settings(plain, assistant_only=True))
    assert alone.status is Status.FAIL
    assert alone.sentence.startswith(
        "truncation eats the answer: 1 of 1 documents end before it begins, first step 1, "
    )
    assert (alone.pattern, alone.first_wrong) == (Pattern.SEQUENCE_LENGTH, "truncation")
    assert [m.value for m in alone.measurements] == [0.0, 1.0]
    (tmp_path / "second").mkdir()
    answered = with_settings(make_material(spec, [second], tmp_path / "second"), assistant_only=True)
    assert data_template.judge(answered).status is Status.PASS


def test_packed_documents_are_judged_one_by_one(examples: list[Example], tmp_path: Path) -> None:
    ids = [example["input_ids"] for example in examples]
    spec = make_spec("tulu3_sample", packing=True)
    verdict = data_template.judge(make_material(spec, [pack(ids[:3]), pack(ids[3:])], tmp_path, captured=None))
    assert verdict.status is Status.PASS
    assert verdict.evidence["documents"] == 8
    broken = tmp_path / "broken"
    broken.mkdir()
    torn = [ids[3], ids[4][10:], ids[5]]
    failed = data_template.judge(make_material(spec, [pack(ids[:3]), pack(torn)], broken, captured=None))
    assert failed.status is Status.FAIL
    assert failed.evidence["kinds"] == {Kind.CUT_LEFT.value: 1}
    assert f"step 2, micro-batch 0, row 0, token {len(ids[3])} (sample 5 (line 5)): tokens 10 to" in failed.sentence


def test_packed_rows_whose_boundaries_nothing_tells_still_fail(examples: list[Example], tmp_path: Path) -> None:
    row = pack([examples[0]["input_ids"], examples[1]["input_ids"][5:]])
    del row["position_ids"]
    verdict = data_template.judge(make_material(make_spec("tulu3_sample", packing=True), [row], tmp_path))
    assert verdict.status is Status.FAIL
    assert "sample 1 (line 1)" in verdict.sentence or "sample 2 (line 2)" in verdict.sentence


@pytest.mark.parametrize("count", [1, 3])
def test_padding_without_a_mask_is_told_from_an_end_token_with_the_same_id(count: int, tmp_path: Path) -> None:
    model = Path(shutil.copytree(make_spec().model, tmp_path / "model"))
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": "<|im_end|>"}))
    spec = replace(make_spec(write_data(tmp_path, [{"text": "Once upon a time"}])), model=model)
    (example,) = tokenize_all(spec, load(make_spec().model))
    assert example["input_ids"][-1] == END
    row: Batch = {"input_ids": torch.tensor([example["input_ids"] + [END] * count])}
    row["labels"] = torch.tensor([example["labels"] + [-100] * count])
    assert data_template.judge(make_material(spec, [row], tmp_path)).status is Status.PASS
    short: Batch = {name: value[:, : len(example["input_ids"]) - 1] for name, value in row.items()}
    bare = tmp_path / "bare"
    bare.mkdir()
    verdict = data_template.judge(make_material(spec, [short], bare))
    assert verdict.evidence["kinds"] == {Kind.MISSING_END.value: 1}


def test_left_padding_is_left_out(examples: list[Example], tmp_path: Path) -> None:
    (batch,) = batch_up(examples[:2])
    turned = {name: value.clone() for name, value in batch.items()}
    for row, example in enumerate(examples[:2]):
        shift = batch["input_ids"].shape[1] - len(example["input_ids"])
        for name, value in batch.items():
            turned[name][row] = value[row].roll(shift)
    assert data_template.judge(make_material(make_spec(), [turned], tmp_path)).status is Status.PASS


def test_a_template_that_prints_the_date_is_rendered_for_the_day_of_the_run(tmp_path: Path) -> None:
    model = Path(shutil.copytree(make_spec().model, tmp_path / "model"))
    template = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    (model / "chat_template.jinja").write_text(template)
    spec = replace(make_spec(), model=model)
    text = read_dataset(spec, now=datetime(2024, 2, 29)).texts[0]
    assert text.startswith("29 Feb 2024")


def test_what_cannot_be_rendered_or_was_not_recorded_leaves_it_open(examples: list[Example], tmp_path: Path) -> None:
    material = make_material(make_spec(), batch_up(examples), tmp_path)
    unknown = replace(material, dataset=None, no_dataset="the samples cannot be rendered: no chat template")
    assert data_template.judge(unknown).status is Status.INCONCLUSIVE
    assert data_template.judge(unknown).sentence == "the samples cannot be rendered: no chat template"
    crashed = replace(material, run=replace(material.run, capture=None))
    assert data_template.judge(crashed).sentence == "the run left no capture to judge; see run.completes"
    (tmp_path / "bare").mkdir()
    bare = make_material(make_spec(), [{"position_ids": torch.zeros(1, 3, dtype=torch.int64)}], tmp_path / "bare")
    assert data_template.judge(bare).status is Status.INCONCLUSIVE


FAULTS = {
    "bos-doubled": Kind.DOUBLED_START,
    "eos-not-appended": Kind.MISSING_END,
    "truncated-in-characters": Kind.CUT_SHORT,
    "truncated-from-left": Kind.CUT_LEFT,
    "template-ignored": Kind.NO_TEMPLATE,
}


@pytest.mark.parametrize("slug", list(FAULTS))
def test_a_fault_in_the_frameworks_own_tokenisation_is_seen(
    slug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = make_spec("tulu3_sample")
    inject(slug, monkeypatch)
    examples = tokenize_all(spec)[:6]
    assert fault(slug).marker in capsys.readouterr().err
    material: Material = make_material(spec, batch_up(examples), tmp_path, captured=None)
    verdict = data_template.judge(material)
    assert verdict.status is Status.FAIL
    assert verdict.evidence["kinds"].get(FAULTS[slug].value, 0) >= 4, verdict.evidence["kinds"]
    assert (verdict.check, verdict.pattern) == (fault(slug).check, fault(slug).pattern)
