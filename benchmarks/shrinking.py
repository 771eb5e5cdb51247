"""Which families of transformers shrink to a model that trains: `python -m benchmarks.shrinking`.

Of every model_type that transformers has a causal language model for, the default config is shrunk, built with spread
weights, and computes one forward and backward in float32 on two rows of 96 tokens. For those that do not, the default
config itself is built without memory for its weights, so that it is known whose doing it is. Prints the table of
docs/models.md; about a CPU-minute.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module

import torch

from checks.models.shrinking import complete_config, shrink_config
from checks.models.shrunk import MOST_PARAMETERS
from checks.models.tiny import count_parameters
from checks.models.weights import spread_weights

ROWS, TOKENS = 2, 96
LOWEST, HIGHEST = 3, 500
"""Of the token ids that are drawn: no special ones, and within every small vocabulary."""


@dataclass(frozen=True)
class Outcome:
    """What became of one family; `why` is empty where it trains, `alone`: its default config fails unshrunk too."""

    family: str
    parameters: int
    why: str
    alone: bool = False


def try_family(family: str) -> Outcome:
    """Shrink the family's default config, build it, and compute a gradient."""
    parameters = 0
    try:
        config = dict(shrink_config({"model_type": family}).config)
        parameters = sum(count_parameters(config).values())
        if parameters > MOST_PARAMETERS:
            raise ValueError(f"{parameters / 1e6:.0f} million parameters")
        _compute(config)
    except Exception as error:  # whatever any family raises is what is to be reported
        why = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        return Outcome(family, parameters, why, _fails_alone(family))
    return Outcome(family, parameters, "")


def _compute(config: dict[str, object]) -> None:
    transformers = import_module("transformers")
    settings = {key: value for key, value in config.items() if key != "model_type"}
    built = transformers.AutoConfig.for_model(config["model_type"], **settings)
    model = transformers.AutoModelForCausalLM.from_config(built, dtype=torch.float32).train()
    model.config.use_cache = False
    spread_weights(model, seed=0)
    ids = torch.randint(LOWEST, HIGHEST, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not all(bool(value.isfinite().all()) for value in (loss, *gradients)):
        raise ValueError("loss or gradients are not finite")


def _fails_alone(family: str) -> bool:
    """Whether transformers builds no model of the default config itself."""
    try:
        count_parameters(complete_config({"model_type": family}))
    except Exception:  # as above
        return True
    return False


def render(outcomes: Iterable[Outcome]) -> str:
    """The section of docs/models.md."""
    found = list(outcomes)
    failed = [outcome for outcome in found if outcome.why]
    alone = sum(outcome.alone for outcome in failed)
    version = import_module("transformers").__version__
    largest = max(found, key=lambda outcome: 0 if outcome.why else outcome.parameters)
    lines = [
        f"{len(found) - len(failed)} of the {len(found)} families that transformers {version} has a causal language "
        "model for shrink from their default config, build, and compute a finite loss and finite gradients in float32; "
        f"the largest, {largest.family}, has {largest.parameters:,} parameters. Of the {len(failed)} others, {alone} "
        "build no model from their own default config either.",
        "",
        "| family | why not | default config builds |",
        "| --- | --- | --- |",
        *(f"| {o.family} | {o.why.replace('|', '/')} | {'no' if o.alone else 'yes'} |" for o in failed),
    ]
    return "\n".join(lines)


def main(families: list[str]) -> None:
    """Try these families, or all, and print the section."""
    warnings.filterwarnings("ignore")
    import_module("transformers").logging.set_verbosity_error()
    torch.set_num_threads(1)
    names = import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    print(render(try_family(family) for family in families or names))


if __name__ == "__main__":
    main(sys.argv[1:])
