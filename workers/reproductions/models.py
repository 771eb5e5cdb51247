"""A checkpoint that releases of years ago read too: what transformers 5 writes otherwise is written both ways."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks.models import resolve_model
from checks.models.cache import build_once, hash_content

FORMAT = 3
"""raised when what is written changes"""

GENERATION = re.compile(r"\{%-? (?:end)?generation -?%\}")
"""marks of what a model says itself, which releases before 4.42 do not parse; later ones read chat_template.jinja"""


def prepare_model(model: str | Mapping[str, Any]) -> Path:
    """The directory of a checkpoint, a copy whose config.json and tokenizer_config.json old releases understand.

    `model`: as for `plumbline validate`, or the content of a config.json, whose weights are random.
    """
    resolved = resolve_model(model) if isinstance(model, str) else _resolve_content(model)
    key = hash_content({"revision": resolved.revision, "format": FORMAT, "path": resolved.path.name})

    def build(directory: Path) -> None:
        for file in resolved.path.iterdir():
            if file.is_file() and file.name != "plumbline.json":
                shutil.copy(file, directory / file.name)
        _write_both_ways(directory)

    return build_once(f"older-{resolved.family}-{key}", build)


def _resolve_content(config: Mapping[str, Any]) -> Any:
    with tempfile.TemporaryDirectory(prefix="plumbline-config-") as scratch:
        (Path(scratch) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return resolve_model(scratch)


def _write_both_ways(directory: Path) -> None:
    """`rope_theta` and `torch_dtype` beside what took their place; the tokenizer's merges and template as of old."""
    file = directory / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    for part in (config, config.get("text_config")):
        if part is None:
            continue
        positions = part.get("rope_parameters") or {}
        if "rope_theta" in positions:
            part["rope_theta"] = positions["rope_theta"]
        if "dtype" in part:
            part["torch_dtype"] = part["dtype"]
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    file = directory / "tokenizer.json"
    if file.is_file():
        tokens = json.loads(file.read_text(encoding="utf-8"))
        merges = tokens["model"].get("merges", ())
        # tokenizers before 0.20 read a merge as one text only; later ones read both.
        tokens["model"]["merges"] = [each if isinstance(each, str) else " ".join(each) for each in merges]
        file.write_text(json.dumps(tokens, ensure_ascii=False, indent=1), encoding="utf-8")
    template = directory / "chat_template.jinja"
    if template.is_file():
        file = directory / "tokenizer_config.json"
        tokenizer = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(
            json.dumps({**tokenizer, "chat_template": GENERATION.sub("", template.read_text(encoding="utf-8"))}) + "\n",
            encoding="utf-8",
        )
