"""The reward of GRPO's runs, as a plugin that ms-swift loads (`--external_plugins`); imports nothing of Plumbline."""

from __future__ import annotations

from collections import Counter
from typing import Any

from swift.rewards import orms


class ShareCharacters:
    """How many characters each completion shares with its prompt and known answer, both together: from 0 to 1.

    2 · |characters in common| / (characters of both): deterministic, and two completions of an untrained model are
    seldom alike in it.
    """

    def __init__(self, args: Any = None, **_: Any) -> None:
        self.args = args

    def __call__(self, completions: list[str], known: list[str], **_: Any) -> list[float]:
        """Return a reward for each completion."""
        rewards = []
        for text, other in zip(completions, known, strict=True):
            common = sum((Counter(text) & Counter(other)).values())
            rewards.append(2.0 * common / max(len(text) + len(other), 1))
        return rewards


orms["share_characters"] = ShareCharacters
