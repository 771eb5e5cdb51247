"""Why a fault is missed or misnamed, a healthy run cried out over, or a variant left out, as far as it is known."""

from __future__ import annotations

from collections.abc import Mapping

_FORWARD = (
    "a wrong forward is read by the tokens that it moves; nothing asks whether the difference is one of precision"
)
_ROUNDED = "step.settings reads any weight that differs as state transfer, also one that is the checkpoint's in bf16"

CAUSES: Mapping[str, str] = {
    "label-smoothing": "the trainer takes the labels out of the batch and computes its loss without cross_entropy, so "
    "that the recorder sees no target and every check that needs one is inconclusive",
    "step-each-micro-batch": "no check compares the number of a step's micro-batches with the asked accumulation, and "
    "step.accumulation says that the two runs had other rows",
    "expert-gradients-halved": "a module is named only where one kind of parameter differs, and experts are two kinds",
    "gradient-zeroed": "a gradient that is missing is read as a matter of the objective",
    "gradients-bf16": "a forward that agrees under gradients that all differ is read as a matter of the objective",
    "rope-bf16": "step.settings reads any setting that differs as drift of the model's definition",
    "rope-angles-bf16": _FORWARD,
    "softmax-bf16": _FORWARD,
    "noisy-layer": _FORWARD,
    "decay-rounded": _ROUNDED,
    "master-weights-bf16": _ROUNDED,
    "no-autocast": "step.settings reads a wrong dtype or autocast as drift of the model's definition",
}
"""slug of a fault → cause"""

ALARM_CAUSES: Mapping[str, str] = {
    "healthy/packed/deepseek_v32": "seen where documents are longer than the 64 keys that its sparse attention keeps, "
    "not with seq_len=64; the floor of whole tensors is above a tenth of their norm there",
    "healthy/lora-packed/deepseek_v32": "as packed/deepseek_v32",
    "healthy/bf16-params/deepseek_v3": "transformers holds the router in float32 whatever dtype is asked; the checks "
    "do not know of it",
    "healthy/bf16-params/deepseek_v32": "as bf16-params/deepseek_v3",
    "healthy/bf16-params/glm4_moe": "as bf16-params/deepseek_v3",
}
"""name of a healthy case → cause"""

_REFUSED = "transformers 5.24 refuses to pack linear attention without the causal_conv1d kernel"

LEFT_OUT: Mapping[tuple[str, str], str] = {
    ("packed", "qwen3_next"): _REFUSED,
    ("packed", "qwen3_5_text"): _REFUSED,
    ("packed", "gpt_oss"): "GptOssModel of transformers 5.24 makes its masks without position_ids, so that packed "
    "documents see each other; data.packing says so, and it is true",
    (
        "resumed",
        "mixtures of experts",
    ): "Trainer of transformers 5.24 loads a saved state dict by the names of the file, "
    "and fused experts have others there, so that they stay as the model was built; checkpoint.resume says so of "
    "qwen3_moe, and it is true",
}
"""(variant, family) → why it is no healthy run"""
