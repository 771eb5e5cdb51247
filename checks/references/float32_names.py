"""Parameters that a model class keeps in float32 although it is loaded in a narrower dtype: routers, mostly.

A class says so in two ways: by name patterns (`_keep_in_fp32_modules_strict`; `_keep_in_fp32_modules` concerns float16
alone), and by parameters that it builds in float32 whatever the dtype asked for
(https://github.com/huggingface/transformers/blob/main/src/transformers/core_model_loading.py). The declaration is the
class's own: a run is held to it, and a reference rounds only what a run may round.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from checks.errors import BadRequest


def read_float32_names(checkpoint: Path, held: torch.dtype) -> frozenset[str]:
    """Names of the parameters that transformers' class of a checkpoint keeps in float32 when loaded in `held`.

    Raises BadRequest for a config that transformers cannot build.
    """
    if held == torch.float32:
        return frozenset()
    import transformers  # takes seconds, and only a model needs it

    try:
        config = transformers.AutoConfig.from_pretrained(checkpoint, trust_remote_code=False, local_files_only=True)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=held, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().split("\n")[0].rstrip(".")
        found = f"transformers cannot build a model of it ({first})"
        remedy = "give the config of a causal language model"
        raise BadRequest(str(checkpoint / "config.json"), found, remedy) from error
    patterns = set(model._keep_in_fp32_modules_strict or ())
    if held == torch.float16:
        patterns |= set(model._keep_in_fp32_modules or ())
    declared = re.compile("|".join(f"(?:{p.replace('*', '.*')})" for p in sorted(patterns))) if patterns else None
    return frozenset(
        name
        for name, parameter in model.named_parameters()
        if parameter.dtype == torch.float32 or (declared is not None and declared.search(name))
    )
