"""Settings from the command line: `name=value` texts turned into typed fields of a run spec."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from checks.errors import BadRequest
from checks.spec import RunSpec
from checks.suggesting import nearest

NOT_SETTINGS = frozenset(
    {"framework", "model", "data", "fault", "unstated", "resume_after", "resharded", "probed", "first_rows"}
)
"""Fields of RunSpec that have an option of their own, or that the role of a run decides."""

TRUE = ("true", "1", "yes")
FALSE = ("false", "0", "no")


@dataclass(frozen=True)
class Bounds:
    """low ≤ value ≤ high, or < where a bound is open."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def admit(self, value: float) -> bool:
        """Whether the value lies within."""
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below

    def describe(self) -> str:
        """The bounds as a remedy says them: "1 or more", "0 or more and less than 1"."""
        parts = []
        if self.low > -math.inf:
            parts.append(f"more than {self.low:g}" if self.low_open else f"{self.low:g} or more")
        if self.high < math.inf:
            parts.append(f"less than {self.high:g}" if self.high_open else f"at most {self.high:.0f}")
        return " and ".join(parts)


COUNT_LIMIT = 2**31 - 1
"""What a 32-bit count holds; frameworks hand these numbers to C."""

AT_LEAST_ONE = Bounds(low=1, high=COUNT_LIMIT)
NOT_NEGATIVE = Bounds(low=0)
POSITIVE = Bounds(low=0, low_open=True)
DECAY_RATE = Bounds(low=0, high=1, high_open=True)
"""Of a moving average: AdamW (https://arxiv.org/abs/1711.05101) and momentum ask for [0, 1)."""

PROCESSES = Bounds(low=1, high=64)
"""On one machine; more than its processors only share them."""

BOUNDS: Mapping[str, Bounds] = {
    "beta": POSITIVE,
    "num_generations": Bounds(low=2, high=COUNT_LIMIT),  # a group of one has no advantage
    "num_iterations": AT_LEAST_ONE,
    "max_completion_length": AT_LEAST_ONE,
    "temperature": POSITIVE,
    "steps": AT_LEAST_ONE,
    "batch": AT_LEAST_ONE,
    "accumulation": AT_LEAST_ONE,
    "seq_len": Bounds(low=2, high=COUNT_LIMIT),  # one token predicts, one is predicted
    "lora_r": AT_LEAST_ONE,
    "lora_alpha": POSITIVE,
    "lr": NOT_NEGATIVE,
    "beta1": DECAY_RATE,
    "beta2": DECAY_RATE,
    "eps": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
    "momentum": DECAY_RATE,
    "max_grad_norm": NOT_NEGATIVE,
    "warmup_steps": Bounds(low=0, high=COUNT_LIMIT),
    "dp_size": PROCESSES,
    "tp_size": PROCESSES,
    "ep_size": PROCESSES,
    "pp_size": PROCESSES,
    "cp_size": PROCESSES,
    "seed": Bounds(low=0, high=2**32 - 1),  # what numpy's generator takes
}


def setting_names() -> tuple[str, ...]:
    """The settings that `--set` takes, in the order of the run spec."""
    return tuple(field.name for field in fields(RunSpec) if field.name not in NOT_SETTINGS)


def parse_settings(texts: Sequence[str], *, defaults: Mapping[str, object]) -> dict[str, object]:
    """Fields of RunSpec from `name=value` texts, over `defaults`.

    Booleans: true, false, 1, 0, yes, no. Tuples: comma separated; a command: as a shell has it. Raises BadRequest for a
    text without `=`, a name that is unknown (with the nearest ones) or given twice, and a value that is not of the type
    or out of bounds.

    >>> parse_settings(["seq_len=256", "packing=true"], defaults={})
    {'seq_len': 256, 'packing': True}
    """
    given: dict[str, object] = {}
    types = get_type_hints(RunSpec)
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise BadRequest("set", f"{text!r} has no =", "write it as name=value, for example batch=2")
        if name not in setting_names():
            raise BadRequest("set", f"there is no setting {name!r}", _suggest(name))
        if name in given:
            raise BadRequest(name, "is set twice", "give it once")
        given[name] = _parse(name, value, types[name])
    return {**defaults, **given}


def _suggest(name: str) -> str:
    near = nearest(name, setting_names())
    return f"did you mean {', '.join(near)}" if near else f"the settings are {', '.join(setting_names())}"


def _parse(name: str, text: str, kind: Any) -> object:
    if get_origin(kind) is Literal:
        return _parse_choice(name, text, get_args(kind))
    if kind is bool:
        return _parse_boolean(name, text)
    if name == "command":
        return _parse_command(text)
    if get_origin(kind) is tuple:
        return _parse_tuple(name, text)
    if Path in get_args(kind):
        return _parse_path(name, text)
    number = _parse_number(name, text, kind)
    bounds = BOUNDS[name]
    if not bounds.admit(number):
        raise BadRequest(name, f"{text} is out of bounds", f"set it to {bounds.describe()}")
    return number


def _parse_choice(name: str, text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise BadRequest(name, f"{text!r} is none of its values", f"use {' or '.join(choices)}")
    return text


def _parse_boolean(name: str, text: str) -> bool:
    if text.lower() not in TRUE + FALSE:
        raise BadRequest(name, f"{text!r} is neither true nor false", "use true or false")
    return text.lower() in TRUE


def _parse_tuple(name: str, text: str) -> tuple[str, ...]:
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        raise BadRequest(name, f"{text!r} has an empty item", "separate the items by single commas")
    if len(set(items)) < len(items):
        raise BadRequest(name, f"{text!r} names an item twice", "name each once")
    return items


def _parse_command(text: str) -> tuple[str, ...]:
    """Split as a shell would, once; no shell ever sees it, and nothing in it is expanded."""
    try:
        arguments = tuple(shlex.split(text))
    except ValueError as error:
        raise BadRequest("command", f"{text!r} cannot be split ({error})", "close the quotation") from None
    if not arguments or not arguments[0]:
        raise BadRequest("command", "is empty", "give a program and its arguments")
    return arguments


def _parse_path(name: str, text: str) -> Path:
    if not text:
        raise BadRequest(name, "is empty", "name a directory")
    return Path(text)


def _parse_number(name: str, text: str, kind: type[int] | type[float]) -> int | float:
    try:
        number = kind(text)
    except (ValueError, OverflowError):
        noun = "a whole number" if kind is int else "a number"
        raise BadRequest(name, f"{text!r} is not {noun}", f"give {noun}, {BOUNDS[name].describe()}") from None
    if isinstance(number, float) and not math.isfinite(number):
        raise BadRequest(name, f"{text} is not finite", f"set it to {BOUNDS[name].describe()}")
    return number
