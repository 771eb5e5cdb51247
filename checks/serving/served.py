"""What an OpenAI-compatible endpoint answered to the probes' rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Weights = Literal["trained", "checkpoint"]
"""What the endpoint is said to serve: the model after the last step, or the one that the run starts from."""

Row = tuple[int, ...]


@dataclass(frozen=True)
class ServedRow:
    """`read`: how many tokens the endpoint says that it read; `read_ids`: which, where it says so; `log_probs`: of each
    token but the first, as many as it gave.
    """

    row: Row
    read: int
    read_ids: Row | None
    log_probs: tuple[float, ...]

    @property
    def extra(self) -> int:
        """Tokens that it read beyond those that it was given."""
        return self.read - len(self.row)


@dataclass(frozen=True)
class ServedChat:
    """A conversation that the endpoint renders itself: how many tokens it read, and how many the template gives."""

    read: int
    expected: int
    place: str
    begins_with: str
    """the template's first token"""


@dataclass(frozen=True)
class Served:
    """`label`: host and model; `rows`: at temperature 1; `cooler`: one of them at `COOLER`, None where it was refused;
    `chat`: None where the data are no conversations or it renders none; `failure`: a sentence, and then nothing else.
    """

    label: str
    weights: Weights = "trained"
    rows: tuple[ServedRow, ...] = ()
    cooler: ServedRow | None = None
    chat: ServedChat | None = None
    failure: str = ""


COOLER = 0.5
"""A second temperature: log-probabilities of the model do not depend on it."""
