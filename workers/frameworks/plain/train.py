"""Train a transformers model with a loop written by hand, as one JSON file says: `python train.py config.json`.

The work is divided by DistributedDataParallel, fully_shard, parallelize_module, or experts that lie on different ranks
(`division.py`). The k-th micro-batch of rank r is the (k · dp_size + r)-th of the step, so that
one process with dp_size times the micro-batches trains on the same ones.

Runs in the framework's environment and imports nothing of Plumbline.
"""

from __future__ import annotations

import json
import math
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, AutoTokenizer

IGNORED = -100
_DIVISION = runpy.run_path(str(Path(__file__).with_name("division.py")))
divide, add_head_gradients = _DIVISION["divide"], _DIVISION["add_head_gradients"]
SAVING = Path(__file__).with_name("saving.py")


def main(path: str) -> None:
    """Read the configuration, train, and leave trainer_state.json in the output directory."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    divided = max(config["dp_size"], config["tp_size"], config["ep_size"]) > 1
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if divided:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        log = train(config, device)
        if not divided or dist.get_rank() == 0:
            output = Path(config["arguments"]["output_dir"])
            output.mkdir(parents=True, exist_ok=True)
            (output / "trainer_state.json").write_text(json.dumps({"log_history": log}), encoding="utf-8")
    finally:
        if divided:
            dist.destroy_process_group()


def train(config: dict[str, Any], device: torch.device) -> list[dict[str, float]]:
    """Run the asked optimizer steps and return what was logged of each."""
    torch.manual_seed(config["seed"])
    model = AutoModelForCausalLM.from_pretrained(
        config["model"], dtype=getattr(torch, config["dtype"]), attn_implementation=config["attention"]
    ).to(device)
    model.config.use_cache = False
    if config["gradient_checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    model, group = divide(model, config, device)
    optimizer = make_optimizer(model, config)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, make_schedule(config))
    dp_size, dp_rank = config["dp_size"], dist.get_rank() if config["dp_size"] > 1 else 0
    scaler = torch.amp.GradScaler(device.type, enabled=config["autocast"] == "float16")
    batches = read_batches(config, rank=dp_rank)
    log: list[dict[str, float]] = []
    done = config.get("done", 0)
    if "resume_from" in config:
        runpy.run_path(str(SAVING))["load_state"](config["resume_from"], model, optimizer, schedule)
        for _ in range(done * config["accumulation"]):
            next(batches)
    for step in range(done + 1, config["steps"] + 1):
        micro_batches = [next(batches) for _ in range(config["accumulation"])]
        tokens = torch.tensor(sum(int((batch["labels"][:, 1:] != IGNORED).sum()) for batch in micro_batches))
        tokens = tokens.to(device)
        if dp_size > 1:
            dist.all_reduce(tokens)
        total = torch.zeros((), dtype=torch.float64)
        for index, batch in enumerate(micro_batches):
            last = index == len(micro_batches) - 1
            with synchronise(model, last=last), autocast(config, device):
                loss = model(**{k: v.to(device) for k, v in batch.items()}, num_items_in_batch=tokens).loss
                # DistributedDataParallel and fully_shard average over the ranks; the objective is a sum.
                scaler.scale(loss * dp_size).backward()
            total += loss.detach().double().cpu()
        if dp_size > 1:
            total = total.to(device)
            dist.all_reduce(total)
        if config["tp_size"] > 1:
            add_head_gradients(model, group)
        scaler.unscale_(optimizer)
        norm = clip(model, config, group)
        rate = float(schedule.get_last_lr()[0])
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:  # else the step was skipped, and the schedule counts updates
            schedule.step()
        optimizer.zero_grad()
        log.append({"step": step, "loss": float(total), "grad_norm": norm, "learning_rate": rate})
        if not dist.is_initialized() or dist.get_rank() == 0:
            print({key: value for key, value in log[-1].items() if key != "step"}, flush=True)
        if step == config.get("save_after"):
            runpy.run_path(str(SAVING))["save_state"](config["save_to"], model, optimizer, schedule)
            break
    return log


def synchronise(model: Any, *, last: bool) -> AbstractContextManager[None]:
    """Reduce gradients over the ranks with the step's last micro-batch only."""
    if isinstance(model, DistributedDataParallel):
        return nullcontext() if last else model.no_sync()
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(last)
    return nullcontext()


def autocast(config: dict[str, Any], device: torch.device) -> AbstractContextManager[Any]:
    """Return the autocast that was asked for."""
    name = config["autocast"]
    return torch.autocast(device.type, dtype=getattr(torch, name)) if name else nullcontext()


def clip(model: Any, config: dict[str, Any], group: dist.ProcessGroup | None) -> float:
    """Clip to the norm over all ranks' parts, each counted once, and return that norm."""
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    own, shared = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and any(isinstance(each, Shard) for each in gradient.placements):
            own += gradient.to_local().double().square().sum().cpu()
        else:
            whole = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            shared += whole.double().square().sum().cpu()
    if group is not None:
        own = own.to(parameters[0].device)
        dist.all_reduce(own, group=group)
    norm = (own.cpu() + shared).sqrt()
    limit = config["max_grad_norm"]
    if limit > 0:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm.to(parameters[0].device), foreach=False)
    return float(norm)


def make_optimizer(model: Any, config: dict[str, Any]) -> torch.optim.Optimizer:
    """Weight matrices and embeddings decay; norms and biases do not."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config["weight_decay"]},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    # foreach takes no mixture of divided and undivided parameters
    if config["optimizer"] == "sgd":
        return torch.optim.SGD(groups, lr=config["lr"], momentum=config["momentum"], foreach=False)
    betas = (config["beta1"], config["beta2"])
    return torch.optim.AdamW(groups, lr=config["lr"], betas=betas, eps=config["eps"], foreach=False)


def make_schedule(config: dict[str, Any]) -> Callable[[int], float]:
    """Return the factor of the learning rate by the number of steps done: linear warm-up, then the schedule."""
    warmup, steps = config["warmup_steps"], config["steps"]

    def factor(done: int) -> float:
        if done < warmup:
            return float(done / max(1, warmup))
        progress = (done - warmup) / max(1, steps - warmup)
        if config["schedule"] == "linear":
            return float(max(0.0, 1.0 - progress))
        if config["schedule"] == "cosine":
            return float(max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress))))
        return 1.0

    return factor


def read_batches(config: dict[str, Any], *, rank: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield this rank's micro-batches for ever: epoch after epoch, each shuffled by the seed and its number."""
    tokenizer = AutoTokenizer.from_pretrained(config["model"])
    lines = Path(config["rows"]).read_text(encoding="utf-8").split("\n")
    examples = [tokenize(json.loads(line), tokenizer, config) for line in lines if line]
    examples = [example for example in examples if any(label != IGNORED for label in example["labels"][1:])]
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    def walk() -> Iterator[dict[str, list[int]]]:
        epoch = 0
        while True:
            generator = torch.Generator().manual_seed(config["seed"] + epoch)
            yield from (examples[index] for index in torch.randperm(len(examples), generator=generator).tolist())
            epoch += 1

    rows = walk()
    while True:
        of_all_ranks = [[next(rows) for _ in range(config["batch"])] for _ in range(config["dp_size"])]
        yield collate(of_all_ranks[rank], pad_token_id=int(pad))


def tokenize(row: dict[str, Any], tokenizer: Any, config: dict[str, Any]) -> dict[str, list[int]]:
    """Render and tokenise one row, cut to seq_len; labels are −100 where a token is not to be learned."""
    if "messages" in row:
        rendered = tokenizer.apply_chat_template(
            row["messages"], return_dict=True, return_assistant_tokens_mask=config["assistant_only"]
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
    ids, learned = ids[: config["seq_len"]], learned[: config["seq_len"]]
    return {"input_ids": ids, "labels": [i if keep else IGNORED for i, keep in zip(ids, learned, strict=True)]}


def collate(rows: list[dict[str, list[int]]], *, pad_token_id: int) -> dict[str, torch.Tensor]:
    """Pad to the longest row, on the right."""
    longest = max(len(row["input_ids"]) for row in rows)
    padding = {"input_ids": pad_token_id, "attention_mask": 0, "labels": IGNORED}
    whole = [{**row, "attention_mask": [1] * len(row["input_ids"])} for row in rows]
    return {
        name: torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in whole])
        for name, value in padding.items()
    }


if __name__ == "__main__":
    main(sys.argv[1])
