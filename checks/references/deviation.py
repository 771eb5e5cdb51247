"""In which way a document that reached the model differs from the sample that it is: what a person would look for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import jinja2

from checks.references.conversation import find_generation_prompt, list_special_tokens
from checks.references.dataset import Dataset
from checks.references.template import render_messages
from checks.verdict import Pattern

AROUND = 12
"""Tokens shown on either side of the first difference in a sentence's quotation."""


class Kind(StrEnum):
    """A way of differing; the value is how a sentence names it."""

    DOUBLED_START = "the first token is doubled"
    ADDED_START = "a token is added in front"
    MISSING_START = "the first token is missing"
    MISSING_END = "the end token is missing"
    ADDED_END = "an end token is added"
    GENERATION_PROMPT = "a generation prompt is left at the end"
    CUT_SHORT = "it is cut short"
    CUT_LEFT = "its beginning is cut off"
    NOT_CUT = "it is not cut at seq_len"
    SPLIT_SPECIAL = "a special token is split into ordinary ones"
    OTHER_TOKENS = "the same text is cut into other tokens"
    NO_TEMPLATE = "the chat template is ignored"
    OTHER_TEMPLATE = "another chat template is applied"
    LOST_TURN = "a turn is missing"
    OTHER_TEXT = "the tokens differ"
    UNKNOWN = "it is no sample of the data set"


_TRUNCATION = (Kind.CUT_SHORT, Kind.CUT_LEFT, Kind.NOT_CUT)
_TOKENIZER = (Kind.SPLIT_SPECIAL, Kind.OTHER_TOKENS)
_SPECIAL = (Kind.DOUBLED_START, Kind.ADDED_START, Kind.MISSING_START, Kind.MISSING_END, Kind.ADDED_END)


@dataclass(frozen=True)
class Deviation:
    """`token`: the first that differs, counted in the document; `detail`: what was found, for a sentence."""

    kind: Kind
    token: int
    detail: str

    @property
    def pattern(self) -> Pattern:
        return Pattern.SEQUENCE_LENGTH if self.kind in _TRUNCATION else Pattern.LOSS_MASK

    @property
    def cause(self) -> str:
        """The setting or stage where such a fault starts."""
        if self.kind in _TRUNCATION:
            return "truncation"
        if self.kind in _TOKENIZER:
            return "tokenizer"
        if self.kind is Kind.UNKNOWN:
            return "data"
        return "special tokens" if self.kind in _SPECIAL else "chat template"


def explain(ids: Sequence[int], sample: int, dataset: Dataset) -> Deviation | None:
    """How a list of tokens differs from a sample's document cut to seq_len; None where it does not."""
    ids = tuple(ids)
    whole, cut = dataset.documents[sample], dataset.cut(sample)
    if ids == cut:
        return None
    shared = count_shared(ids, whole)
    if shared == len(ids):
        return _explain_beginning(ids, sample, dataset)
    if shared == len(whole):
        return _explain_rest(ids, sample, dataset)
    return (
        _explain_start(ids, whole, dataset)
        or _explain_lost_turn(ids, sample, shared, dataset)
        or _explain_inner(ids, whole, shared)
        or _explain_tokens(ids, sample, shared, dataset)
        or _explain_text(ids, sample, shared, dataset)
    )


def count_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def show(ids: Sequence[int], dataset: Dataset) -> str:
    """Tokens as text, special ones too."""
    return repr(dataset.tokenizer.tokenizer.decode(list(ids), skip_special_tokens=False))


def _explain_beginning(ids: tuple[int, ...], sample: int, dataset: Dataset) -> Deviation:
    """The document is the sample's first tokens, too few or too many of them."""
    whole, cut = dataset.documents[sample], dataset.cut(sample)
    if len(ids) > len(cut):
        detail = f"{len(ids)} tokens reached the model, seq_len is {dataset.seq_len}"
        return Deviation(Kind.NOT_CUT, len(cut), detail)
    lost = cut[len(ids) :]
    if len(cut) == len(whole) and _is_end(lost, dataset):
        return Deviation(Kind.MISSING_END, len(ids), f"{show(lost, dataset)} should follow {_tail(ids, dataset)}")
    detail = f"{len(ids)} of {len(whole)} tokens are left where seq_len={dataset.seq_len} leaves {len(cut)}"
    return Deviation(Kind.CUT_SHORT, len(ids), detail)


def _explain_rest(ids: tuple[int, ...], sample: int, dataset: Dataset) -> Deviation:
    """The document is the whole sample and more."""
    whole = dataset.documents[sample]
    rest = ids[len(whole) :]
    text = dataset.tokenizer.tokenizer.decode(list(rest), skip_special_tokens=False)
    detail = f"{text!r} follows the sample's end"
    prompt = find_generation_prompt(dataset.samples[sample].messages, dataset.tokenizer)
    if prompt and text == prompt:
        return Deviation(Kind.GENERATION_PROMPT, len(whole), detail)
    kind = Kind.ADDED_END if _is_end(rest, dataset) else Kind.OTHER_TEXT
    return Deviation(kind, len(whole), detail)


def _is_end(ids: Sequence[int], dataset: Dataset) -> bool:
    """Whether tokens are special ones, and white space around them."""
    text = dataset.tokenizer.tokenizer.decode(list(ids), skip_special_tokens=False)
    special = list_special_tokens(dataset.tokenizer)
    if not any(token in text for token in special):
        return False
    for token in special:
        text = text.replace(token, "")
    return not text.strip()


def _tail(ids: Sequence[int], dataset: Dataset) -> str:
    return show(ids[-AROUND:], dataset)


def _explain_start(ids: tuple[int, ...], whole: tuple[int, ...], dataset: Dataset) -> Deviation | None:
    """One token more or less in front, all others as they should be."""
    beginning = whole[: len(ids) - 1]
    if ids[1:] == beginning and len(beginning) > 0:
        doubled = ids[0] == whole[0]
        kind = Kind.DOUBLED_START if doubled else Kind.ADDED_START
        return Deviation(kind, int(doubled), f"the document begins with {show(ids[:AROUND], dataset)}")
    if ids == whole[1 : len(ids) + 1] and len(ids) >= min(len(whole) - 1, dataset.seq_len - 1):
        return Deviation(Kind.MISSING_START, 0, f"{show(whole[:1], dataset)} should be in front")
    return None


def _explain_lost_turn(ids: tuple[int, ...], sample: int, shared: int, dataset: Dataset) -> Deviation | None:
    """The conversation as it is rendered without one of its turns, or without all that are of no user and answer."""
    messages = dataset.samples[sample].messages
    without: dict[str, tuple[int, ...]] = {
        f"turn {turn + 1} ({messages[turn][0]}) is": (turn,) for turn in range(len(messages))
    }
    others = tuple(turn for turn, (role, _) in enumerate(messages) if role not in ("user", "assistant"))
    if len(others) > 1:
        without[f"all {len(others)} turns of other roles than user and assistant are"] = others
    for what, turns in without.items():
        kept = [message for turn, message in enumerate(messages) if turn not in turns]
        try:
            text = render_messages(kept, dataset.tokenizer) if kept else ""
        except (jinja2.TemplateError, TypeError, ValueError):
            continue
        tokens = dataset.tokenizer.tokenizer.encode(text, add_special_tokens=False).ids
        if text and tuple(tokens[: dataset.seq_len]) == ids:
            return Deviation(Kind.LOST_TURN, shared, f"{what} not there")
    return None


def _explain_inner(ids: tuple[int, ...], whole: tuple[int, ...], shared: int) -> Deviation | None:
    """A stretch of the sample that is not its beginning."""
    for start in range(1, len(whole) - len(ids) + 1):
        if whole[start] == ids[0] and whole[start : start + len(ids)] == ids:
            return Deviation(Kind.CUT_LEFT, shared, f"tokens {start} to {start + len(ids)} of {len(whole)} are left")
    return None


def _explain_tokens(ids: tuple[int, ...], sample: int, shared: int, dataset: Dataset) -> Deviation | None:
    """The right text in other tokens."""
    text = dataset.tokenizer.tokenizer.decode(list(ids), skip_special_tokens=False).rstrip("\N{REPLACEMENT CHARACTER}")
    if not text or not dataset.texts[sample].startswith(text):
        return None
    expected = dataset.documents[sample][shared] if shared < len(dataset.documents[sample]) else None
    special = {dataset.tokenizer.tokenizer.token_to_id(token) for token in list_special_tokens(dataset.tokenizer)}
    count = min(AROUND, len(ids) - shared)
    detail = f"from token {shared} on {show(ids[shared : shared + count], dataset)} stands in {count} tokens"
    if expected in special:
        name = dataset.tokenizer.tokenizer.id_to_token(expected) if expected is not None else ""
        return Deviation(Kind.SPLIT_SPECIAL, shared, f"{name} at token {shared} is written in ordinary tokens")
    return Deviation(Kind.OTHER_TOKENS, shared, detail)


def _explain_text(ids: tuple[int, ...], sample: int, shared: int, dataset: Dataset) -> Deviation:
    """Another text: whether any of the template is there, and whether the turns' contents are."""
    text = dataset.tokenizer.tokenizer.decode(list(ids), skip_special_tokens=False)
    around = (
        f"from token {shared} on it reads {show(ids[shared : shared + AROUND], dataset)}, "
        f"not {show(dataset.documents[sample][shared : shared + AROUND], dataset)}"
    )
    messages = dataset.samples[sample].messages
    if not messages:
        return Deviation(Kind.OTHER_TEXT, shared, around)
    special = list_special_tokens(dataset.tokenizer)
    own = [token for token in special if token in dataset.texts[sample]]
    if own and not any(token in text for token in own):
        return Deviation(Kind.NO_TEMPLATE, shared, f"none of {', '.join(own)} is there; {around}")
    there = [content.strip() in text for _, content in messages]
    known = all(there) if len(ids) < dataset.seq_len else there[0]
    return Deviation(Kind.OTHER_TEMPLATE if known else Kind.OTHER_TEXT, shared, around)
