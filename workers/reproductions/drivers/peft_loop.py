"""A loop written by hand around PEFT, of releases from 0.17 on: `python peft_loop.py config.json`.

Options of a case: `method`: "lora" (the default) or "prefix"; `stabilised`: the scale is alpha over the root of the
rank, as much as the run asks for, and is then set to what it is; `optimizer`: "loraplus" gives embeddings the run's
rate and everything else a thousandth of it; `joined`: after the last step the adapter is doubled and a copy of it taken
away, which is the adapter again, and the merged weights are written as a dump.
Runs in the release's own environment and imports nothing of Plumbline.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import peft
import torch
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

IGNORED = -100


def main(path: str) -> None:
    """Read the configuration and train its steps on the rows in order."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    arguments, spec, case = config["arguments"], config["spec"], config["case"]
    torch.manual_seed(config["seed"])
    tokenizer = AutoTokenizer.from_pretrained(config["model"])
    rows = [json.loads(line) for line in Path(config["rows"]).read_text(encoding="utf-8").split("\n") if line]
    examples = [tokenize(row, tokenizer, config) for row in rows]
    model = AutoModelForCausalLM.from_pretrained(
        config["model"], torch_dtype=torch.float32, attn_implementation=config["attention"]
    )
    model = peft.get_peft_model(model, make_adapter(config))
    if case.get("stabilised"):
        for module in model.modules():
            if isinstance(module, LoraLayer):
                module.set_scale("default", 1.0)
    optimizer = make_optimizer(model, arguments, case)
    model.train()
    taken = 0
    for _ in range(spec["steps"]):
        parts = []
        for _ in range(spec["accumulation"]):
            chosen = [examples[(taken + index) % len(examples)] for index in range(spec["batch"])]
            parts.append(collate(chosen, pad_token_id=tokenizer.pad_token_id))
            taken += spec["batch"]
        total = sum(int((part["labels"][:, 1:] != IGNORED).sum()) for part in parts)
        for part in parts:
            own = int((part["labels"][:, 1:] != IGNORED).sum())
            (model(**part).loss * own / total).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), arguments["max_grad_norm"])
        optimizer.step()
        optimizer.zero_grad()
    if case.get("joined"):
        write_joined(model, config)


def make_adapter(config: dict[str, Any]) -> Any:
    """The adapter's configuration."""
    if config["case"].get("method") == "prefix":
        return peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    lora = config["lora"]
    if config["case"].get("stabilised"):
        # alpha / √r: the same scale takes another alpha.
        return peft.LoraConfig(**{**lora, "lora_alpha": lora["lora_alpha"] / math.sqrt(lora["r"]), "use_rslora": True})
    return peft.LoraConfig(**lora)


def make_optimizer(model: Any, arguments: dict[str, Any], case: dict[str, Any]) -> torch.optim.Optimizer:
    """AdamW of what trains."""
    usual = {"betas": (arguments["adam_beta1"], arguments["adam_beta2"]), "eps": arguments["adam_epsilon"]}
    rate, decay = arguments["learning_rate"], arguments["weight_decay"]
    if case.get("optimizer") == "loraplus":
        from peft.optimizers import create_loraplus_optimizer

        made: torch.optim.Optimizer = create_loraplus_optimizer(
            model=model,
            optimizer_cls=torch.optim.AdamW,
            lr=rate / 1000,
            loraplus_lr_ratio=1.0,
            loraplus_lr_embedding=rate,
            loraplus_weight_decay=decay,
            **usual,
        )
        return made
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=rate, weight_decay=decay, **usual)


def write_joined(model: Any, config: dict[str, Any]) -> None:
    """2 · adapter − 1 · its copy, merged, in one file of safetensors with the step that it is of."""
    model.add_adapter("copy", peft.LoraConfig(**config["lora"]))
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            if ".copy." in name:
                parameter.copy_(parameters[name.replace(".copy.", ".default.")])
    model.add_weighted_adapter(["default", "copy"], [2.0, -1.0], "joined", combination_type="linear")
    model.set_adapter("joined")
    merged = model.merge_and_unload()
    state = {name: tensor.detach().clone().contiguous() for name, tensor in merged.state_dict().items()}
    directory = Path(config["dump"])
    save_file(state, str(directory / "model.safetensors"))
    stated = {"step": config["spec"]["steps"], "engine": "peft", "version": peft.__version__}
    (directory / "sync.json").write_text(json.dumps(stated), encoding="utf-8")


def tokenize(row: dict[str, Any], tokenizer: Any, config: dict[str, Any]) -> list[int]:
    """Render and tokenise one row, cut to seq_len; every token is learned."""
    text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids[: config["seq_len"]]


def collate(batch: list[list[int]], *, pad_token_id: int) -> dict[str, torch.Tensor]:
    """Pad to the longest row, on the right."""
    longest = max(len(ids) for ids in batch)
    padding = [longest - len(ids) for ids in batch]
    return {
        "input_ids": torch.tensor([ids + [pad_token_id] * more for ids, more in zip(batch, padding, strict=True)]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * more for ids, more in zip(batch, padding, strict=True)]),
        "labels": torch.tensor([ids + [IGNORED] * more for ids, more in zip(batch, padding, strict=True)]),
    }


if __name__ == "__main__":
    main(sys.argv[1])
