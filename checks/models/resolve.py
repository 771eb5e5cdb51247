"""From what a person typed as a model to a checkpoint directory that a framework can load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from checks.errors import BadRequest
from checks.models.cache import build_once, hash_content, hash_file
from checks.models.checkpoint import check_tokenizer, compute_revision, find_weights, read_config, read_text_setting
from checks.models.families import ALIASES, FAMILIES, VOCAB_SIZE
from checks.models.tiny import SEED, build_tiny, describe_recipe, estimate_bytes, write_checkpoint
from checks.models.tokenizer import train_tokenizer, write_tokenizer
from checks.suggesting import nearest

PREFIX = "tiny:"
SHRUNK = "shrunk:"
"""before a config.json, or a directory with one: a small model of the same kind"""
BUILD_LIMIT_BYTES = 2 * 1024**3
"""largest float32 checkpoint of random weights that is built from a bare config"""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


@dataclass(frozen=True)
class ResolvedModel:
    """A checkpoint directory with weights and tokenizer, and what it is called."""

    path: Path
    label: str
    """as a table shows it: `tiny:qwen3`, or the directory's name"""
    family: str
    """config.json's model_type"""
    revision: str
    """12 digits of SHA-256 over config.json and every weight file"""
    positions: int | None
    """max_position_embeddings, where the config states it"""
    note: str | None = None
    """what a reader of the verdict should know: weights are random, or the tokenizer is a stand-in"""


def resolve_model(text: str) -> ResolvedModel:
    """Return the checkpoint for `tiny:<family>`, a checkpoint directory, or a config.json (or a directory with one).

    `shrunk:<config.json or its directory>` is a small model of the same kind. A bare config gets random, non-degenerate
    weights, built once in the cache. Raises BadRequest, one sentence that names the file, for everything that cannot be
    loaded.
    """
    if text.startswith(PREFIX):
        return _resolve_tiny(text.removeprefix(PREFIX))
    if text.startswith(SHRUNK):
        # Imported late: checks.models.shrunk resolves models itself.
        resolved: ResolvedModel = import_module("checks.models.shrunk").resolve_shrunk(text.removeprefix(SHRUNK))
        return resolved
    path = Path(text).expanduser()
    if not text or not path.exists():
        families = ", ".join(PREFIX + family for family in FAMILIES)
        found = f"{text!r} does not exist"
        raise BadRequest("model", found, f"give a checkpoint directory, a config.json, or one of {families}")
    if path.is_file() and path.name != "config.json":
        raise BadRequest("model", f"{path} is a file other than config.json", "give config.json or its directory")
    directory = (path.parent if path.is_file() else path).resolve()
    config = read_config(directory)
    check_family(config, directory / "config.json")
    weights = find_weights(directory)
    if path.is_file() or not weights:
        return _resolve_bare(directory, config)
    check_tokenizer(directory)
    return describe(directory, label=directory.name, config=config, weights=weights)


def check_positions(model: ResolvedModel, *, seq_len: int) -> None:
    """Raise BadRequest when sequences of `seq_len` tokens exceed the positions that the model was made for."""
    if model.positions is not None and seq_len > model.positions:
        found = f"{seq_len} exceeds the {model.positions} positions of {model.label}"
        raise BadRequest("seq_len", found, f"set seq_len to {model.positions} or less")


def _resolve_tiny(family: str) -> ResolvedModel:
    family = find_family(family)
    directory = build_tiny(family)
    config = read_config(directory)
    return describe(directory, label=PREFIX + family, config=config, weights=find_weights(directory))


def find_family(name: str) -> str:
    """The family that `tiny:` before a name means; raises BadRequest, with the nearest names, for none."""
    family = ALIASES.get(name, name)
    if family not in FAMILIES:
        near = nearest(family, FAMILIES) or sorted(FAMILIES)
        remedy = "use " + " or ".join(PREFIX + each for each in near)
        raise BadRequest("model", f"{PREFIX}{family} is no family that Plumbline knows", remedy)
    return family


def check_family(config: Mapping[str, Any], file: Path) -> None:
    """Raise BadRequest, with the nearest names, for a model_type that transformers itself does not have."""
    family = config["model_type"]
    if family in FAMILIES:
        return
    # Imported late: it takes seconds, and the known families need none of it.
    known = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    if family not in known:
        near = nearest(family, known)
        remedy = f"did you mean {' or '.join(near)}" if near else "use a model that transformers itself has"
        raise BadRequest(f"model {file}", f"transformers has no model_type {family!r}", remedy)


def _resolve_bare(directory: Path, config: Mapping[str, Any]) -> ResolvedModel:
    """A checkpoint of random weights for a config without any, with the tokenizer beside it or the tiny one."""
    file = directory / "config.json"
    has_tokenizer = (directory / "tokenizer.json").is_file()
    vocabulary = read_text_setting(config, "vocab_size")
    if not has_tokenizer and not (isinstance(vocabulary, int) and vocabulary >= VOCAB_SIZE):
        found = f"no tokenizer.json beside it, and its vocab_size {vocabulary} is under the stand-in's {VOCAB_SIZE}"
        raise BadRequest(f"model {file}", found, "put tokenizer.json and tokenizer_config.json beside it")
    if has_tokenizer:
        check_tokenizer(directory)
    beside = {name: hash_file(directory / name) for name in TOKENIZER_FILES if (directory / name).is_file()}
    tokenizer: Any = beside if has_tokenizer else train_tokenizer()
    key = hash_content(describe_recipe(config, tokenizer=tokenizer))

    def build(target: Path) -> None:
        _check_size(config, file)
        _build_from(config, target, file)
        if not has_tokenizer:
            write_tokenizer(target)
        for name in beside if has_tokenizer else ():
            (target / name).write_bytes((directory / name).read_bytes())

    built = build_once(f"config-{config['model_type']}-{key}", build)
    stand_in = "" if has_tokenizer else ", tokenizer is Plumbline's own"
    note = f"weights are random{stand_in}: built from {file} alone"
    return describe(built, label=directory.name, config=read_config(built), weights=find_weights(built), note=note)


def _check_size(config: Mapping[str, Any], file: Path) -> None:
    try:
        size = estimate_bytes(config)
    except Exception as error:  # whatever transformers raises for a config it cannot build is the request's fault
        raise refuse_config(file, error) from None
    if size > BUILD_LIMIT_BYTES:
        found = f"random weights for it would take {size / 1024**3:.1f} GiB, over {BUILD_LIMIT_BYTES / 1024**3:.0f}"
        remedy = "shrink num_hidden_layers, hidden_size or the experts in a copy of it, or give a real checkpoint"
        raise BadRequest(f"model {file}", found, remedy)


def _build_from(config: Mapping[str, Any], target: Path, file: Path) -> None:
    try:
        write_checkpoint(config, target, seed=SEED)
    except OSError:
        raise
    except Exception as error:  # as above
        raise refuse_config(file, error) from None


def refuse_config(file: Path, error: Exception) -> BadRequest:
    """The error for whatever transformers raised of a config."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
    return BadRequest(f"model {file}", f"transformers cannot build it ({reason})", "correct the config")


def describe(
    directory: Path, *, label: str, config: Mapping[str, Any], weights: tuple[Path, ...], note: str | None = None
) -> ResolvedModel:
    """A checkpoint directory as it is resolved, with its revision."""
    positions = read_text_setting(config, "max_position_embeddings")
    return ResolvedModel(
        path=directory,
        label=label,
        family=config["model_type"],
        revision=compute_revision(directory, weights),
        positions=positions if isinstance(positions, int) else None,
        note=note,
    )
