"""The independent rendering equals transformers' own, token by token and mask by mask."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from checks.errors import BadRequest
from checks.models.tiny import build_tiny
from checks.references.template import load_tokenizer, render_document
from checks.samples import PREFERENCES, SAMPLE_FILES, Sample, read_samples

CHAT = Sample(
    0, 1, "messages", messages=(("user", "2+2? é"), ("assistant", "4 <ok> ü"), ("user", "Sure?"), ("assistant", "Yes"))
)
# Generation markers with and without whitespace control, loop controls, tojson and a block set: what templates use.
TEMPLATES = {
    "trimmed": "{%- for m in messages %}{%- if m.role == 'assistant' %}"
    "{%- generation -%}\n{{ m.content }}{{ eos_token }}{%- endgeneration %}\n"
    "{% else %}\n{{ m.role }}: {{ m.content | tojson }}\n{% endif %}{% endfor %}",
    "controls": "{% for m in messages %}{% if loop.index0 == 2 %}{% break %}{% endif %}[{{ m.role }}]"
    "{% generation %}{% set text = m.content | trim %}{{ text }}{% endgeneration %}{% endfor %}{{ pad_token }}",
    "without": "{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}",
    "nothing": "",
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(build_tiny("qwen3"), tmp_path / "model"))


def messages_of(sample: Sample) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in sample.messages]


def render_with_transformers(directory: Path, sample: Sample) -> tuple[str, list[int], list[bool]]:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    text = tokenizer.apply_chat_template(messages_of(sample), tokenize=False)
    rendered = tokenizer.apply_chat_template(messages_of(sample), return_dict=True, return_assistant_tokens_mask=True)
    return text, rendered["input_ids"], [bool(kept) for kept in rendered["assistant_masks"]]


@pytest.mark.parametrize("name", [name for name in SAMPLE_FILES if name != PREFERENCES])
def test_the_samples_render_as_transformers_renders_them(name: str) -> None:
    directory = build_tiny("qwen3")
    tokenizer = load_tokenizer(directory)
    for sample in read_samples(name):
        ours = render_document(sample, tokenizer)
        assert (ours.text, list(ours.token_ids), list(ours.assistant)) == render_with_transformers(directory, sample)
        assert 0 < sum(ours.assistant) < len(ours.token_ids)


@pytest.mark.parametrize("template", list(TEMPLATES.values()), ids=list(TEMPLATES))
def test_other_templates_render_as_transformers_renders_them(directory: Path, template: str) -> None:
    (directory / "chat_template.jinja").write_text(template)
    ours = render_document(CHAT, load_tokenizer(directory))
    text, ids, _ = render_with_transformers(directory, CHAT)
    assert (ours.text, list(ours.token_ids)) == (text, ids)


def test_the_assistant_mask_covers_the_content_and_its_closing_token() -> None:
    tokenizer = load_tokenizer(build_tiny("qwen3"))
    rendered = render_document(CHAT, tokenizer)
    learned = [token for token, kept in zip(rendered.token_ids, rendered.assistant, strict=True) if kept]
    assert tokenizer.tokenizer.decode(learned, skip_special_tokens=False) == "4 <ok> ü<|im_end|>Yes<|im_end|>"


@pytest.mark.parametrize("variants", [False, True])
def test_a_template_in_the_tokenizer_configuration_is_found(directory: Path, variants: bool) -> None:
    template: Any = (directory / "chat_template.jinja").read_text()
    expected = render_document(CHAT, load_tokenizer(directory))
    (directory / "chat_template.jinja").unlink()
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": template}]
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config |= {"chat_template": named if variants else template, "eos_token": {"content": "<|im_end|>"}}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    assert render_document(CHAT, load_tokenizer(directory)) == expected
    assert load_tokenizer(directory).eos_token == "<|im_end|>"


def test_plain_text_ends_in_one_end_of_sequence_token() -> None:
    tokenizer = load_tokenizer(build_tiny("qwen3"))
    for text in ("Once upon", "Once upon<|im_end|>"):
        rendered = render_document(Sample(0, 1, "text", text=text), tokenizer)
        assert rendered.text == "Once upon<|im_end|>"
        assert rendered.token_ids[-1] == 2
        assert rendered.token_ids.count(2) == 1
        assert not any(rendered.assistant)


def test_a_completion_is_what_follows_the_prompts_tokens() -> None:
    tokenizer = load_tokenizer(build_tiny("qwen3"))
    rendered = render_document(Sample(0, 1, "prompt_completion", prompt="7 hens", completion=" lay"), tokenizer)
    learned = [token for token, kept in zip(rendered.token_ids, rendered.assistant, strict=True) if kept]
    assert tokenizer.tokenizer.decode(learned, skip_special_tokens=False) == " lay<|im_end|>"


def test_a_completion_that_merges_with_the_prompt_starts_where_the_tokens_part() -> None:
    tokenizer = load_tokenizer(build_tiny("qwen3"))
    rendered = render_document(Sample(0, 1, "prompt_completion", prompt="He", completion="r"), tokenizer)
    whole = tokenizer.tokenizer.encode("Her<|im_end|>").ids
    prompt = tokenizer.tokenizer.encode("He").ids
    shared = sum(1 for one, other in zip(prompt, whole, strict=False) if one == other)
    assert list(rendered.token_ids) == whole
    assert rendered.assistant.index(True) == shared


def test_the_padding_token_has_its_id() -> None:
    assert load_tokenizer(build_tiny("qwen3")).pad_token_id == 0


def test_truncation_in_the_tokenizer_file_does_not_shorten_a_document(directory: Path) -> None:
    content = json.loads((directory / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (directory / "tokenizer.json").write_text(json.dumps(content))
    assert len(render_document(CHAT, load_tokenizer(directory)).token_ids) > 20


def test_what_is_missing_is_named(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()
    with pytest.raises(BadRequest, match=r"has no chat template, and the data are messages; add chat_template.jinja"):
        render_document(CHAT, load_tokenizer(directory))
    (directory / "tokenizer_config.json").write_text("{}")
    with pytest.raises(BadRequest, match=r"tokenizer_config.json: names no eos_token; add eos_token"):
        render_document(Sample(0, 1, "text", text="a"), load_tokenizer(directory))
    (directory / "tokenizer_config.json").write_text("{")
    with pytest.raises(BadRequest, match=r"tokenizer_config.json: is not JSON"):
        load_tokenizer(directory)
    (directory / "tokenizer_config.json").write_text("[]")
    with pytest.raises(BadRequest, match=r"tokenizer_config.json: is a JSON list"):
        load_tokenizer(directory)
    (directory / "tokenizer.json").write_text("{")
    with pytest.raises(BadRequest, match=r"tokenizer.json: cannot be read \(.*\); save a fast tokenizer there"):
        load_tokenizer(directory)


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('roles must alternate') }}", "{% for %}", "{{ messages.x.y }}"]
)
def test_a_template_that_fails_is_named_with_the_row(directory: Path, template: str) -> None:
    (directory / "chat_template.jinja").write_text(template)
    with pytest.raises(BadRequest, match=r"its chat template fails on row 1 \(.+\); correct the template or the row"):
        render_document(CHAT, load_tokenizer(directory))
