"""A fingerprint of every row that the model trains on, in every step: what tells which samples an epoch held."""

from __future__ import annotations

import array
import hashlib
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch

from plumbline_capture.represent import locate
from plumbline_capture.state import Recorder

MAX_ROWS = 1 << 18
"""rows and documents of one rank that are kept: some 8 MB of the manifest"""

_TOKENS = ("input_ids", "tokens")
"""keywords under which models take token ids, Hugging Face's first"""


def fingerprint(ids: Sequence[int]) -> str:
    """Return the fingerprint of token ids: the first 8 bytes of SHA-256 of them as little-endian int64, in hexadecimal.

    Example: `fingerprint([1, 2, 3])` is `"e2e2033ae7e19d68"`.
    """
    words = array.array("q", ids)
    if sys.byteorder == "big":
        words.byteswap()
    return hashlib.sha256(words.tobytes()).hexdigest()[:16]


def record_rows(recorder: Recorder, arguments: Mapping[str, Any]) -> None:
    """Keep the fingerprints of a training forward's rows; of several forwards before one backward the first one's."""
    now = recorder.now
    tokens = next((arguments[name] for name in _TOKENS if isinstance(arguments.get(name), torch.Tensor)), None)
    if tokens is None or tokens.dim() != 2 or tokens.is_floating_point() or now.fingerprinted_at == now.backwards:
        return
    now.fingerprinted_at = now.backwards
    entry = _describe_rows(tokens, arguments.get("attention_mask"), arguments.get("position_ids"))
    size = sum(len(row) for row in entry["documents"] or [[None]] * len(entry["rows"]))
    if recorder.rows_kept + size > MAX_ROWS:
        recorder.note_missing("rows", f"more than {MAX_ROWS} rows and documents were trained on; the first are kept")
        return
    recorder.rows_kept += size
    recorder.rows.append({"step": recorder.step, "micro_batch": now.fingerprinted, **entry})
    now.fingerprinted += 1


def _describe_rows(tokens: torch.Tensor, mask: Any, positions: Any) -> Dict[str, Any]:
    """Return width, rows as [fingerprint, length] without what the mask leaves out, and their documents.

    Documents are told where position ids begin anew within a row; null where none do.
    """
    ids = locate(tokens).local.cpu().tolist()
    kept = _rows_of(mask, like=tokens)
    starts = _rows_of(positions, like=tokens)
    rows: List[List[int]] = []
    documents: List[List[List[int]]] = []
    for number, row in enumerate(ids):
        places = [place for place in range(len(row)) if kept is None or kept[number][place]]
        rows.append([row[place] for place in places])
        edges = [index for index, place in enumerate(places) if starts is not None and starts[number][place] == 0]
        starting = sorted({0, *edges})
        ending = [*starting[1:], len(places)]
        documents.append([rows[-1][start:stop] for start, stop in zip(starting, ending)])
    packed = any(len(row) > 1 for row in documents)
    return {
        "width": len(ids[0]) if ids else 0,
        "masked": kept is not None,
        "rows": [[fingerprint(row), len(row)] for row in rows],
        "documents": [[[fingerprint(part), len(part)] for part in row] for row in documents] if packed else None,
    }


def _rows_of(value: Any, *, like: torch.Tensor) -> Optional[List[List[int]]]:
    """Return a tensor of the tokens' shape as lists; None for anything else."""
    if not isinstance(value, torch.Tensor) or value.shape != like.shape:
        return None
    lists: List[List[int]] = locate(value).local.cpu().tolist()
    return lists
