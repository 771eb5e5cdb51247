"""Model families as problems name them, against the class of the model that a run trains."""

from __future__ import annotations

import re
from collections.abc import Sequence

ALIASES = {"qwen25": "qwen2", "llama2": "llama", "llama3": "llama", "xlmr": "xlmroberta"}
"""a family's usual name → the beginning of its class's, where they differ"""

LOADED_CLASSES = re.compile(r"custom model classes")
"""Code that comes with a checkpoint is not run, so that the model's class is one of transformers' own."""

_DESCRIPTION = re.compile(r"\b(models?|other|data|recipes?|drafts?|heads?)\b", re.IGNORECASE)
_CLASS_END = re.compile(r"(For[A-Z].*|LMHeadModel|Model)$")
_QUALIFIER = re.compile(r"\s+(without|with|small|dense|hybrids?|thinking)\b.*")


def concerns(models: Sequence[str], model_class: str) -> bool | None:
    """Whether a model of that class is one of those named; None where a description leaves it open.

    >>> concerns(["Mistral", "Gemma 3"], "Gemma3ForCausalLM"), concerns(["Qwen3"], "Qwen3_5ForCausalLM")
    (True, False)
    >>> concerns(["GPT-2", "other models without loss arguments"], "LlamaForCausalLM") is None
    True
    """
    stem = _squeeze(_CLASS_END.sub("", model_class))
    described = False
    for entry in models:
        if LOADED_CLASSES.search(entry):
            continue
        parts = re.split(r"\s*/\s*|,\s*|\s+and\s+", entry)
        for part in parts:
            if _DESCRIPTION.search(_QUALIFIER.sub("", part)):
                described = True
                continue
            name = _squeeze(_QUALIFIER.sub("", part))
            name = ALIASES.get(name, name)
            # A digit after the name is another generation: qwen3 is not qwen3_5, gemma is not gemma3.
            if name and re.match(rf"{re.escape(name)}(?!\d)", stem):
                return True
    return None if described else False


def _squeeze(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
