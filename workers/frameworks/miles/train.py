"""Train with Miles' own step as one JSON file says: `python train.py config.json`.

Rollouts are read from a file and go through Miles' conversion, forward for log-probabilities, advantages and
`train_one_step`; no engine generates anything. The model is Megatron-core's with Transformer Engine's layers. Runs in
the framework's environment and imports nothing of Plumbline.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

HERE = Path(__file__).parent
_MEGATRON = runpy.run_path(str(HERE.parent / "megatron_core" / "train.py"))
load, fill, make_optimizer = (_MEGATRON[name] for name in ("load", "fill", "make_optimizer"))


def main(path: str) -> None:
    """Read the configuration, train, and leave trainer_state.json in the output directory."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    sys.path.insert(0, config["checkout"])
    if not torch.cuda.is_available():
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # Megatron compiles small functions, which takes a C++ compiler
    if "RANK" not in os.environ:
        runpy.run_path(str(HERE.parent / "megatron_swift" / "train.py"))["be_alone"]()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    log = train(config)
    if dist.get_rank() == 0:
        output = Path(config["arguments"]["output_dir"])
        output.mkdir(parents=True, exist_ok=True)
        (output / "trainer_state.json").write_text(json.dumps({"log_history": log}), encoding="utf-8")
    dist.destroy_process_group()


def train(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the asked optimizer steps and return what was logged of each."""
    args = Namespace(**config["miles"])
    load("megatron.training.global_vars").set_args(args)
    mpu = load("megatron.core.parallel_state")
    mpu.initialize_model_parallel(config["tp"], 1, context_parallel_size=config["cp"])
    load("megatron.core.tensor_parallel.random").model_parallel_cuda_manual_seed(config["seed"] + 1)
    torch.manual_seed(config["seed"])
    steps, losses = load("miles.backends.megatron_utils.model"), load("miles.backends.training_utils.loss")
    set_parallel_state()
    model, optimizer, rates = prepare(config, steps)
    rollouts = read_rollouts(config, args)
    log: list[dict[str, Any]] = []
    number = 0
    while number < config["steps"]:
        rollout = number // config["num_iterations"]
        data = prepare_rollout(rollouts[rollout % len(rollouts)], config, args, model, steps)
        losses.compute_advantages_and_returns(args, data)
        for _ in range(min(config["num_iterations"], config["steps"] - number)):
            rate = max(group["lr"] for group in optimizer.param_groups)
            found, norm, _ = steps.train_one_step(
                args,
                rollout,
                number,
                [iterate(data, config)],
                [model],
                optimizer,
                rates,
                config["micro_batches"],
                args.global_batch_size,
                None,
                0,
            )
            number += 1
            log.append({"step": number, "loss": float(found["loss"]), "grad_norm": float(norm), "learning_rate": rate})
            print({key: value for key, value in log[-1].items() if key != "step"}, flush=True)
    return log


def set_parallel_state() -> None:
    """Miles' own statement of the groups; the axis of replicas that fail by themselves has one member, this process."""
    own = None
    for rank in range(dist.get_world_size()):
        group = dist.new_group([rank])
        own = group if rank == dist.get_rank() else own
    alone = load("miles.utils.ft_utils.process_group_utils").GroupInfo(rank=0, size=1, group=own, gloo_group=own)
    state = load("miles.backends.megatron_utils.parallel").create_megatron_parallel_state(indep_dp=alone)
    load("miles.backends.training_utils.parallel").set_parallel_state(state)


def prepare(config: dict[str, Any], steps: Any) -> tuple[Any, Any, Any]:
    """The wrapped model, its optimizer, and what sets the learning rate, which Miles counts in completions."""
    distributed = load("megatron.core.distributed")
    module = runpy.run_path(str(HERE / "model.py"))["build"](config)
    fill(module, config)
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    module.to(device)
    wrapping = distributed.DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=False)
    model = distributed.DistributedDataParallel(module.config, wrapping, module)
    module.config.finalize_model_grads_func = steps.finalize_model_grads_with_empty_cache
    rows = config["miles"]["global_batch_size"]
    counted = {name: config[name] * rows for name in ("steps", "warmup_steps")}
    optimizer, rates = make_optimizer({**config, **counted}, model)
    module.config.grad_scale_func, module.config.timers = optimizer.scale_loss, None
    model.train()
    return model, optimizer, rates


def read_rollouts(config: dict[str, Any], args: Namespace) -> list[dict[str, Any]]:
    """The recorded rollouts, each the rows of one step, as Miles' trainer is sent them."""
    conversion, sample = load("miles.ray.rollout.train_data_conversion"), load("miles.utils.types").Sample
    lines = Path(config["rows"]).read_text(encoding="utf-8").split("\n")
    recorded = [json.loads(line) for line in lines if line]
    rows = args.global_batch_size
    found = []
    for start in range(0, len(recorded) - len(recorded) % rows, rows):
        chosen = recorded[start : start + rows]
        samples = [
            sample(
                group_index=row["group"],
                index=index,
                tokens=row["tokens"],
                response_length=row["response_length"],
                reward=row["reward"],
                loss_mask=row["loss_mask"],
                status=sample.Status.COMPLETED,
            )
            for index, row in enumerate(chosen)
        ]
        data = conversion.convert_samples_to_train_data(args, samples, {}, None, None)
        data["values"] = [row["values"] for row in chosen] if "values" in chosen[0] else None
        found.append(data)
    if not found:
        raise SystemExit(f"{len(recorded)} rollouts are fewer than the {rows} of one step")
    return found


def prepare_rollout(
    recorded: dict[str, Any], config: dict[str, Any], args: Namespace, model: Any, steps: Any
) -> dict[str, Any]:
    """One rollout on this rank: its tensors, and what the policy and the reference model say of its tokens."""
    device = torch.cuda.current_device()
    slicing = load("miles.backends.training_utils.cp_utils").slice_log_prob_with_cp
    data = dict(recorded)
    data["tokens"] = [torch.tensor(row, dtype=torch.long, device=device) for row in recorded["tokens"]]
    data["loss_masks"] = [torch.tensor(row, dtype=torch.int, device=device) for row in recorded["loss_masks"]]
    data["total_lengths"] = [len(row) for row in recorded["tokens"]]
    data["rollout_mask_sums"] = torch.tensor(recorded["rollout_mask_sums"], dtype=torch.float32, device=device)
    if recorded["values"] is not None:
        lengths = zip(recorded["values"], data["total_lengths"], data["response_lengths"], strict=True)
        data["values"] = [slicing(torch.tensor(row, device=device), total, own) for row, total, own in lengths]
    if config["compares"]:
        data |= score(data, config, args, model, steps, prefix="ref_", checkpoint=True)
    return data | score(data, config, args, model, steps, prefix="", checkpoint=False)


def score(
    data: dict[str, Any],
    config: dict[str, Any],
    args: Namespace,
    model: Any,
    steps: Any,
    *,
    prefix: str,
    checkpoint: bool,
) -> dict[str, Any]:
    """Log-probabilities by Miles' own forward; `checkpoint`: with the weights that training began from."""
    kept = {name: value.detach().clone() for name, value in model.module.named_parameters()} if checkpoint else {}
    if checkpoint:
        fill(model.module, config)
    found: dict[str, Any] = steps.forward_only(
        load("miles.backends.training_utils.loss_hub.logit_processors").get_log_probs_and_entropy,
        args,
        [model],
        [iterate(data, config)],
        [config["micro_batches"]],
        0,
        store_prefix=prefix,
    )
    with torch.no_grad():
        for name, value in model.module.named_parameters():
            if name in kept:
                value.copy_(kept[name])
    return found


def iterate(data: dict[str, Any], config: dict[str, Any]) -> Any:
    """Miles' iterator over the micro-batches of a step, from its first row."""
    return load("miles.backends.training_utils.data").DataIterator(data, micro_batch_size=config["batch"])


if __name__ == "__main__":
    main(sys.argv[1])
