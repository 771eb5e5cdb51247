"""The signature of a finding: equal for the same fault on another seed, layer, or model of one family.

Read from a failing verdict's document (docs/json.md) alone. It says what was judged, what is wrong in words without
numbers, in which kind of module, by which factor, at which tokens, on which ranks, and of a run that ended with an
error the exception and its innermost frame.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from checks.matching.positions import read_positions
from checks.matching.scale import read_scale
from checks.matching.wording import generalise_place, generalise_sentence

VERSION = 1
"""Part of every key. Raised when a field is added or read otherwise: keys of two versions are never equal."""
DIGEST = 16
"""Hexadecimal digits of a key: 64 bits, so that of a million signatures two share one with a chance of 3e-8."""

TOKENS = "largest token error"
"""Name of the measurement whose threshold says which tokens of `step.loss` are wrong."""
_RANK = re.compile(r"\brank (\d+)\b")
_EXCEPTION = re.compile(r"\((?P<exception>[A-Za-z_][\w.]*)(?=: | \()")
_FRAME = re.compile(r" \((?P<file>[^():]+):\d+, in (?P<function>[^()]+)\)\)\Z")
"""At the end of run.completes' sentence: (KeyError: 'labels' (transformers/trainer.py:2103, in compute_loss))."""


@dataclass(frozen=True)
class Signature:
    """What of a finding is the same when its fault comes again. A field that says nothing is empty.

    `statement`: the verdict's first statement without numbers; `module`: what `first_wrong` names, without layers;
    `exception`, `frame`: of run.completes, such as `KeyError` and `transformers/trainer.py, compute_loss`.
    """

    check: str
    statement: str = ""
    module: str = ""
    scale: str = ""
    positions: str = ""
    ranks: str = ""
    exception: str = ""
    frame: str = ""

    @property
    def key(self) -> str:
        """A short digest with the version, such as `1:9f86d081884c7d65`."""
        digest = hashlib.sha256(json.dumps(astuple(self), ensure_ascii=False).encode()).hexdigest()
        return f"{VERSION}:{digest[:DIGEST]}"

    def describe(self) -> str:
        """The fields that say something, as a line: `step.gradients · every gradient is #× the reference · ×1/2`."""
        raised = " in ".join(part for part in (self.exception, self.frame) if part)
        parts = (self.check, self.statement, self.module, self.scale, self.positions, self.ranks, raised)
        return " · ".join(part for part in parts if part)


def read_signature(document: Mapping[str, Any]) -> Signature:
    """The signature of a verdict's document. A field that is missing or null says nothing.

    Raises:
        KeyError: the document names no `check`.
    """
    check = str(document["check"])
    evidence = document.get("evidence") or {}
    measurements: Sequence[Mapping[str, Any]] = document.get("measurements") or ()
    wrong = [str(each["name"]) for each in measurements if not each["holds"]]
    sentence = str(document.get("sentence") or "")
    module = generalise_place(str(document.get("first_wrong") or ""))
    if check == "run.completes":
        return _read_ending(check, sentence, module, evidence)
    return Signature(
        check=check,
        statement=generalise_sentence(sentence),
        module=module,
        scale=read_scale(evidence, wrong),
        positions=read_positions(evidence, threshold=_find_threshold(measurements)),
        ranks=_read_ranks([str(each["name"]) for each in measurements], wrong, evidence.get("ranks")),
    )


def _read_ending(check: str, sentence: str, module: str, evidence: Mapping[str, Any]) -> Signature:
    """Of a run that did not end well: how it ended, and of an error its type and place, not its message."""
    ending = str(evidence.get("ending") or "")
    if ending in ("", "completed"):
        return Signature(check, statement=generalise_sentence(sentence), module=module)
    raised, frame = _EXCEPTION.search(sentence), _FRAME.search(sentence)
    if raised is None or frame is None:
        return Signature(check, statement=ending.replace("_", " "), module=_describe_exit(evidence.get("exit_code")))
    return Signature(
        check,
        statement=ending.replace("_", " "),
        exception=raised["exception"],
        frame=f"{frame['file']}, {frame['function']}",
    )


def _describe_exit(code: object) -> str:
    """A signal that ended the process (128 + n), and nothing of other codes: 1 says no more than that it failed."""
    return f"signal {code - 128}" if isinstance(code, int) and 128 < code < 192 else ""


def _find_threshold(measurements: Sequence[Mapping[str, Any]]) -> float | None:
    found = (each.get("threshold") for each in measurements if each["name"] == TOKENS)
    return next((float(value) for value in found if isinstance(value, (int, float))), None)


def _read_ranks(names: Sequence[str], wrong: Sequence[str], named: object) -> str:
    """Which of the ranks that were compared are wrong; empty where no measurement and no evidence names a rank."""
    compared = {int(found[1]) for name in names if (found := _RANK.search(name))}
    odd = {int(found[1]) for name in wrong if (found := _RANK.search(name))}
    if isinstance(named, Sequence) and not isinstance(named, str) and named:
        odd = {int(rank) for rank in named}
    if not odd:
        return ""
    if len(compared) > 1 and odd >= compared:
        return "every rank"
    if len(compared) > 1 and odd == compared - {0}:
        return "every rank but the first"
    if odd == {0}:
        return "the first rank"
    return "one rank" if len(odd) == 1 else "some ranks"
