"""Train tiny Hugging Face models in every variant, each in a forked process of its own rank: a script to record.

`python hf_variants.py RESULTS.json`: one import of the frameworks serves all variants. RESULTS.json maps each variant
to the losses logged and the SHA-256 of all parameters and of the random number generators after the training.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from trl import SFTConfig, SFTTrainer

VOCABULARY, POSITIONS, PROMPT = 120, 20, 5
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
TRAINED = [
    f"{framework} {parameters} {precision}"
    for framework in ("trainer", "trl")
    for parameters in ("full", "lora")
    for precision in ("float32", "bf16")
]
ROUTED: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
    "deepseek_v3": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    "glm4_moe": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
        "head_dim": 8,
    },
    "qwen3_next": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
}
VARIANTS = [*TRAINED, *(f"loop {family}" for family in ROUTED)]


def rows() -> list[dict[str, list[int]]]:
    """Return 12 rows whose first tokens do not count."""
    generator = torch.Generator().manual_seed(5)
    made = []
    for _ in range(12):
        tokens: list[int] = torch.randint(3, VOCABULARY, (POSITIONS,), generator=generator).tolist()
        made.append({"input_ids": tokens, "labels": [-100] * PROMPT + tokens[PROMPT:]})
    return made


def train(variant: str, directory: str) -> tuple[Any, list[float]]:
    """Run three steps of two micro-batches with gradient checkpointing; returns the model and the losses."""
    framework, parameters, precision = variant.split()
    model: Any = LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=0.1))
    lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    settings: dict[str, Any] = {
        "output_dir": directory,
        "max_steps": 3,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "activation_checkpointing": True,
        "bf16": precision == "bf16",
        "max_grad_norm": 0.05,
        "learning_rate": 1e-2,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "use_cpu": True,
    }
    trainer: Any
    if framework == "trl":
        vocabulary = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token="t0", eos_token="t1")
        trainer = SFTTrainer(
            model,
            args=SFTConfig(**settings, max_length=64),
            train_dataset=Dataset.from_list(rows()),
            processing_class=tokenizer,
            peft_config=lora if parameters == "lora" else None,
        )
    else:
        if parameters == "lora":
            model = get_peft_model(model, lora)
        trainer = Trainer(model, TrainingArguments(**settings), train_dataset=rows())
    trainer.train()
    return trainer.model, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def loop(family: str) -> tuple[Any, list[float]]:
    """Run three steps of a mixture of experts in a plain loop."""
    config = AutoConfig.for_model(family, **{**SIZES, **ROUTED[family]})
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        batch = rows()[2 * step : 2 * step + 2]
        tensors = {key: torch.tensor([row[key] for row in batch]) for key in ("input_ids", "labels")}
        loss = model(**tensors, use_cache=False).loss
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return model, losses


def digest(model: Any) -> dict[str, str]:
    """Return the SHA-256 of the parameters, and of the states of the random number generators."""
    content = b"".join(p.detach().float().numpy().tobytes() for p in model.parameters())
    states = repr((random.getstate(), numpy.random.get_state())).encode() + torch.get_rng_state().numpy().tobytes()
    return {"parameters": hashlib.sha256(content).hexdigest(), "rng": hashlib.sha256(states).hexdigest()}


def main() -> None:
    """Fork once a variant; a variant's number is its rank."""
    results: dict[str, Any] = {}
    for rank, variant in enumerate(VARIANTS):
        with tempfile.TemporaryDirectory() as directory:
            child = os.fork()
            if child == 0:
                os.environ["RANK"] = str(rank)
                torch.manual_seed(0)
                random.seed(0)
                numpy.random.seed(0)
                framework, rest = variant.split(maxsplit=1)
                model, losses = loop(rest) if framework == "loop" else train(variant, directory)
                Path(directory, "result.json").write_text(json.dumps({"losses": losses, **digest(model)}))
                sys.stdout.flush()
                os._exit(0)
            if os.waitpid(child, 0)[1] != 0:
                raise SystemExit(f"{variant}: failed")
            results[variant] = json.loads(Path(directory, "result.json").read_text())
    Path(sys.argv[1]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
