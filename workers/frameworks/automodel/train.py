"""Train with NeMo AutoModel's own fine-tuning recipe, as one JSON file says: `python train.py config.json`.

The recipe is the framework's, unchanged; this file gives it its configuration, and rows as its data sets give them.

Runs in the framework's environment and imports nothing of Plumbline.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

IGNORED = -100


def main(path: str) -> None:
    """Read the configuration, and run the recipe from its setup to its end."""
    import torch
    from nemo_automodel.components.config.loader import ConfigNode, set_enable_user_modules
    from nemo_automodel.recipes.llm.train_ft import TrainFinetuneRecipeForNextTokenPrediction

    set_enable_user_modules(True)  # the rows below are no module of the framework's
    recipe = json.loads(Path(path).read_text(encoding="utf-8"))["recipe"]
    recipe["dist_env"] = {"backend": "nccl" if torch.cuda.is_available() else "gloo", "timeout_minutes": 5}
    if recipe["clip_grad_norm"]["max_norm"] == 0:
        recipe["clip_grad_norm"]["max_norm"] = math.inf  # none at all would be the recipe's default of 1
    if "tp_plan" in recipe["distributed"]:
        recipe["distributed"]["tp_plan"] = build_plan(recipe["distributed"]["tp_plan"])
    training = TrainFinetuneRecipeForNextTokenPrediction(ConfigNode(recipe))
    try:
        training.setup()
        for model in training.model_parts:
            draw_second_factors(model, seed=recipe["seed"])
        training.run_train_validation_loop()
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def build_plan(named: dict[str, str]) -> dict[str, Any]:
    """Return a plan of tensor parallel as the parallelizer takes it: module → style."""
    from nemo_automodel.components.distributed.parallel_styles import ReplicatedWithGradAllReduce
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    styles = {"columns": ColwiseParallel, "rows": RowwiseParallel, "summed": ReplicatedWithGradAllReduce}
    return {module: styles[style]() for module, style in named.items()}


def draw_second_factors(model: Any, *, seed: int) -> None:
    """Draw what LoRA begins as zero: else every gradient of the first factor is zero, and a wrong one is not seen."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            drawn = torch.randn(parameter.shape, generator=generator) / math.sqrt(parameter.shape[1])
            with torch.no_grad():
                parameter.copy_(drawn)


def build_rows(config: str, tokenizer: Any) -> Any:
    """Return the rows of a configuration, tokenised: `input_ids`, `attention_mask`, and `labels` shifted by one place.

    The recipe's loss holds the logits of a position against the label of the same one.
    """
    from datasets import Dataset

    content = json.loads(Path(config).read_text(encoding="utf-8"))
    lines = Path(content["rows"]).read_text(encoding="utf-8").split("\n")
    examples = [tokenize(json.loads(line), tokenizer, content) for line in lines if line]
    return Dataset.from_list([one for one in examples if any(label != IGNORED for label in one["labels"])])


def tokenize(row: dict[str, Any], tokenizer: Any, config: dict[str, Any]) -> dict[str, list[int]]:
    """Render and tokenise one row, cut to seq_len; labels are −100 where a token is not to be learned."""
    if "messages" in row:
        rendered = tokenizer.apply_chat_template(
            row["messages"],
            tools=row.get("tools"),
            return_dict=True,
            return_assistant_tokens_mask=config["assistant_only"],
        )
        ids = rendered["input_ids"]
        learned = rendered["assistant_masks"] if config["assistant_only"] else [1] * len(ids)
    else:
        text = row["text"] if "text" in row else row["prompt"] + row["completion"]
        ids = tokenizer(text if text.endswith(tokenizer.eos_token) else text + tokenizer.eos_token)["input_ids"]
        prompt = tokenizer(row["prompt"])["input_ids"] if config["assistant_only"] else []
        # The prompt's last token may merge with the completion's first.
        same = [one == other for one, other in zip(prompt, ids, strict=False)]
        context = same.index(False) if False in same else len(same)
        learned = [int(position >= context) for position in range(len(ids))]
    ids, learned = list(ids[: config["seq_len"]]), learned[: config["seq_len"]]
    labels = [token if keep else IGNORED for token, keep in zip(ids, learned, strict=True)]
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": [*labels[1:], IGNORED]}


if __name__ == "__main__":
    main(sys.argv[1])
