"""The file of probes: batches to ask a model about, and how. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

FORWARD = "forward"
"""one forward in evaluation mode"""
TRAINING = "training"
"""one forward in training mode: dropout acts"""
DECODE = "decode"
"""evaluation mode, the first token alone and then each next one with the cache of those before it"""
KINDS = (FORWARD, TRAINING, DECODE)


def read_probes(path: str) -> List[Dict[str, Any]]:
    """Return the probes of a JSON file: a list of {"name", "kind", "inputs": {argument: [[int]]}}.

    Raises ValueError, one sentence, for a file that is something else.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--probes: {path} cannot be read as JSON ({error}).") from error
    if not isinstance(content, list):
        raise ValueError(f"--probes: {path} holds no list of probes.")
    for probe in content:
        known = isinstance(probe, dict) and probe.get("kind") in KINDS and isinstance(probe.get("name"), str)
        if not known or "input_ids" not in probe.get("inputs", {}):
            raise ValueError(
                f"--probes: {path} holds {str(probe)[:80]!r}; each needs a name, inputs with input_ids, "
                f"and a kind of {', '.join(KINDS)}."
            )
    return content
