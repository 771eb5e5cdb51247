"""A small model built from any config: resolved for a run, or written into a directory of the user's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.errors import BadRequest
from checks.models.cache import build_once, hash_content, hash_file
from checks.models.checkpoint import check_tokenizer, find_weights, read_config
from checks.models.resolve import TOKENIZER_FILES, ResolvedModel, check_family, describe, refuse_config
from checks.models.shrinking import Shrunk, shrink_config
from checks.models.tiny import SEED, count_parameters, describe_recipe, write_checkpoint
from checks.models.tokenizer import train_tokenizer, write_tokenizer

MOST_PARAMETERS = 5_500_000
"""of a small model; a tokenizer's own vocabulary comes on top"""


@dataclass(frozen=True)
class SmallModel:
    """What a config was shrunk to, before it is built. `beside`: files of its tokenizer, empty for Plumbline's own."""

    file: Path
    shrunk: Shrunk
    beside: tuple[Path, ...]
    parameters: int

    @property
    def family(self) -> str:
        return str(self.shrunk.config["model_type"])


def plan_small(text: str) -> SmallModel:
    """Shrink the config.json that `text` is, or that lies in the directory `text`.

    Raises BadRequest naming the file, or the setting that cannot be shrunk.
    """
    path = Path(text).expanduser()
    if not text or not path.exists():
        raise BadRequest("model", f"{text!r} does not exist", "give a config.json, or a directory with one")
    if path.is_file() and path.suffix != ".json":
        raise BadRequest("model", f"{path} is no JSON file", "give a config.json, or a directory with one")
    file = path.resolve() / "config.json" if path.is_dir() else path.parent.resolve() / path.name
    config = read_config(file.parent) if file.name == "config.json" else _read(file)
    check_family(config, file)
    # Only what is called config.json is a checkpoint's; another file has no tokenizer of its own beside it.
    names = TOKENIZER_FILES if file.name == "config.json" else ()
    beside = tuple(file.parent / name for name in names if (file.parent / name).is_file())
    if any(each.name == "tokenizer.json" for each in beside):
        check_tokenizer(file.parent)
    else:
        beside = ()
    shrunk = shrink_config(config, vocabulary=_count_tokens(file.parent) if beside else None)
    return SmallModel(file, shrunk, beside, _count(shrunk.config, file, own_tokenizer=bool(beside)))


def resolve_shrunk(text: str) -> ResolvedModel:
    """The small model of a config, built once in the cache. Raises BadRequest as `plan_small`."""
    small = plan_small(text)
    tokenizer: object = {each.name: hash_file(each) for each in small.beside} or train_tokenizer()
    key = hash_content(describe_recipe(small.shrunk.config, tokenizer=tokenizer))
    built = build_once(f"shrunk-{small.family}-{key}", _builder(small))
    stand_in = "" if small.beside else ", tokenizer is Plumbline's own"
    note = f"weights are random{stand_in}: shrunk from {small.file}"
    label = f"shrunk:{small.file.parent.name if small.file.name == 'config.json' else small.file.stem}"
    return describe(built, label=label, config=read_config(built), weights=find_weights(built), note=note)


def write_small(small: SmallModel, out: Path) -> None:
    """Write the small model as a checkpoint directory; raises BadRequest where `out` is there and not empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadRequest("out", f"{out} exists and is not empty", "give a new directory")
    out.mkdir(parents=True, exist_ok=True)
    _builder(small)(out)
    table = [vars(change) for change in small.shrunk.changes]
    (out / "shrunk.json").write_text(json.dumps(table, indent=2, default=str) + "\n", encoding="utf-8")


def _builder(small: SmallModel) -> Callable[[Path], None]:
    def build(target: Path) -> None:
        try:
            write_checkpoint(small.shrunk.config, target, seed=SEED)
        except OSError:
            raise
        except Exception as error:  # whatever transformers raises for a config it cannot build is the request's fault
            raise refuse_config(small.file, error) from None
        for each in small.beside:
            shutil.copyfile(each, target / each.name)
        if not small.beside:
            write_tokenizer(target)

    return build


def _count(config: Mapping[str, Any], file: Path, *, own_tokenizer: bool) -> int:
    try:
        counts = count_parameters(config)
    except Exception as error:  # as above
        raise refuse_config(file, error) from None
    total = sum(counts.values())
    vocabulary = int(config.get("vocab_size") or 0)
    embedded = sum(n for name, n in counts.items() if "embed" in name or "lm_head" in name) if own_tokenizer else 0
    if total - embedded > MOST_PARAMETERS:
        worst = max(counts, key=lambda name: counts[name])
        found = f"shrunk has {total / 1e6:.0f} million parameters, most of them in {worst} (vocabulary {vocabulary})"
        raise BadRequest(f"model {file}", found, "shrink what decides its size in a copy of the config")
    return total


def _read(file: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest(f"model {file}", f"is not JSON ({error})", "restore the file") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise BadRequest(f"model {file}", "has no model_type", 'add for example "model_type": "qwen3"')
    return config


def _count_tokens(directory: Path) -> int:
    """One more than the largest token id of tokenizer.json."""
    content = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = content["model"].get("vocab") or {}
    ids = vocabulary.values() if isinstance(vocabulary, Mapping) else range(len(vocabulary))
    added = [entry["id"] for entry in content.get("added_tokens", ())]
    return max([*ids, *added], default=0) + 1
