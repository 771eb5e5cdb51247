"""A verdict's words without what differs from run to run: numbers, layers, samples, quoted text."""

from __future__ import annotations

import re

MODULE = re.compile(r"(?<![\w./])(?:model|base_model|transformer|decoder|lm_head|embedding|module)(?:\.\w+)+")
"""A path of modules, as `named_parameters` gives it."""
_ROOTS = frozenset(
    {"model", "base_model", "module", "transformer", "decoder", "language_model", "layers", "h", "blocks"}
)
"""Parts of a path that say where in the model's tree a module hangs, not what it is."""
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'(?!\w)|\"[^\"]*\"")
_LISTED = re.compile(r"\[[^\[\]]*\]")
_NUMBER = re.compile(r"(?<![\w.])[-+−]?\d+(?:[,_]\d{3})*(?:\.\d+)*(?:e[-+]?\d+)?(?![A-Za-z])", re.IGNORECASE)
_MORE = re.compile(r",? and # (?:others?|more)\b[^;]*", re.IGNORECASE)
_PLACES = re.compile(
    r",? (?:first (?:(?:at|in|on) )?(?:step|micro-batch|position|row|epoch|sample)|in # of # documents|worst)\b.*"
)
"""Where in the data or in the model a fault was first met, or is largest."""
_SPACE_BEFORE = re.compile(r" (?=[,;:])")
LONGEST = 200
"""Characters of a statement that are kept: later ones list further tensors."""


def generalise_module(path: str) -> str:
    """What a module is, without where it hangs: its path without the tree's roots and without indices.

    >>> generalise_module("model.layers.3.self_attn.q_proj.weight")
    'self_attn.q_proj.weight'
    >>> generalise_module("model.layers.0.mlp.experts.7.down_proj.weight")
    'mlp.experts.down_proj.weight'
    >>> generalise_module("model.layers.1")
    'layer'
    """
    parts = [part for part in path.split(".") if not part.isdigit() and part not in _ROOTS]
    return ".".join(parts) or ("layer" if any(part.isdigit() for part in path.split(".")) else "model")


def generalise_place(place: str) -> str:
    """`first_wrong` without layers and numbers.

    >>> generalise_place("exp_avg of model.layers.0.mlp.up_proj.weight (step 1)")
    'exp_avg of mlp.up_proj.weight'
    >>> generalise_place("cache at position 12")
    'cache at position #'
    """
    return _tidy(_NUMBER.sub("#", _name_modules(_without_parentheses(place))))


def generalise_sentence(sentence: str) -> str:
    """The first statement of a verdict's sentence, without quotations, asides, numbers and places in the data.

    >>> generalise_sentence("every gradient is 0.5× the reference (worst model.norm.weight); it is off by 3e-05")
    'every gradient is #× the reference'
    """
    plain = _without_parentheses(_QUOTED.sub("…", sentence))
    plain = _LISTED.sub("…", _name_modules(plain)).split("; ")[0]
    plain = _NUMBER.sub("#", plain)
    return _tidy(_PLACES.sub("", _MORE.sub("", plain)))[:LONGEST].rstrip(" ,:")


def _name_modules(text: str) -> str:
    return MODULE.sub(lambda found: generalise_module(found[0]), text)


def _without_parentheses(text: str) -> str:
    """The text without what stands in parentheses, however deep they are nested; one that is left open stays."""
    kept: list[str] = []
    opened: list[int] = []
    for character in text:
        if character == ")" and opened:
            del kept[opened.pop() :]
            continue
        if character == "(":
            opened.append(len(kept))
        kept.append(character)
    return "".join(kept)


def _tidy(text: str) -> str:
    """One space between words, none before a comma that an aside stood before."""
    return _SPACE_BEFORE.sub("", " ".join(text.split()))
