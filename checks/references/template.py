"""Rendering and tokenising an example without the framework: jinja2 and tokenizers, no transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Encoding, Tokenizer

from checks.errors import BadRequest
from checks.samples import Sample

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
_OPENING, _CLOSING = (f"<{uuid4().hex}>" for _ in range(2))
"""around what a template's generation blocks write; no text holds them"""


@dataclass(frozen=True)
class RenderedDocument:
    """One example as the model should read it, whole: truncation to seq_len is the caller's."""

    text: str
    token_ids: tuple[int, ...]
    assistant: tuple[bool, ...]
    """a token each: True where assistant-only training learns it (the template's generation blocks, a completion)"""


@dataclass(frozen=True)
class ChatTokenizer:
    """A checkpoint's tokenizer file, its chat template and the special tokens that templates name."""

    directory: Path
    tokenizer: Tokenizer
    template: str | None
    special_tokens: Mapping[str, str]
    now: datetime | None = None
    """the time that templates are told, of the machine that trained; None for the present"""

    @property
    def eos_token(self) -> str:
        """End of sequence; raises BadRequest where the tokenizer names none."""
        token = self.special_tokens.get("eos_token")
        if token is None:
            found = "names no eos_token"
            raise BadRequest(f"model {self.directory / 'tokenizer_config.json'}", found, "add eos_token")
        return token

    @property
    def pad_token_id(self) -> int | None:
        """Id of the padding token, or None where the tokenizer names none."""
        token = self.special_tokens.get("pad_token")
        return None if token is None else self.tokenizer.token_to_id(token)


def load_tokenizer(directory: Path, *, now: datetime | None = None) -> ChatTokenizer:
    """Read tokenizer.json, tokenizer_config.json and the chat template; raises BadRequest naming the file."""
    file = directory / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for every kind of bad file
        reason = str(error).splitlines()[0].rstrip(".")
        raise BadRequest(f"model {file}", f"cannot be read ({reason})", "save a fast tokenizer there") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = _read_object(directory / "tokenizer_config.json")
    special = {name: _read_token(config.get(name)) for name in _SPECIAL_TOKENS}
    return ChatTokenizer(
        directory=directory,
        tokenizer=tokenizer,
        template=_read_template(directory, config),
        special_tokens={name: token for name, token in special.items() if token is not None},
        now=now,
    )


def render_document(sample: Sample, tokenizer: ChatTokenizer) -> RenderedDocument:
    """Render and tokenise one example as the frameworks are asked to.

    Messages go through the chat template, which writes every special token itself. Text, and prompt with completion,
    get the end-of-sequence token unless they end in it (trl/trainer/sft_trainer.py, `add_eos`). Raises BadRequest when
    the template is missing or fails.
    """
    if sample.form == "messages":
        return _render_messages(sample, tokenizer)
    whole = sample.text if sample.form == "text" else sample.prompt + sample.completion
    text = whole if whole.endswith(tokenizer.eos_token) else whole + tokenizer.eos_token
    ids = tokenizer.tokenizer.encode(text).ids
    context = len(ids)
    if sample.form == "prompt_completion":
        # The prompt's last token may merge with the completion's first: the completion starts where they part.
        context = _count_shared(tokenizer.tokenizer.encode(sample.prompt).ids, ids)
    return RenderedDocument(text, tuple(ids), tuple(position >= context for position in range(len(ids))))


def render_messages(
    messages: Sequence[tuple[str, str]], tokenizer: ChatTokenizer, *, add_generation_prompt: bool = False
) -> str:
    """The text of a conversation, (role, content) a turn, in the checkpoint's template.

    Raises:
        BadRequest: the checkpoint has no template.
        jinja2.TemplateError: the template refuses the conversation.
    """
    marked = _render_marked(messages, tokenizer, add_generation_prompt=add_generation_prompt)
    return marked.replace(_OPENING, "").replace(_CLOSING, "")


def _render_messages(sample: Sample, tokenizer: ChatTokenizer) -> RenderedDocument:
    try:
        marked = _render_marked(sample.messages, tokenizer, add_generation_prompt=False)
    except jinja2.TemplateError as error:
        found = f"its chat template fails on row {sample.index + 1} ({error})"
        raise BadRequest(f"model {tokenizer.directory}", found, "correct the template or the row") from None
    text, spans = _take_markers(marked, _OPENING, _CLOSING)
    encoding = tokenizer.tokenizer.encode(text, add_special_tokens=False)
    return RenderedDocument(text, tuple(encoding.ids), _mark_tokens(encoding, spans))


def _render_marked(
    messages: Sequence[tuple[str, str]], tokenizer: ChatTokenizer, *, add_generation_prompt: bool
) -> str:
    if tokenizer.template is None:
        where = f"model {tokenizer.directory}"
        raise BadRequest(where, "has no chat template, and the data are messages", "add chat_template.jinja")
    context: dict[str, Any] = {
        **tokenizer.special_tokens,
        "messages": [{"role": role, "content": content} for role, content in messages],
        "tools": None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }
    if tokenizer.now is not None:
        context["strftime_now"] = tokenizer.now.strftime
    return _compile(tokenizer.template).render(context)


@lru_cache(maxsize=8)
def _compile(template: str) -> jinja2.Template:
    return _build_environment(_OPENING, _CLOSING).from_string(template)


def _mark_tokens(encoding: Encoding, spans: list[tuple[int, int]]) -> tuple[bool, ...]:
    """True for each token that holds a character of a span; spans and offsets count characters."""
    return tuple(
        any(start < stop_of_span and stop > start_of_span for start_of_span, stop_of_span in spans)
        for start, stop in encoding.offsets
    )


def _take_markers(marked: str, opening: str, closing: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without its markers, and the (start, stop) of what they enclosed."""
    text, spans = "", []
    head, *rest = marked.split(opening)
    text += head
    for part in rest:
        inside, after = part.split(closing, 1)
        spans.append((len(text), len(text) + len(inside)))
        text += inside + after
    return text, spans


def _count_shared(first: list[int], second: list[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(first), len(second)))


def _build_environment(opening: str, closing: str) -> ImmutableSandboxedEnvironment:
    """The environment that chat templates are written for (huggingface.co/docs/transformers/chat_templating_writing).

    `{% generation %}` blocks come out between `opening` and `closing`.
    """

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  jinja2 declares it as an instance attribute

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Callable[[], str]) -> str:
            return opening + caller() + closing

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # jinja2's own tojson escapes HTML characters, which a prompt must not.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _read_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    """The default chat template: chat_template.jinja, else the tokenizer's configuration."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # named variants: [{"name": …, "template": …}]
        template = {item["name"]: item["template"] for item in template}.get("default")
    return template if isinstance(template, str) else None


def _read_object(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise BadRequest(f"model {file}", f"is not JSON ({error})", "restore the file") from None
    if not isinstance(content, dict):
        raise BadRequest(f"model {file}", f"is a JSON {type(content).__name__}", "give an object of settings")
    return content


def _read_token(value: Any) -> str | None:
    """A special token, stored as a string or as an object of the tokenizers library."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None
