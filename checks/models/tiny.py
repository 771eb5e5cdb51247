"""Building a checkpoint of random but non-degenerate weights: the twelve tiny families, or a given config."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from checks.models.cache import build_once, hash_content, hash_file
from checks.models.families import FAMILIES
from checks.models.tokenizer import CHAT_TEMPLATE, train_tokenizer, write_tokenizer

SEED = 20


def build_tiny(family: str) -> Path:
    """Return the directory of the tiny checkpoint of `family`, building it in the cache where it is missing.

    `family` is a key of FAMILIES. The directory is an ordinary checkpoint: config.json, model.safetensors,
    generation_config.json, tokenizer.json, tokenizer_config.json, chat_template.jinja.
    """
    settings = {"model_type": family, **FAMILIES[family]}
    key = hash_content(describe_recipe(settings, tokenizer=train_tokenizer()))

    def build(directory: Path) -> None:
        write_checkpoint(settings, directory, seed=SEED)
        write_tokenizer(directory)

    return build_once(f"tiny-{family}-{key}", build)


def describe_recipe(settings: Mapping[str, Any], *, tokenizer: object) -> Mapping[str, Any]:
    """Return all that decides the content of a built checkpoint, as JSON values: its hash is the cache's key."""
    return {
        "settings": dict(settings),
        "seed": SEED,
        "weights": hash_file(Path(__file__).with_name("weights.py")),
        "tokenizer": tokenizer,
        "template": CHAT_TEMPLATE,
        # The library fills in a config's defaults and lays the file out.
        "transformers": version("transformers"),
    }


def write_checkpoint(settings: Mapping[str, Any], directory: Path, *, seed: int) -> None:
    """Write config.json, model.safetensors and generation_config.json of a float32 model with spread weights.

    `settings` is the content of a config.json. Raises what transformers raises for a config it cannot build.
    """
    # Imported late: a checkpoint that is in the cache already is found in milliseconds, without torch.
    torch, transformers = import_module("torch"), import_module("transformers")
    spread_weights = import_module("checks.models.weights").spread_weights
    overrides = {key: value for key, value in settings.items() if key not in ("model_type", "torch_dtype", "dtype")}
    config = transformers.AutoConfig.for_model(settings["model_type"], **overrides)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    spread_weights(model, seed=seed)
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(directory)


def estimate_bytes(settings: Mapping[str, Any]) -> int:
    """Return the size of the float32 weights that a config describes, without allocating them."""
    return 4 * sum(count_parameters(settings).values())


def count_parameters(settings: Mapping[str, Any]) -> Mapping[str, int]:
    """Return how many values each parameter of a config's model has, without allocating them.

    Raises what transformers raises for a config it cannot build.
    """
    torch, transformers = import_module("torch"), import_module("transformers")
    overrides = {key: value for key, value in settings.items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(settings["model_type"], **overrides)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return {name: int(parameter.numel()) for name, parameter in model.named_parameters()}
