"""Which tokens of the documents are wrong, as a class: the start, the end, from a place on, behind a boundary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MANY = 0.9
"""Share of the tokens that must be wrong for "every token", as of "every gradient" in checks.diagnosis.signatures."""


@dataclass(frozen=True)
class Token:
    """A token whose loss was compared: its place in its document and the document's place in its row."""

    place: int
    length: int
    document: int
    wrong: bool


def read_positions(evidence: Mapping[str, Any], *, threshold: float | None) -> str:
    """The class of the wrong tokens in the evidence of `step.loss` (docs/json.md); empty where it has no tokens.

    `threshold`: the largest difference in nats that is allowed, None where nothing was compared.
    """
    micro_batches = evidence.get("tokens")
    if threshold is None or not isinstance(micro_batches, Sequence) or isinstance(micro_batches, str):
        return ""
    tokens = [token for each in micro_batches if isinstance(each, Mapping) for token in _read_tokens(each, threshold)]
    return _classify(tokens)


def _classify(tokens: Sequence[Token]) -> str:
    wrong = [token for token in tokens if token.wrong]
    if not wrong:
        return "no token" if tokens else ""
    if all(token.document > 0 for token in wrong):
        return "tokens behind a document's boundary"
    if all(token.place == 0 for token in wrong):
        return "the first token of documents"
    if all(token.place == token.length - 1 for token in wrong):
        return "the last token of documents"
    if len(wrong) >= MANY * len(tokens):
        return "every token"
    begin = min(token.place for token in wrong)
    behind = [token for token in tokens if token.place >= begin]
    if begin > 0 and len(wrong) >= MANY * len(behind):
        return "tokens from a position on"
    return "some tokens"


def _read_tokens(micro_batch: Mapping[str, Any], threshold: float) -> Iterator[Token]:
    reference, framework = micro_batch.get("reference"), micro_batch.get("framework")
    if not reference or not framework:
        return
    counts: dict[int, int] = {}
    for row, start, stop in micro_batch.get("documents") or ():
        document = counts.get(row, 0)
        counts[row] = document + 1
        compared = [
            (position, abs(seen - due) > threshold)
            for position in range(start, min(stop, len(reference[row])))
            if _is_loss(due := reference[row][position])
            and _is_loss(seen := framework[row][position])
            and micro_batch["counted"][row][position]
        ]
        for place, (_, wrong) in enumerate(compared):
            yield Token(place, len(compared), document, wrong)


def _is_loss(value: object) -> bool:
    return isinstance(value, (int, float))
