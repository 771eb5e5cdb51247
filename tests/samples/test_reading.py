"""Reading examples in every form and container, and refusing what is not one, by file and line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given
from hypothesis import strategies as st

from checks.errors import BadRequest
from checks.samples import SAMPLE_FILES, Sample, read_samples, resolve_data

CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
CHAT_SAMPLE = (("user", "Hi"), ("assistant", "Hello"))


def jsonl(directory: Path, rows: Sequence[Any], name: str = "data.jsonl") -> Path:
    path = directory / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("row", "sample"),
    [
        (CHAT, Sample(0, 1, "messages", messages=CHAT_SAMPLE)),
        ({"id": "a-1", "source": "x", **CHAT}, Sample(0, 1, "messages", messages=CHAT_SAMPLE)),
        ({"question": "1?", "answer": "#### 2"}, Sample(0, 1, "messages", (("user", "1?"), ("assistant", "#### 2")))),
        ({"prompt": "One ", "completion": "two"}, Sample(0, 1, "prompt_completion", prompt="One ", completion="two")),
        ({"prompt": "", "completion": "two"}, Sample(0, 1, "prompt_completion", completion="two")),
        ({"text": "Once", "n": 3}, Sample(0, 1, "text", text="Once")),
        # A richer form wins, and a null column is one that is not there.
        ({**CHAT, "prompt": "p", "text": "t"}, Sample(0, 1, "messages", messages=CHAT_SAMPLE)),
        ({"messages": None, "text": "t"}, Sample(0, 1, "text", text="t")),
    ],
)  # fmt: skip
def test_a_row_is_read_in_its_form(tmp_path: Path, row: dict[str, Any], sample: Sample) -> None:
    assert read_samples(jsonl(tmp_path, [row])) == (sample,)


def test_rows_keep_their_order_and_lines_past_blank_ones(tmp_path: Path) -> None:
    path = jsonl(tmp_path, ['\ufeff{"text": "a"}', "", '{"text": "b"}', "   ", '{"text": "c"}'])
    assert [(s.index, s.line, s.text) for s in read_samples(path)] == [(0, 1, "a"), (1, 3, "b"), (2, 5, "c")]
    assert [s.text for s in read_samples(path, limit=2)] == ["a", "b"]


def test_rows_after_the_limit_are_not_looked_at(tmp_path: Path) -> None:
    assert len(read_samples(jsonl(tmp_path, [{"text": "a"}, "broken"]), limit=1)) == 1


def test_a_line_may_be_huge(tmp_path: Path) -> None:
    text = "word " * 1_000_000
    assert read_samples(jsonl(tmp_path, [{"text": text}]))[0].text == text


def test_parquet_reads_as_jsonl_does(tmp_path: Path) -> None:
    rows = [CHAT, {"messages": [{"role": "user", "content": "Bye"}]}]
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert [s.messages for s in read_samples(path)] == [CHAT_SAMPLE, (("user", "Bye"),)]
    assert [s.line for s in read_samples(path)] == [None, None]


def test_a_saved_data_set_reads_as_jsonl_does(tmp_path: Path) -> None:
    rows = [{"question": "1+1?", "answer": "2"}]
    Dataset.from_list(rows).save_to_disk(tmp_path / "set")
    DatasetDict({"test": Dataset.from_list([{"text": "no"}]), "train": Dataset.from_list(rows)}).save_to_disk(
        tmp_path / "splits"
    )
    expected = (Sample(0, None, "messages", messages=(("user", "1+1?"), ("assistant", "2"))),)
    assert read_samples(tmp_path / "set") == read_samples(tmp_path / "splits") == expected


def test_a_shipped_file_is_found_by_name_unless_a_path_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_data("gsm8k_sample") == resolve_data("gsm8k_sample.jsonl") == SAMPLE_FILES["gsm8k_sample"]
    assert len(read_samples("tulu3_sample", limit=5)) == 5
    mine = jsonl(tmp_path, [{"text": "mine"}], name="gsm8k_sample.jsonl")
    assert resolve_data("gsm8k_sample.jsonl") == mine
    with pytest.raises(BadRequest) as caught:
        resolve_data("nothing.jsonl")
    assert str(caught.value) == (
        "data: 'nothing.jsonl' does not exist; "
        "give an existing file or directory, or one of gsm8k_sample, preferences_sample, tools_sample, tulu3_sample."
    )


GOOD = '{"text": "fine"}'


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], "{p}: holds no example; give a file with at least one row."),
        (["", "  "], "{p}: holds no example; give a file with at least one row."),
        ([GOOD, "{"], "{p} line 2: is not JSON (Expecting property name enclosed in double quotes at column 2); write"),
        (
            [GOOD, "", "nonsense"],
            "{p} line 3: is not JSON (Expecting value at column 1); write one JSON object a line.",
        ),
        ([GOOD, "[1]"], "{p} line 2: is a JSON list; write one JSON object a line."),
        (["[" * 100_000], "{p} line 1: is nested too deeply; write one flat JSON object a line."),
        (
            ['{"texte": 1, "b": 2}'],
            "{p} line 1: no usable column (columns found: b, texte); give messages (role, content",
        ),
        (["{}"], "{p} line 1: no usable column (columns found: none); give messages"),
        (['{"prompt": "p"}'], "{p} line 1: no usable column (columns found: prompt); give messages"),
        ([GOOD, '{"text": 3}'], "{p} line 2: text is a number; give text as a string."),
        (['{"text": ["a"]}'], "{p} line 1: text is a list; give text as a string."),
        (['{"text": ""}'], "{p} line 1: text is empty; give text at least one character or leave the row out."),
        (['{"prompt": {}, "completion": "c"}'], "{p} line 1: prompt is an object; give prompt as a string."),
        (['{"prompt": "p", "completion": ""}'], "{p} line 1: completion is empty; give"),
        (['{"question": "q", "answer": true}'], "{p} line 1: answer is a boolean; give answer as a string."),
        (['{"messages": "hi"}'], "{p} line 1: messages is a string; give messages as a list of {{role, content}}."),
        (
            ['{"messages": []}'],
            "{p} line 1: messages is an empty list; give at least one message or leave the row out.",
        ),
        (['{"messages": ["hi"]}'], "{p} line 1: message 1 is a string; give each message as {{role, content}}."),
        (['{"messages": [{"role": "user"}]}'], "{p} line 1: message 1 has no content; give each message as"),
        (['{"messages": [{"content": "x"}]}'], "{p} line 1: message 1 has no role; give each message as"),
        (
            ['{"messages": [{"role": "", "content": "x"}]}'],
            "{p} line 1: role of message 1 is empty; give a role such as",
        ),
        (
            ['{"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": null}]}'],
            "{p} line 1: content of message 2 is null; give content as a string.",
        ),
        (
            [GOOD, json.dumps(CHAT)],
            "{p} line 2: has messages where the rows before have text; keep one form in a file and split",
        ),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path: Path, rows: list[str], sentence: str) -> None:
    path = jsonl(tmp_path, rows)
    with pytest.raises(BadRequest) as caught:
        read_samples(path)
    assert str(caught.value).startswith("data " + sentence.format(p=path))
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_utf8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"text": "fine"}\n{"text": "caf\xe9"}\n')
    with pytest.raises(BadRequest, match="line 2: byte 14 is not UTF-8; save the file as UTF-8"):
        read_samples(path)
    path.write_bytes('{"text": "café"}\n{"text": "fine"}\n'.encode("utf-16"))
    with pytest.raises(BadRequest, match="line 1: byte 1 is not UTF-8; save the file as UTF-8"):
        read_samples(path)


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    for name, found in (("data.csv", "the ending .csv is not known"), ("data", "it has no ending")):
        (tmp_path / name).write_text("text\n")
        with pytest.raises(BadRequest) as caught:
            read_samples(tmp_path / name)
        assert caught.value.found == found


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    path.write_bytes(b"PAR1 and then nothing of the kind")
    with pytest.raises(BadRequest, match=r"data.parquet: is no readable Parquet file \(.*\); write the file again"):
        read_samples(path)


def test_a_parquet_row_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", ""]}), path)
    with pytest.raises(BadRequest, match=r"data\.parquet row 2: text is empty"):
        read_samples(path)


def test_a_directory_that_is_no_data_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"is a directory but no saved data set; give a \.jsonl or \.parquet file"):
        read_samples(tmp_path)
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(BadRequest, match=r"cannot be loaded \(.*\); save the data set again"):
        read_samples(tmp_path)


def test_a_data_set_without_train_split_lists_its_splits(tmp_path: Path) -> None:
    DatasetDict({"test": Dataset.from_list([{"text": "x"}])}).save_to_disk(tmp_path / "splits")
    with pytest.raises(BadRequest, match=r"has no train split \(splits: test\); give one split's directory"):
        read_samples(tmp_path / "splits")


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(BadRequest, match=f"limit: {limit} rows asked"):
        read_samples("gsm8k_sample", limit=limit)


messages = st.lists(st.tuples(st.text(min_size=1), st.text()), min_size=1, max_size=4)


@given(st.lists(messages, min_size=1, max_size=5))
def test_any_conversation_survives_a_file(tmp_path_factory: pytest.TempPathFactory, conversations: Any) -> None:
    rows = [{"messages": [{"role": role, "content": content} for role, content in one]} for one in conversations]
    path = jsonl(tmp_path_factory.mktemp("data"), rows)
    assert [list(sample.messages) for sample in read_samples(path)] == conversations
