"""Train with TRL's SFTTrainer or DPOTrainer as one JSON file says: `python train.py config.json`.

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
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer


def main(path: str) -> None:
    """Read the configuration, train, and leave trainer_state.json in the output directory."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in Path(config["rows"]).read_text(encoding="utf-8").split("\n") if line]
    rows_of = {
        "train_dataset": Dataset.from_list(rows),
        "eval_dataset": Dataset.from_list(rows[: config["evaluated_rows"]]) if "evaluated_rows" in config else None,
    }
    trainer = make_dpo_trainer(config, rows_of) if config["objective"] == "dpo" else make_sft_trainer(config, rows_of)
    trainer.train(resume_from_checkpoint=config.get("resume_from"))
    trainer.save_state()
    if "export" in config:
        trainer.save_model(config["export"])


def load_model(config: dict[str, Any]) -> Any:
    """The checkpoint's model in the dtype and with the attention that the run asks for."""
    return AutoModelForCausalLM.from_pretrained(
        config["model"], dtype=getattr(torch, config["dtype"]), attn_implementation=config["attention"]
    )


def make_sft_trainer(config: dict[str, Any], rows_of: dict[str, Any]) -> SFTTrainer:
    """Supervised fine-tuning: the next token."""
    model = load_model(config)
    arguments = SFTConfig(
        **config["arguments"],
        use_cpu=not torch.cuda.is_available(),
        router_aux_loss_coef=find_auxiliary_coefficient(model.config),
    )
    model, peft_config = add_adapters(model, config)
    tokenizer = AutoTokenizer.from_pretrained(config["model"])
    return SFTTrainer(model=model, args=arguments, processing_class=tokenizer, peft_config=peft_config, **rows_of)


def make_dpo_trainer(config: dict[str, Any], rows_of: dict[str, Any]) -> DPOTrainer:
    """Direct preference optimisation against the checkpoint's own weights, without any adapter."""
    model = load_model(config)
    arguments = DPOConfig(
        **config["arguments"],
        use_cpu=not torch.cuda.is_available(),
        router_aux_loss_coef=find_auxiliary_coefficient(model.config),
    )
    model, peft_config = add_adapters(model, config)
    # Of adapters that it was handed DPOTrainer would take a copy as its reference, not the checkpoint.
    handed = config["lora"] is not None and peft_config is None
    return DPOTrainer(
        model=model,
        ref_model=load_model(config) if handed else None,
        args=arguments,
        processing_class=AutoTokenizer.from_pretrained(config["model"]),
        peft_config=peft_config,
        **rows_of,
    )


def find_auxiliary_coefficient(model_config: Any) -> float:
    """Weight of the load-balancing loss: the config's, where the config asks for router logits.

    TRL's default adds the loss to every mixture of experts whose config has a weight, even with router logits off.
    """
    asked = getattr(model_config, "output_router_logits", False)
    return float(getattr(model_config, "router_aux_loss_coef", 0.0)) if asked else 0.0


def add_adapters(model: Any, config: dict[str, Any]) -> tuple[Any, Any]:
    """Return the model and the adapter configuration that the trainer is to apply to it, or None."""
    if config["lora"] is None:
        return model, None
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(**config["lora"])
    if config["dtype"] == "float32":
        return model, lora
    # TRL's trainers let PEFT raise the adapters to float32; a run whose parameters are bfloat16 keeps them so.
    set_seed(config["seed"])
    return get_peft_model(model, lora, autocast_adapter_dtype=False), None


if __name__ == "__main__":
    main(sys.argv[1])
