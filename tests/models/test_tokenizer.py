"""The tiny tokenizer: deterministic, lossless, and read alike by tokenizers and by every family's class."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from checks.models import FAMILIES
from checks.models.tiny import build_tiny
from checks.models.tokenizer import CHAT_TEMPLATE, train_tokenizer
from checks.samples import read_samples


def test_training_twice_gives_the_same_bytes() -> None:
    assert train_tokenizer() == train_tokenizer.__wrapped__()


def test_the_vocabulary_is_full_and_the_special_tokens_come_first() -> None:
    tokenizer = Tokenizer.from_str(train_tokenizer())
    assert tokenizer.get_vocab_size() == 512
    assert [tokenizer.token_to_id(token) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] == [0, 1, 2]
    assert tokenizer.encode("<|im_start|>user").ids[0] == 1


def test_samples_take_about_half_a_token_a_character() -> None:
    tokenizer = Tokenizer.from_str(train_tokenizer())
    contents = [content for sample in read_samples("tulu3_sample") for _, content in sample.messages]
    ratio = sum(len(tokenizer.encode(content).ids) for content in contents) / sum(map(len, contents))
    assert 0.4 < ratio < 0.6


@given(st.text(alphabet=st.characters(codec="ascii")))
def test_text_survives_encoding(text: str) -> None:
    tokenizer = Tokenizer.from_str(train_tokenizer())
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_family_reads_the_tokenizer_as_its_file_says(family: str) -> None:
    loaded = AutoTokenizer.from_pretrained(build_tiny(family))
    plain = Tokenizer.from_str(train_tokenizer())
    contents = [content for sample in read_samples("tulu3_sample") for _, content in sample.messages]
    assert [loaded(content)["input_ids"] for content in contents] == [plain.encode(content).ids for content in contents]
    assert (loaded.eos_token_id, loaded.pad_token_id, loaded.model_max_length) == (2, 0, 2048)
    assert loaded.chat_template == CHAT_TEMPLATE
