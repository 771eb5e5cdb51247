"""Why a fault is missed or misnamed, a healthy run cried out over, or a variant left out, as far as it is known."""

from __future__ import annotations

from collections.abc import Mapping

CAUSES: Mapping[str, str] = {
    "expert-gradients-halved": "a module is named only where one kind of parameter differs, and experts are two kinds",
    "gradient-zeroed": "a gradient that is missing is read as a matter of the objective",
    "odds-of-sums": "ORPO of TRL 1.16.0 ends conversational answers twice, which data.preference names first",
    "orpo-not-divided": "ORPO of TRL 1.16.0 ends conversational answers twice, which data.preference names first",
}
"""slug of a fault → cause"""

ALARM_CAUSES: Mapping[str, str] = {}
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
    ("resumed", "adapters under precision=bf16_params"): "Trainer of transformers 5.24 resumes adapters by PEFT's "
    "load_adapter, which raises them to float32 (autocast_adapter_dtype), whatever they were trained and saved in; "
    "checkpoint.roundtrip and checkpoint.resume say so, and it is true",
}
"""(variant, family) → why it is no healthy run"""
