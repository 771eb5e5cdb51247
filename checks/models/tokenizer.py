"""The tiny models' tokenizer: byte-level BPE trained on the shipped samples, with a chat template for training."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from checks.models.families import POSITIONS, VOCAB_SIZE
from checks.samples import SAMPLE_FILES, read_samples

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
"""ids 0, 1, 2; END closes every turn and is the end-of-sequence token"""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['role'] == 'assistant' -%}"
    "{% generation %}{{- message['content'] + '<|im_end|>' -}}{% endgeneration %}"
    "{%- else -%}"
    "{{- message['content'] + '<|im_end|>' -}}"
    "{%- endif -%}"
    "{{- '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""ChatML. The generation block holds the closing <|im_end|>, so that assistant-only training learns to stop."""


TRAINED_ON = ("gsm8k_sample", "tulu3_sample")
"""Sample files that the vocabulary is made from; another file would change every tiny model's."""

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen2's, with its NFC normaliser: transformers 5 loads every qwen2 checkpoint with that class, which puts this
pattern in place of the file's (models/qwen2/tokenization_qwen2.py), so that only this one reads the same everywhere"""


@cache
def train_tokenizer() -> str:
    """Return the tokenizer as the text of a `tokenizer.json`: 512 tokens, the same bytes on every run."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, START, END],
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return str(tokenizer.to_str(pretty=True))


def write_tokenizer(directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into an existing directory."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": POSITIONS,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    (directory / "tokenizer.json").write_text(train_tokenizer(), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def _corpus() -> list[str]:
    samples = [sample for name in TRAINED_ON for sample in read_samples(SAMPLE_FILES[name])]
    return [f"{role}\n{content}" for sample in samples for role, content in sample.messages]
