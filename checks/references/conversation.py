"""What each character of a rendered example belongs to: a turn's content, its end, or the template's own text.

Contents are found in the text by rendering the conversation once more with a marker on either side of every content.
Where the template rewrites a content (or looks at how it begins), a content is what stands between the renderings
before and after it, or else where its words stand in the text. Neither the template's `generation` blocks nor any
token is consulted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import uuid4

import jinja2

from checks.references.template import ChatTokenizer, render_messages
from checks.samples import Sample

ANSWERING = frozenset({"assistant", "completion", "text"})
"""roles whose words a run learns"""

_MARK = uuid4().hex
"""stands in contents while they are looked for; no text holds it"""

Span = tuple[int, int]


class Part(StrEnum):
    """What a stretch of the rendering is to its turn."""

    HEADER = "header"
    """the template's own text before a turn: role, separators, a default system message"""
    OPENING = "opening"
    """what the template writes behind the assistant's header that a model may have to write itself: a think block"""
    CONTENT = "content"
    END = "end"
    """up to the special token that ends the turn, that included"""
    TAIL = "tail"
    """white space after the end of a turn; behind the last turn, all that is left"""


@dataclass(frozen=True)
class Piece:
    """Characters `start` to `stop` of the rendering. `turn`: the message, from 0; −1 before the first.

    `sure`: False for an end of which it is not known that a model is to stop at it.
    """

    start: int
    stop: int
    part: Part
    role: str
    turn: int
    sure: bool = True

    @property
    def learned(self) -> bool | None:
        """Whether a run that learns the answers alone learns it; None where conventions differ."""
        if self.role not in ANSWERING or self.part is Part.HEADER:
            return False
        if self.part is Part.CONTENT:
            return True
        return True if self.part is Part.END and self.sure else None


class NoPieces(ValueError):
    """The contents cannot be found in the rendering; `str()` is the reason, one sentence without a full stop."""


def find_pieces(sample: Sample, text: str, tokenizer: ChatTokenizer) -> tuple[Piece, ...]:
    """Cut the rendering of a sample into pieces that cover it from end to end.

    Raises:
        NoPieces: the template rewrites a content beyond recognition.
    """
    if sample.form == "messages":
        return tuple(_pieces_of_turns(sample.messages, text, tokenizer))
    whole = sample.text if sample.form == "text" else sample.prompt + sample.completion
    prompt = len(sample.prompt)
    role = "text" if sample.form == "text" else "completion"
    pieces = (
        Piece(0, prompt, Part.CONTENT, "prompt", 0),
        Piece(prompt, len(whole), Part.CONTENT, role, 1),
        Piece(len(whole), len(text), Part.END, role, 1),
    )
    return tuple(piece for piece in pieces if piece.start < piece.stop)


def find_generation_prompt(messages: Sequence[tuple[str, str]], tokenizer: ChatTokenizer) -> str:
    """What the template writes to make the assistant answer these messages; empty where that cannot be told."""
    try:
        plain = render_messages(messages, tokenizer)
        asking = render_messages(messages, tokenizer, add_generation_prompt=True)
    except (jinja2.TemplateError, TypeError, ValueError):
        return ""
    return asking[len(plain) :] if asking.startswith(plain) else ""


def list_special_tokens(tokenizer: ChatTokenizer) -> tuple[str, ...]:
    """Texts of the tokens that the tokenizer never splits and that no ordinary text gives, the longest first."""
    added = tokenizer.tokenizer.get_added_tokens_decoder().values()
    named = {token.content for token in added if token.special} | set(tokenizer.special_tokens.values())
    return tuple(sorted((token for token in named if token.strip()), key=len, reverse=True))


def _pieces_of_turns(messages: Sequence[tuple[str, str]], text: str, tokenizer: ChatTokenizer) -> Iterator[Piece]:
    spans = find_contents(messages, text, tokenizer)
    answering = next((turn for turn, (role, _) in enumerate(messages) if role in ANSWERING), 0)
    prompt = find_generation_prompt(messages[:answering], tokenizer) if answering else ""
    special = list_special_tokens(tokenizer)
    stops = _list_stops(tokenizer) | _end_of_last_answer(messages, spans, text, special)
    before = Piece(0, 0, Part.CONTENT, "", -1)
    for turn, (start, stop) in enumerate(spans):
        role = messages[turn][0]
        answers = prompt if role in ANSWERING else ""
        yield from _pieces_between(before, start, role, text, prompt=answers, special=special, stops=stops)
        before = Piece(start, stop, Part.CONTENT, role, turn)
        if start < stop:
            yield before
    end = _find_end(text[before.stop :], special)
    cut = before.stop + len(end or "")
    if end:
        sure = any(end.endswith(token) for token in stops)
        yield Piece(before.stop, cut, Part.END, before.role, before.turn, sure)
    if cut < len(text):
        yield Piece(cut, len(text), Part.TAIL, before.role, before.turn)


def _pieces_between(
    before: Piece, start: int, role: str, text: str, *, prompt: str, special: Sequence[str], stops: frozenset[str]
) -> Iterator[Piece]:
    """The pieces from the end of one content to the start of the next: end, tail, header, opening."""
    cut = before.stop
    if before.turn >= 0 and (end := _find_end(text[cut:start], special)):
        cut += len(end)
        yield Piece(before.stop, cut, Part.END, before.role, before.turn, any(end.endswith(t) for t in stops))
    opening = start
    if prompt and (place := text.rfind(prompt, cut, start)) >= 0:
        opening = place + len(prompt)
    blank = cut + len(text[cut:opening]) - len(text[cut:opening].lstrip())
    if before.turn >= 0 and cut < blank:
        yield Piece(cut, blank, Part.TAIL, before.role, before.turn)
        cut = blank
    if cut < opening:
        yield Piece(cut, opening, Part.HEADER, role, before.turn + 1)
    if opening < start:
        yield Piece(opening, start, Part.OPENING, role, before.turn + 1)


def _find_end(between: str, special: Sequence[str]) -> str:
    """The beginning of what follows a content, up to its first special token; empty where words come before one."""
    if not special:
        return ""
    found = re.match(r"\s*(?:" + "|".join(map(re.escape, special)) + ")", between)
    return found.group() if found else ""


def _end_of_last_answer(
    messages: Sequence[tuple[str, str]], spans: Sequence[Span], text: str, special: Sequence[str]
) -> frozenset[str]:
    """The special token that closes the whole conversation: where it closes other answers too, they end in it."""
    if not messages or messages[-1][0] not in ANSWERING:
        return frozenset()
    end = _find_end(text[spans[-1][1] :], special).strip()
    return frozenset({end} if end else ())


def _list_stops(tokenizer: ChatTokenizer) -> frozenset[str]:
    """Texts of the tokens at which generation stops, as the checkpoint says it."""
    ids: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        file = tokenizer.directory / name
        content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        stated = content.get("eos_token_id")
        ids |= set(stated) if isinstance(stated, list) else {stated} if isinstance(stated, int) else set()
    texts = {tokenizer.tokenizer.id_to_token(number) for number in ids} | {tokenizer.special_tokens.get("eos_token")}
    return frozenset(text for text in texts if text)


def find_contents(messages: Sequence[tuple[str, str]], text: str, tokenizer: ChatTokenizer) -> tuple[Span, ...]:
    """(start, stop) of every message's content in the rendering, without the white space around it.

    Raises:
        NoPieces: a content cannot be found.
    """
    together = _between_marks(messages, text, tokenizer)
    if together is not None:
        return together
    spans: list[Span] = []
    for turn in range(len(messages)):
        least = spans[-1][1] if spans else 0
        span = _between_renderings(messages, turn, text, tokenizer)
        if span is None or span[0] < least:
            span = _by_words(messages[turn][1], text, least)
        if span is None:
            role = messages[turn][0]
            raise NoPieces(f"the template rewrites the content of turn {turn + 1} ({role}), so its place is not known")
        spans.append(span)
    return tuple(spans)


def _between_marks(messages: Sequence[tuple[str, str]], text: str, tokenizer: ChatTokenizer) -> tuple[Span, ...] | None:
    """All contents at once; None where the marks change more of the text than themselves."""
    marked = [
        (role, _wrap(content, f"{_MARK}{turn}a", f"{_MARK}{turn}z")) for turn, (role, content) in enumerate(messages)
    ]
    try:
        rendered = render_messages(marked, tokenizer)
    except (jinja2.TemplateError, TypeError, ValueError):
        return None
    pieces = re.split(rf"{_MARK}(\d+)([az])", rendered)
    if "".join(pieces[::3]) != text:
        return None
    wanted = [(str(turn), side) for turn in range(len(messages)) for side in "az"]
    if list(zip(pieces[1::3], pieces[2::3], strict=True)) != wanted:
        return None
    edges, place = [], 0
    for part in pieces[:-1:3]:
        place += len(part)
        edges.append(place)
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def _wrap(content: str, opening: str, closing: str) -> str:
    """The content with marks inside its outer white space, which templates may trim."""
    core = content.strip()
    lead = content[: len(content) - len(content.lstrip())] if core else ""
    trail = content[len(content.rstrip()) :] if core else ""
    return f"{lead}{opening}{core}{closing}{trail}"


def _between_renderings(
    messages: Sequence[tuple[str, str]], turn: int, text: str, tokenizer: ChatTokenizer
) -> Span | None:
    """What stands where a mark stands when it takes the content's place; None where the rest changes with it."""
    role = messages[turn][0]
    try:
        rendered = render_messages([*messages[:turn], (role, _MARK), *messages[turn + 1 :]], tokenizer)
    except (jinja2.TemplateError, TypeError, ValueError):
        return None
    before, *rest = rendered.split(_MARK)
    if len(rest) != 1 or len(before) + len(rest[0]) > len(text):
        return None
    if not text.startswith(before) or not text.endswith(rest[0]):
        return None
    return len(before), len(text) - len(rest[0])


def _by_words(content: str, text: str, least: int) -> Span | None:
    """Where the content stands word for word, or what of it follows a reasoning block that the template takes out."""
    for core in (content.strip(), content.rpartition("</think>")[2].strip()):
        place = text.find(core, least) if core else -1
        if place >= 0:
            return place, place + len(core)
    return None
