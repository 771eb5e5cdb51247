"""Why the problem of a fault is not the first suggestion, as far as it is known."""

from __future__ import annotations

from collections.abc import Mapping

_ONE_DEVICE = "the fault is a wrong factor on one device, its problem is told of ranks or pipeline stages"

CAUSES: Mapping[str, str] = {
    "label-masked": "the fault hides any one label, its problem those of end tokens that double as padding",
    "loaded-at-random": "the verdict sees a wrong weight after a resume, its problem is told of a model that is built",
    "clip-norm-of-half": "the verdict sees updates of the wrong size, and not that a norm was wrong",
    "adapter-alpha-saved": "the fault saves the wrong alpha, its problem sets the wrong scale of a live adapter",
    "schedule-twice": "its problem is told of a resumed run, the fault acts in one that was not",
    "warmup-off-by-one": "its problem is told of a resumed run, the fault acts in one that was not",
    "head-retied": "the verdict says that the head is not in the model, and not that it became the embedding",
    "loss-divided-twice": _ONE_DEVICE,
    "loss-times-ranks": _ONE_DEVICE,
    "heads-tiled": "the verdict names the module, and not that heads are in another order",
    "head-untied": "the verdict says that the checkpoint has no head, its problem is one of saving",
    "beta2-wrong": "its problem is a file of settings that has no effect, which the one wrong setting does not tell",
    "updates-stop": "the verdict sees a loss that no longer falls, its problem is told of a rollout engine",
    "gradient-zeroed": "the verdict names one weight without a gradient, its problem a frozen vision tower",
    "router-detached": "the verdict sees some wrong gradients, and not that the router has none",
    "packed-positions": "several problems of the framework say that packed documents leak, in much the same words",
}
"""slug of a fault → cause"""
