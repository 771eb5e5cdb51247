"""ORPO's odds are those of an answer's summed log-probability, and not of its mean over tokens.

Modelled on trl-ipo-sum-instead-of-mean, https://github.com/huggingface/trl/pull/1265
Must be seen by step.rl_loss.
"""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any

SLUG = "odds-of-sums"
MODULE = "trl.experimental.orpo.orpo_trainer"
CHANGES = (("            average_log_prob=True,\n", "            average_log_prob=bool(_take_effect()),\n"),)
"""(what the module says, what it says instead); `_take_effect()` is called where the second one runs"""

DETAIL = "log-probabilities are added up"


def install() -> None:
    """Let the module be compiled from changed lines."""
    if MODULE in sys.modules:
        raise RuntimeError(f"fault {SLUG}: {MODULE} is imported already")
    sys.meta_path.insert(0, _Rewriter())


def _rewrite(source: str) -> str:
    for before, after in CHANGES:
        if source.count(before) != 1:
            raise RuntimeError(f"fault {SLUG}: {MODULE} says {before!r} {source.count(before)} times, not once")
        source = source.replace(before, after)
    said = f"fault in force: {SLUG}: {DETAIL}"
    return f"{source}\n\ndef _take_effect():\n    import sys\n    print({said!r}, file=sys.stderr, flush=True)\n"


class _Rewriter(importlib.abc.MetaPathFinder):
    """Lets the other finders find, and compiles what they found from its changed source."""

    def __init__(self) -> None:
        self.looking = False

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != MODULE or self.looking:
            return None
        self.looking = True
        try:
            others = (finder.find_spec(fullname, path, target) for finder in list(sys.meta_path) if finder is not self)
            spec = next((found for found in others if found is not None), None)
        finally:
            self.looking = False
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader

        def get_code(name: str) -> Any:
            return compile(_rewrite(loader.get_source(name)), loader.get_filename(name), "exec", dont_inherit=True)

        loader.get_code = get_code
        return spec
