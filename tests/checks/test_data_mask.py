"""data.mask: labels that ask for other tokens than the conversation implies, each told by what is wrong with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.faults import fault
from checks.lifecycle import data_mask, shown_tokens
from checks.references.conversation import Part, find_pieces
from checks.references.dataset import Dataset, read_dataset
from checks.references.mask import Kind
from checks.verdict import Pattern, Status, Verdict
from tests.checks.data_runs import (
    IGNORED,
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
TALK = [("system", "Be brief."), ("user", "Add 2 and 3."), ("assistant", '{"name": "add"}'), ("tool", '{"sum": 5}')]
TALK += [("assistant", "It is 5."), ("user", "And 4 and 4?"), ("assistant", "8.")]


def as_messages(turns: list[tuple[str, str]]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


@pytest.fixture
def talk(tmp_path: Path) -> str:
    return write_data(tmp_path, [as_messages(TALK)])


def judge(data: str, directory: Path, change: Callable[[Example], Example] | None = None, **settings: Any) -> Verdict:
    spec = make_spec(data, **{"assistant_only": True, **settings})
    examples = tokenize_all(spec)
    batches = batch_up(list(each(examples, change)) if change else examples)
    return data_mask.judge(make_material(spec, batches, directory, captured=None))


def relabel(choose: Callable[[Dataset, int], bool]) -> Callable[[Example], Example]:
    """Train the tokens of the talk that `choose(dataset, place)` picks."""

    def change(example: Example) -> Example:
        dataset = relabel.dataset  # type: ignore[attr-defined]
        ids = example["input_ids"]
        return {"input_ids": ids, "labels": [t if choose(dataset, p) else IGNORED for p, t in enumerate(ids)]}

    return change


def part_of(dataset: Dataset, place: int) -> tuple[Part, str, int]:
    piece = dataset.mark(0).pieces[place]
    return piece.part, piece.role, piece.turn


def is_right(dataset: Dataset, place: int) -> bool:
    return bool(dataset.mark(0).expected[place])


WRONG: dict[str, tuple[Callable[[Dataset, int], bool], Kind]] = {
    "nothing": (lambda d, p: False, Kind.ALL_MASKED),
    "one late": (lambda d, p: p > 0 and is_right(d, p - 1), Kind.OFF_BY_ONE),
    "one early": (lambda d, p: p + 1 < len(d.documents[0]) and is_right(d, p + 1), Kind.OFF_BY_ONE),
    "first answer only": (lambda d, p: is_right(d, p) and part_of(d, p)[2] == 2, Kind.TURNS_MASKED),
    "last answer only": (lambda d, p: is_right(d, p) and part_of(d, p)[2] == 6, Kind.TURNS_MASKED),
    "no ends": (lambda d, p: is_right(d, p) and part_of(d, p)[0] is not Part.END, Kind.END_MASKED),
    "not its first token": (
        lambda d, p: is_right(d, p) and not (part_of(d, p)[2] == 4 and is_right(d, p) and not is_right(d, p - 1)),
        Kind.ANSWER_MASKED,
    ),
    "headers": (lambda d, p: is_right(d, p) or part_of(d, p)[:2] == (Part.HEADER, "assistant"), Kind.HEADER_TRAINED),
    "tools": (lambda d, p: is_right(d, p) or part_of(d, p)[:2] == (Part.CONTENT, "tool"), Kind.TOOL_TRAINED),
    "users": (lambda d, p: is_right(d, p) or part_of(d, p)[:2] == (Part.CONTENT, "user"), Kind.PROMPT_TRAINED),
    "system": (lambda d, p: is_right(d, p) or part_of(d, p)[:2] == (Part.CONTENT, "system"), Kind.PROMPT_TRAINED),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_each_wrong_mask_is_told_by_its_name(name: str, talk: str, tmp_path: Path) -> None:
    choose, kind = WRONG[name]
    relabel.dataset = read_dataset(make_spec(talk, assistant_only=True))  # type: ignore[attr-defined]
    verdict = judge(talk, tmp_path, relabel(choose))
    assert verdict.status is Status.FAIL
    assert list(verdict.evidence["kinds"]) == [kind.value], verdict.sentence
    assert verdict.sentence.startswith(f"{kind.value} (")
    assert (verdict.pattern, verdict.first_wrong) == (Pattern.LOSS_MASK, "labels")
    missed, added = (measurement.value for measurement in verdict.measurements[:2])
    only_missed = kind in (Kind.ALL_MASKED, Kind.TURNS_MASKED, Kind.END_MASKED, Kind.ANSWER_MASKED)
    # A mask that is late trains what follows an end, which is allowed, and misses the first token of each answer.
    assert (missed > 0, added > 0) == (only_missed or kind is Kind.OFF_BY_ONE, not only_missed and name != "one late")


def test_the_right_mask_passes_and_says_what_was_compared(talk: str, tmp_path: Path) -> None:
    verdict = judge(talk, tmp_path)
    assert verdict.status is Status.PASS
    dataset = read_dataset(make_spec(talk, assistant_only=True))
    expected = dataset.mark(0).expected
    judged, trained = sum(must is not None for must in expected), sum(bool(must) for must in expected)
    assert verdict.sentence == (
        "1 documents train the answers and their ends, and nothing else: "
        f"{trained} tokens count, {judged} were compared"
    )
    assert [m.value for m in verdict.measurements] == [0.0] * 4
    assert all(m.threshold == 0.0 and m.limit == 1.0 and m.unit == "count" for m in verdict.measurements)


def test_what_is_to_be_learned_is_the_answers_and_their_ends(talk: str) -> None:
    dataset = read_dataset(make_spec(talk, assistant_only=True))
    expected = dataset.mark(0).expected
    ids = dataset.documents[0]
    text = load(make_spec().model).decode([token for token, must in zip(ids, expected, strict=True) if must])
    assert text == '{"name": "add"}<|im_end|>It is 5.<|im_end|>8.<|im_end|>'
    open_ = [token for token, must in zip(ids, expected, strict=True) if must is None]
    assert load(make_spec().model).decode(open_) == "<|im_start|>\n\n\n"  # the first token, and what follows ends


@pytest.mark.parametrize("data", ["gsm8k_sample", "tulu3_sample", "tools_sample"])
@pytest.mark.parametrize("assistant_only", [False, True])
def test_every_shipped_sample_passes(data: str, assistant_only: bool, tmp_path: Path) -> None:
    spec = make_spec(data, assistant_only=assistant_only)
    kept = [example for example in tokenize_all(spec) if any(label != IGNORED for label in example["labels"][1:])]
    verdict = data_mask.judge(make_material(spec, batch_up(kept, batch=8), tmp_path, captured=None))
    assert verdict.status is Status.PASS, verdict.sentence
    assert verdict.evidence["documents"] == len(kept)
    assert verdict.evidence["not_judged"] == []


def test_white_space_after_an_end_may_be_trained_or_not(talk: str, tmp_path: Path) -> None:
    relabel.dataset = read_dataset(make_spec(talk, assistant_only=True))  # type: ignore[attr-defined]
    tails = relabel(lambda d, p: is_right(d, p) or part_of(d, p)[:2] == (Part.TAIL, "assistant"))
    assert judge(talk, tmp_path, tails).status is Status.PASS


def test_with_every_token_asked_for_a_masked_prompt_fails(talk: str, tmp_path: Path) -> None:
    relabel.dataset = read_dataset(make_spec(talk, assistant_only=True))  # type: ignore[attr-defined]
    verdict = judge(talk, tmp_path, relabel(is_right), assistant_only=False)
    assert verdict.status is Status.FAIL
    assert list(verdict.evidence["kinds"]) == [Kind.REST_MASKED.value]
    (tmp_path / "whole").mkdir()
    assert judge(talk, tmp_path / "whole", assistant_only=False).status is Status.PASS


@pytest.mark.parametrize(
    ("prompt", "completion"), [("7 hens", " lay eggs"), ("He", "r friend"), ("", "Nothing asked"), ("Twenty", "-one")]
)
def test_a_completion_is_learned_and_where_it_merges_with_the_prompt_either_is_right(
    prompt: str, completion: str, tmp_path: Path
) -> None:
    data = write_data(tmp_path, [{"prompt": prompt, "completion": completion}])
    assert judge(data, tmp_path).status is Status.PASS
    (tmp_path / "other").mkdir()
    masked = judge(data, tmp_path / "other", lambda one: {**one, "labels": [*one["labels"][:-1], IGNORED]})
    assert list(masked.evidence["kinds"]) == [Kind.END_MASKED.value]


def test_a_trained_prompt_of_a_completion_fails(tmp_path: Path) -> None:
    data = write_data(tmp_path, [{"prompt": "How many eggs?", "completion": " Five."}])
    verdict = judge(data, tmp_path, lambda one: {**one, "labels": list(one["input_ids"])})
    assert list(verdict.evidence["kinds"]) == [Kind.PROMPT_TRAINED.value]


def test_plain_text_is_learned_whole(tmp_path: Path) -> None:
    data = write_data(tmp_path, [{"text": "Once upon a time"}])
    assert judge(data, tmp_path, assistant_only=False).status is Status.PASS
    (tmp_path / "other").mkdir()
    change = lambda one: {**one, "labels": [IGNORED if t == END else t for t in one["labels"]]}  # noqa: E731
    verdict = judge(data, tmp_path / "other", change, assistant_only=False)
    assert list(verdict.evidence["kinds"]) == [Kind.END_MASKED.value]
    assert verdict.sentence.endswith("sample 1 (line 1): '<|im_end|>' must be trained and is not")


def test_the_evidence_shows_tokens_trained_or_not_and_expected_or_not(talk: str, tmp_path: Path) -> None:
    verdict = judge(talk, tmp_path, lambda one: {**one, "labels": [IGNORED if t == END else t for t in one["labels"]]})
    (row,) = verdict.evidence["rows"]
    assert row["sample"] == "sample 1 (line 1)"
    text, trained, expected = row["tokens"][row["first_difference"]]
    assert (text, trained, expected) == ("<|im_end|>", False, True)
    assert "".join(token for token, is_, must in row["tokens"] if is_) == '{"name": "add"}It is 5.8.'
    assert row["tokens"][0][1:] == [False, None]


def test_evidence_is_bounded_whatever_is_wrong(tmp_path: Path) -> None:
    rows = [as_messages([("user", f"{n} " + "word after " * 70), ("assistant", "No. " * 70)]) for n in range(7)]
    verdict = judge(write_data(tmp_path, rows), tmp_path, lambda one: {**one, "labels": one["input_ids"]}, seq_len=400)
    shown = verdict.evidence["rows"]
    assert len(shown) == shown_tokens.SHOWN_ROWS == 5
    assert max(len(row["tokens"]) for row in shown) == shown_tokens.SHOWN_TOKENS == 200


def test_packed_documents_are_judged_one_by_one(tmp_path: Path) -> None:
    spec = make_spec("tools_sample", assistant_only=True, packing=True)
    examples = tokenize_all(spec)[:4]
    ids, labels = [one["input_ids"] for one in examples], [one["labels"] for one in examples]
    right = make_material(spec, [pack(ids, labels)], tmp_path)
    assert data_mask.judge(right).status is Status.PASS
    assert data_mask.judge(right).evidence["documents"] == 4
    (tmp_path / "wrong").mkdir()
    wrong = make_material(spec, [pack(ids, [*labels[:3], ids[3]])], tmp_path / "wrong")
    verdict = data_mask.judge(wrong)
    assert verdict.status is Status.FAIL
    assert "in 1 of 4 documents" in verdict.sentence
    assert "sample 4 (line 4)" in verdict.sentence


def shifted(batch: Batch, by: int) -> Batch:
    labels = torch.full_like(batch["labels"], IGNORED)
    labels[:, : labels.shape[1] - by] = batch["labels"][:, by:]
    return {**batch, "labels": labels}


def test_labels_that_are_shifted_before_the_model_are_right_where_the_loss_does_not_shift(
    talk: str, tmp_path: Path
) -> None:
    spec = make_spec(talk, assistant_only=True)
    batches = [shifted(batch, 1) for batch in batch_up(tokenize_all(spec))]
    for name in ("once", "twice"):
        (tmp_path / name).mkdir()
    once = make_material(spec, batches, tmp_path / "once", targets=lambda batch: batch["labels"])
    assert data_mask.judge(once).status is Status.PASS
    verdict = data_mask.judge(make_material(spec, batches, tmp_path / "twice"))
    assert verdict.status is Status.FAIL
    assert verdict.sentence == (
        "the labels are shifted twice: at step 1, micro-batch 0 they are 1 ahead of the tokens, and the loss pairs "
        "each position with the token 2 ahead; position t must be trained on token t + 1"
    )
    assert verdict.measurements[3].value == 1.0


def test_labels_that_nobody_shifts_and_labels_of_other_tokens_fail(talk: str, tmp_path: Path) -> None:
    spec = make_spec(talk, assistant_only=True)
    batches = batch_up(tokenize_all(spec))
    for name in ("still", "other"):
        (tmp_path / name).mkdir()
    still = make_material(spec, batches, tmp_path / "still", targets=lambda batch: batch["labels"])
    assert data_mask.judge(still).sentence.startswith(f"{Kind.NOT_SHIFTED.value}: ")
    (batch,) = batches
    other = {**batch, "labels": torch.where(batch["labels"] == IGNORED, IGNORED, batch["labels"] + 1)}
    verdict = data_mask.judge(make_material(spec, [other], tmp_path / "other"))
    assert verdict.sentence.startswith(f"{Kind.OTHER_LABELS.value}: at step 1, micro-batch 0 they are no shift")


def test_padding_that_is_trained_is_counted(tmp_path: Path) -> None:
    spec = make_spec("tools_sample", assistant_only=True, seq_len=256)
    (batch,) = batch_up(tokenize_all(spec)[:2])
    padding = batch["attention_mask"] == 0
    assert int(padding.sum()) > 0
    wrong = {**batch, "labels": torch.where(padding, batch["input_ids"], batch["labels"])}
    verdict = data_mask.judge(make_material(spec, [wrong], tmp_path))
    assert verdict.status is Status.FAIL
    assert verdict.measurements[2].value == float(padding.sum())
    assert list(verdict.evidence["kinds"]) == [Kind.PADDING_TRAINED.value]


def test_a_row_with_wrong_tokens_is_still_judged_where_its_tokens_are_the_samples(talk: str, tmp_path: Path) -> None:
    def double(one: Example) -> Example:
        return {"input_ids": [1, *one["input_ids"]], "labels": [IGNORED, *one["labels"]]}

    assert judge(talk, tmp_path, double).status is Status.PASS
    (tmp_path / "wrong").mkdir()
    verdict = judge(talk, tmp_path / "wrong", lambda one: {**double(one), "labels": [1, *one["input_ids"]]})
    assert {Kind.TOOL_TRAINED.value, Kind.PROMPT_TRAINED.value} <= set(verdict.evidence["kinds"])


TEMPLATES = {
    "think": "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\\n') }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "trim": "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }} <|im_end|>\n{% endfor %}",
    "starts": "{% for m in messages %}{% if m.content.startswith('And') %}<|im_start|>again\n{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "no end": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}<|im_end|>",
}


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_contents_are_found_in_templates_that_trim_rewrite_and_look_at_them(name: str, tmp_path: Path) -> None:
    model = Path(shutil.copytree(make_spec().model, tmp_path / "model"))
    (model / "chat_template.jinja").write_text(TEMPLATES[name])
    turns = [(role, f"<think>\nwell\n</think>\n\n{text}" if role == "assistant" else text) for role, text in TALK]
    data = write_data(tmp_path, [as_messages(turns if name == "think" else TALK)])
    dataset = read_dataset(replace(make_spec(data, assistant_only=True), model=model))
    text = dataset.texts[0]
    pieces = find_pieces(dataset.samples[0], text, dataset.tokenizer)
    assert "".join(text[piece.start : piece.stop] for piece in pieces) == text
    contents = [text[piece.start : piece.stop] for piece in pieces if piece.part is Part.CONTENT]
    assert contents == [content for _, content in TALK]
    ends = {(piece.role, text[piece.start : piece.stop]) for piece in pieces if piece.part is Part.END and piece.sure}
    space = " " if name == "trim" else ""
    if name != "no end":
        assert ("assistant", f"{space}<|im_end|>") in ends
    openings = [text[piece.start : piece.stop] for piece in pieces if piece.part is Part.OPENING]
    assert openings == (["<think>\n\n</think>\n\n"] if name == "think" else [])


def test_a_template_that_rewrites_contents_leaves_the_sample_open(talk: str, tmp_path: Path) -> None:
    model = Path(shutil.copytree(make_spec().model, tmp_path / "model"))
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content | upper }}<|im_end|>{% endfor %}")
    spec = replace(make_spec(talk), model=model)
    material = make_material(spec, batch_up(tokenize_all(spec, load(model))), tmp_path)
    verdict = data_mask.judge(with_settings(material, assistant_only=True))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == (
        "no label could be judged: sample 1 (line 1): the template rewrites the content of turn 1 (system), so its "
        "place is not known"
    )


def test_the_role_token_that_ends_a_turn_must_be_trained_where_generation_stops_at_it(tmp_path: Path) -> None:
    model = Path(shutil.copytree(make_spec().model, tmp_path / "model"))
    (model / "chat_template.jinja").write_text("{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}")
    data = write_data(tmp_path, [as_messages(TALK)])
    spec = replace(make_spec(data, assistant_only=True), model=model)
    assert read_dataset(spec).mark(0).expected.count(True) > 0
    starts = [place for place, token in enumerate(read_dataset(spec).documents[0]) if token == 1]
    behind_answers = [starts[turn + 1] for turn in (2, 4)]
    assert {read_dataset(spec).mark(0).expected[place] for place in behind_answers} == {None}
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert {read_dataset(spec).mark(0).expected[place] for place in behind_answers} == {True}


def test_what_was_not_recorded_or_implies_nothing_leaves_it_open(talk: str, tmp_path: Path) -> None:
    spec = make_spec(talk, assistant_only=True)
    (batch,) = batch_up(tokenize_all(spec))
    for name in ("labels", "shape", "silent"):
        (tmp_path / name).mkdir()
    bare = make_material(spec, [{"input_ids": batch["input_ids"]}], tmp_path / "labels")
    assert data_mask.judge(bare).sentence == (
        "no label could be judged: neither labels nor the loss's targets were recorded (step 1, micro-batch 0)"
    )
    longer = {**batch, "labels": torch.nn.functional.pad(batch["labels"], (0, 3), value=IGNORED)}
    verdict = data_mask.judge(make_material(spec, [longer], tmp_path / "shape"))
    assert verdict.status is Status.INCONCLUSIVE
    assert "labels have the shape" in verdict.sentence
    silent = make_spec(write_data(tmp_path / "silent", [as_messages(TALK[:2])]), assistant_only=True)
    verdict = data_mask.judge(make_material(silent, batch_up(tokenize_all(silent)), tmp_path / "silent"))
    assert verdict.sentence == "no captured row holds a token that is to be trained; raise seq_len or give answers"
    unknown = replace(bare, dataset=None, no_dataset="the samples cannot be rendered: no chat template")
    assert data_mask.judge(unknown).sentence == "the samples cannot be rendered: no chat template"
    crashed = replace(bare, run=replace(bare.run, capture=None))
    assert data_mask.judge(crashed).status is Status.INCONCLUSIVE


def test_where_labels_never_reach_the_model_the_losses_targets_are_judged(talk: str, tmp_path: Path) -> None:
    spec = make_spec(talk, assistant_only=True)
    (batch,) = batch_up(tokenize_all(spec))

    def forget(manifest: dict[str, Any]) -> None:
        manifest["tensors"] = [entry for entry in manifest["tensors"] if entry["name"] != "labels"]

    right = make_material(spec, [batch], tmp_path, edit=forget)
    assert data_mask.judge(right).status is Status.PASS
    (tmp_path / "wrong").mkdir()
    ends = {**batch, "labels": batch["labels"].masked_fill(batch["labels"] == END, IGNORED)}
    verdict = data_mask.judge(make_material(spec, [ends], tmp_path / "wrong", edit=forget))
    assert list(verdict.evidence["kinds"]) == [Kind.END_MASKED.value]


FAULTS = {
    "header-trained": {Kind.HEADER_TRAINED},
    "first-turn-only": {Kind.TURNS_MASKED},
    "last-turn-only": {Kind.TURNS_MASKED},
    "tool-turn-trained": {Kind.HEADER_TRAINED, Kind.TOOL_TRAINED, Kind.PROMPT_TRAINED},
}


@pytest.mark.parametrize("slug", list(FAULTS))
def test_a_fault_in_the_frameworks_own_mask_is_seen(
    slug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inject(slug, monkeypatch)
    verdict = judge("tools_sample", tmp_path, seq_len=256)
    assert fault(slug).marker in capsys.readouterr().err
    assert verdict.status is Status.FAIL
    assert set(verdict.evidence["kinds"]) == {kind.value for kind in FAULTS[slug]}
    assert (verdict.check, verdict.pattern) == (fault(slug).check, fault(slug).pattern)


def test_the_collator_of_a_trainer_that_takes_ends_for_padding_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    from workers.frameworks.transformers.train import collate

    spec = make_spec("tools_sample", assistant_only=True)
    inject("eos-masked-as-pad", monkeypatch)
    trainer = Trainer(
        model=AutoModelForCausalLM.from_pretrained(spec.model),
        args=TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[], save_strategy="no"),
        data_collator=lambda rows: collate(rows, pad_token_id=0),
        processing_class=load(spec.model),
    )
    batch = trainer.data_collator(tokenize_all(spec)[:4])
    verdict = data_mask.judge(make_material(spec, [batch], tmp_path))
    assert fault("eos-masked-as-pad").marker in capsys.readouterr().err
    assert list(verdict.evidence["kinds"]) == [Kind.END_MASKED.value]
