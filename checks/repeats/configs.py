"""The configuration that is saved beside weights, against the one in force and the one asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from checks.captures.records import StepRecord
from checks.captures.saved import SavedCheckpoint
from checks.repeats.roundtrip import Problem
from checks.spec import RunSpec

Flat = Mapping[str, object]

_WRITTEN_BY = frozenset({"_name_or_path", "name_or_path", "transformers_version"})
"""who wrote it, from what: no setting of the model"""
_RUN = frozenset({"architectures", "dtype", "torch_dtype", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id"})
"""what a framework may settle for itself: the dtype it trains in, the cache, the special tokens of its tokenizer"""


def compare_config(saved: SavedCheckpoint, in_force: Flat, asked: Flat) -> Iterator[Problem]:
    """Settings of config.json that are not those of the model in force, or not those asked for: the ones both state."""
    if saved.config is None:
        return
    for key, value in saved.config.items():
        if key in _WRITTEN_BY:
            continue
        if key in in_force and not _equal(value, in_force[key]):
            yield Problem(f"config.{key}", f"config.json says {key} {_show(value)}, in force {_show(in_force[key])}")
        elif key in asked and key not in _RUN and not _equal(value, asked[key]):
            yield Problem(f"config.{key}", f"config.json says {key} {_show(value)}, asked {_show(asked[key])}")


def compare_adapter_config(saved: SavedCheckpoint, spec: RunSpec, record: StepRecord) -> Iterator[Problem]:
    """Rank, scaling and targets of saved adapters: what a load makes of them, against what trained them.

    An adapter is scaled by alpha / r, rank-stabilised ones by alpha / √r (arXiv:2312.03732).
    """
    config = saved.adapter_config
    if config is None:
        yield Problem("adapter_config.json", "adapters are saved without adapter_config.json")
        return
    r, alpha = config.get("r"), config.get("lora_alpha")
    if r != spec.lora_r:
        yield Problem("r", f"adapter_config.json says r {r}, asked {spec.lora_r}")
    elif isinstance(alpha, int | float) and not any(config.get(key) for key in ("rank_pattern", "alpha_pattern")):
        scaling = alpha / (math.sqrt(spec.lora_r) if config.get("use_rslora") else spec.lora_r)
        trained = next(_scalings(record), spec.lora_alpha / spec.lora_r)
        if not math.isclose(scaling, trained, rel_tol=1e-9):
            said = f"adapter_config.json scales the adapters by {scaling:g} (lora_alpha {alpha:g})"
            yield Problem("lora_alpha", f"{said}, they were trained with {trained:g}")
    targets = config.get("target_modules")
    if isinstance(targets, list) and {str(t).rsplit(".", 1)[-1] for t in targets} != set(spec.lora_targets):
        found = f"adapter_config.json targets {', '.join(sorted(map(str, targets)))}"
        yield Problem("target_modules", f"{found}, asked {', '.join(sorted(spec.lora_targets))}")


def _scalings(record: StepRecord) -> Iterator[float]:
    for attributes in record.scalars.values():
        for name, value in attributes.items():
            if name.startswith("scaling.") and isinstance(value, int | float):
                yield float(value)


def _equal(a: object, b: object) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-12, abs_tol=0.0)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def _show(value: object) -> str:
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
