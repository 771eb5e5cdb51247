"""What AutoModel's parameters are called in the Hugging Face checkpoint: the same, but for its stacked experts."""

from __future__ import annotations

from workers.frameworks.automodel.hooks import EXPERTS


def name_parameter(name: str) -> str:
    """The canonical name of one of AutoModel's parameters.

    >>> name_parameter("model.layers.0.mlp.experts.down_projs")
    'model.layers.0.mlp.experts.down_proj'
    """
    return next((found for each in EXPERTS if (found := each.rename(name)) is not None), name)
