"""Runs a framework with and without faults in one process and writes down what happened: `measure.py FRAMEWORK DIR`.

Each case is a fork after the imports: a fault cannot be taken back. What is measured is measured below the faults, as
the recorder does: its wraps of torch are there before `install()`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.optim.optimizer import register_optimizer_step_pre_hook

from checks.faults import fault
from checks.models import resolve_model

STEPS = 2
ACCUMULATION = 2
BATCH = 2
LR = 1e-3
TEXTS = (
    "A hen lays 5 eggs a week. 7 hens lay 35.",
    "Three boxes of 12 pencils.",
    "A tram ticket costs 3; two adults and a child at half price pay 7.5 for one trip, and four times that for four.",
    "12 minus 9 is 3.",
    "Half of 8 is 4, and half of that is 2.",
    "One.",
    "The garden is 4 m wide and 6 m long, so that its fence measures 20 m and its lawn 24 square metres.",
    "She reads 11 pages a day.",
)


@dataclass(frozen=True)
class Variant:
    """What the plain run is changed to."""

    family: str = "qwen3"
    lora: bool = False
    packing: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


VARIANTS = {
    "plain": Variant(),
    "lora": Variant(lora=True),
    "moe": Variant(family="qwen3_moe"),
    "packed": Variant(packing=True),
    "warmup": Variant(settings={"lr_scheduler_type": "linear", "warmup_steps": 2}),
}
BY_FAULT = {
    "adapter-frozen": "lora",
    "one-expert-scaled": "moe",
    "packed-positions": "packed",
    "warmup-off-by-one": "warmup",
}
"""the variant a fault is measured in; the others in the plain one"""


def main(framework: str, directory: Path, slugs: list[str]) -> None:
    """Run every fault of `slugs` and the runs without one that they are compared with, each into `directory`/NAME."""
    _warm_up(framework)
    for name in sorted({BY_FAULT.get(slug, "plain") for slug in slugs}):
        _fork(directory / name, framework=framework, variant=VARIANTS[name], slug=None)
    for slug in slugs:
        variant = VARIANTS[BY_FAULT.get(slug, "plain")]
        _fork(directory / slug, framework=framework, variant=variant, slug=slug)


def _warm_up(framework: str) -> None:
    """Pay once, before the forks, for imports and for what the first model takes to load."""
    import peft  # noqa: F401
    from transformers import AutoModelForCausalLM, Trainer  # noqa: F401

    if framework == "trl":
        import trl  # noqa: F401
    AutoModelForCausalLM.from_pretrained(resolve_model("tiny:qwen3").path)
    gc.freeze()  # else accelerate's gc.collect() copies every page of the parent in every fork, 0.8 s each


def _fork(directory: Path, *, framework: str, variant: Variant, slug: str | None) -> None:
    directory.mkdir(parents=True)
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        if status:
            raise SystemExit(f"{directory.name}: {(directory / 'log.txt').read_text()[-3000:]}")
        return
    code = 1
    try:
        log = os.open(directory / "log.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _run_case(directory, framework=framework, variant=variant, slug=slug)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run_case(directory: Path, *, framework: str, variant: Variant, slug: str | None) -> None:
    seen: dict[str, Any] = {"backward": [], "labels": [], "counted": [], "positions": [], "rates": [], "groups": []}
    tensors: dict[str, torch.Tensor] = {}
    _watch_torch(seen, tensors)
    if slug is not None:
        namespace: dict[str, Any] = {}
        exec(compile(fault(slug).file.read_text(), str(fault(slug).file), "exec"), namespace)
        namespace["install"]()
    trainer = _make_trainer(framework, variant, directory)
    model = trainer.model
    seen["eps"] = {n: m.variance_epsilon for n, m in model.named_modules() if hasattr(m, "variance_epsilon")}
    seen["scaling"] = {n: m.scaling for n, m in model.named_modules() if n.endswith("self_attn")}
    seen["trainable"] = sorted(n for n, p in model.named_parameters() if p.requires_grad)
    tensors |= {f"before/{n}": p.detach().clone() for n, p in model.named_parameters()}
    tensors |= {f"buffer/{n}": b.detach().clone() for n, b in model.named_buffers()}
    names = {id(p): n for n, p in model.named_parameters()}
    step = {"count": 0}

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        step["count"] += 1
        seen["rates"].append(optimizer.param_groups[0]["lr"])
        if step["count"] == 1:
            seen["groups"] = [
                {
                    "weight_decay": group["weight_decay"],
                    "betas": group["betas"],
                    "names": [names[id(p)] for p in group["params"]],
                }
                for group in optimizer.param_groups
            ]
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    tensors[f"gradient{step['count']}/{names[id(parameter)]}"] = parameter.grad.detach().clone()

    register_optimizer_step_pre_hook(before_step)
    trainer.train()
    tensors |= {f"after/{n}": p.detach().clone() for n, p in model.named_parameters()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "tensors.safetensors")
    (directory / "seen.json").write_text(json.dumps(seen))


def _watch_torch(seen: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    backward = torch.autograd.backward

    def watched(loss: Any, *args: Any, **kwargs: Any) -> None:
        seen["backward"].append(float(loss[0] if isinstance(loss, tuple) else loss))
        backward(loss, *args, **kwargs)

    torch.autograd.backward = watched

    def at_the_door(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if kwargs.get("labels") is None or not module.training or type(module).__name__ == "PeftModelForCausalLM":
            return
        seen["labels"].append(kwargs["labels"].tolist())
        if kwargs.get("position_ids") is not None:
            seen["positions"].append(kwargs["position_ids"].tolist())
        if hasattr(output, "label_mask"):
            seen["counted"].append(int(output.label_mask.sum()))

    torch.nn.modules.module.register_module_forward_hook(at_the_door, with_kwargs=True)


def _make_trainer(framework: str, variant: Variant, directory: Path) -> Any:
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

    set_seed(0)
    checkpoint = resolve_model(f"tiny:{variant.family}").path
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="sdpa")
    arguments: dict[str, Any] = {
        "output_dir": str(directory / "out"),
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATION,
        "learning_rate": LR,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.1,
        "max_grad_norm": 1e9,  # never in force: what the optimizer sees is what was accumulated
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "seed": 0,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **variant.settings,
    }
    lora = _configure_lora() if variant.lora else None
    if framework == "trl":
        return _make_sft_trainer(model, tokenizer, arguments, lora, packing=variant.packing)
    return _make_plain_trainer(model, tokenizer, arguments, lora)


def _configure_lora() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def _make_plain_trainer(model: Any, tokenizer: Any, arguments: dict[str, Any], lora: Any) -> Any:
    from peft import get_peft_model
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    rows = [{"input_ids": tokenizer(text)["input_ids"]} for text in TEXTS]
    return Trainer(
        model=model if lora is None else get_peft_model(model, lora),
        args=TrainingArguments(**arguments),
        train_dataset=rows,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )


def _make_sft_trainer(model: Any, tokenizer: Any, arguments: dict[str, Any], lora: Any, *, packing: bool) -> Any:
    import trl
    from datasets import Dataset

    return trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(**arguments, max_length=64, packing=packing),
        train_dataset=Dataset.from_list([{"text": text} for text in TEXTS]),
        processing_class=tokenizer,
        peft_config=lora,
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
