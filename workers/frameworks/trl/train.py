"""Train with TRL's trainer of an objective as one JSON file says: `python train.py config.json`.

Runs in the framework's environment and imports nothing of Plumbline.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

STOP_EVERY = 16
"""Every so many-th token ends a completion of GRPO, as the tokenizer's end token does."""


def main(path: str) -> None:
    """Read the configuration, train, and leave trainer_state.json in the output directory."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in Path(config["rows"]).read_text(encoding="utf-8").split("\n") if line]
    rows_of = {
        "train_dataset": Dataset.from_list(rows),
        "eval_dataset": Dataset.from_list(rows[: config["evaluated_rows"]]) if "evaluated_rows" in config else None,
    }
    trainer = MAKERS[config["objective"]](config, rows_of)
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


def make_orpo_trainer(config: dict[str, Any], rows_of: dict[str, Any]) -> Any:
    """Odds ratio preference optimisation, which has no reference model."""
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    model, peft_config = add_adapters(load_model(config), config)
    return ORPOTrainer(
        model=model,
        args=ORPOConfig(**config["arguments"], use_cpu=not torch.cuda.is_available()),
        processing_class=AutoTokenizer.from_pretrained(config["model"]),
        peft_config=peft_config,
        **rows_of,
    )


def make_kto_trainer(config: dict[str, Any], rows_of: dict[str, Any]) -> Any:
    """Desirable and undesirable answers against the checkpoint's own weights, without any adapter."""
    from trl import KTOConfig, KTOTrainer

    model = load_model(config)
    arguments = KTOConfig(
        **config["arguments"],
        use_cpu=not torch.cuda.is_available(),
        router_aux_loss_coef=find_auxiliary_coefficient(model.config),
    )
    model, peft_config = add_adapters(model, config)
    handed = config["lora"] is not None and peft_config is None  # as for DPO
    return KTOTrainer(
        model=model,
        ref_model=load_model(config) if handed else None,
        args=arguments,
        processing_class=AutoTokenizer.from_pretrained(config["model"]),
        peft_config=peft_config,
        **rows_of,
    )


def make_reward_trainer(config: dict[str, Any], rows_of: dict[str, Any]) -> Any:
    """A score of each answer, from a head that is drawn by the seed."""
    from transformers import AutoModelForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    set_seed(config["seed"])
    model = AutoModelForSequenceClassification.from_pretrained(
        config["model"], dtype=getattr(torch, config["dtype"]), attn_implementation=config["attention"], num_labels=1
    )
    return RewardTrainer(
        model=model,
        args=RewardConfig(**config["arguments"], use_cpu=not torch.cuda.is_available()),
        processing_class=AutoTokenizer.from_pretrained(config["model"]),
        **rows_of,
    )


def make_grpo_trainer(config: dict[str, Any], rows_of: dict[str, Any]) -> Any:
    """The model's own completions, rewarded by how many characters they share with prompt and known answer."""
    from trl import GRPOConfig, GRPOTrainer

    model = load_model(config)
    arguments = GRPOConfig(
        **config["arguments"],
        use_cpu=not torch.cuda.is_available(),
        router_aux_loss_coef=find_auxiliary_coefficient(model.config),
    )
    # Completions of an untrained model would all have the same length, which hides what lengths weigh.
    model.generation_config.eos_token_id = list(range(0, model.config.get_text_config().vocab_size, STOP_EVERY))
    model, peft_config = add_adapters(model, config)
    tokenizer = AutoTokenizer.from_pretrained(config["model"])
    room = config["seq_len"] - arguments.max_completion_length
    rows = rows_of["train_dataset"].filter(lambda row: count_tokens(tokenizer, row["prompt"]) <= room)
    if len(rows) == 0:
        raise SystemExit(f"no prompt has {room} tokens or fewer, which seq_len leaves beside a completion")
    return GRPOTrainer(
        model=model,
        reward_funcs=share_characters,
        args=arguments,
        train_dataset=rows,
        processing_class=tokenizer,
        peft_config=peft_config,
    )


def count_tokens(tokenizer: Any, prompt: Any) -> int:
    """Tokens of a prompt, which is text or turns."""
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    rendered = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return len(tokenizer(rendered, add_special_tokens=False)["input_ids"])


def share_characters(completions: list[Any], known: list[str], **_: Any) -> list[float]:
    """The reward of each completion: 2 · |characters in common with what is known| / (characters of both), from 0 to 1.

    It is deterministic, and two completions of an untrained model are seldom alike in it.
    """
    texts = [one if isinstance(one, str) else "".join(turn["content"] for turn in one) for one in completions]
    rewards = []
    for text, other in zip(texts, known, strict=True):
        common = sum((Counter(text) & Counter(other)).values())
        rewards.append(2.0 * common / max(len(text) + len(other), 1))
    return rewards


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


MAKERS = {
    "sft": make_sft_trainer,
    "dpo": make_dpo_trainer,
    "orpo": make_orpo_trainer,
    "kto": make_kto_trainer,
    "reward": make_reward_trainer,
    "grpo": make_grpo_trainer,
}


if __name__ == "__main__":
    main(sys.argv[1])
