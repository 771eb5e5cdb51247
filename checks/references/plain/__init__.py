"""Independent decoders of six families, written from the published definitions: no model code of transformers."""

from __future__ import annotations

from checks.references.plain.config import PlainConfig
from checks.references.plain.families import FAMILIES, read_config
from checks.references.plain.load import load_plain
from checks.references.plain.modules import PlainCausalLM
from checks.references.plain.rope import RopeSettings, UnsupportedModel, inverse_frequencies

__all__ = [
    "FAMILIES",
    "PlainCausalLM",
    "PlainConfig",
    "RopeSettings",
    "UnsupportedModel",
    "inverse_frequencies",
    "load_plain",
    "read_config",
]
