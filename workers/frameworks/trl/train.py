"""Train with TRL's SFTTrainer as one JSON file says: `python train.py config.json`.

Runs in the framework's environment and imports nothing of Plumbline.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import SFTConfig, SFTTrainer


def main(path: str) -> None:
    """Read the configuration, train, and leave trainer_state.json in the output directory."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in Path(config["rows"]).read_text(encoding="utf-8").split("\n") if line]
    model = AutoModelForCausalLM.from_pretrained(
        config["model"], dtype=getattr(torch, config["dtype"]), attn_implementation=config["attention"]
    )
    arguments = SFTConfig(
        **config["arguments"],
        use_cpu=not torch.cuda.is_available(),
        router_aux_loss_coef=find_auxiliary_coefficient(model.config),
    )
    model, peft_config = add_adapters(model, config)
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[: config["evaluated_rows"]]) if "evaluated_rows" in config else None,
        processing_class=AutoTokenizer.from_pretrained(config["model"]),
        peft_config=peft_config,
    )
    trainer.train(resume_from_checkpoint=config.get("resume_from"))
    trainer.save_state()
    if "export" in config:
        trainer.save_model(config["export"])


def find_auxiliary_coefficient(model_config: Any) -> float:
    """Weight of the load-balancing loss: the config's, where the config asks for router logits.

    TRL's default adds the loss to every mixture of experts whose config has a weight, even with router logits off.
    """
    asked = getattr(model_config, "output_router_logits", False)
    return float(getattr(model_config, "router_aux_loss_coef", 0.0)) if asked else 0.0


def add_adapters(model: Any, config: dict[str, Any]) -> tuple[Any, Any]:
    """Return the model and the adapter configuration that SFTTrainer is to apply to it, or None."""
    if config["lora"] is None:
        return model, None
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(**config["lora"])
    if config["dtype"] == "float32":
        return model, lora
    # SFTTrainer lets PEFT raise the adapters to float32; a run whose parameters are bfloat16 keeps them so.
    set_seed(config["seed"])
    return get_peft_model(model, lora, autocast_adapter_dtype=False), None


if __name__ == "__main__":
    main(sys.argv[1])
