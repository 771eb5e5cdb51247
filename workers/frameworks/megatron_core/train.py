"""Train a Megatron-core GPTModel as one JSON file says: `python train.py config.json`.

The model has Megatron's local layers, which need no Transformer Engine; the loop is Megatron's own schedule, reduction
of gradients, optimizer and learning-rate schedule. Weights are read from the checkpoint by the name map beside the
configuration. Runs in the framework's environment and imports nothing of Plumbline.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch.nn import functional

IGNORED = -100
HERE = Path(__file__).parent


def main(path: str) -> None:
    """Read the configuration, train, and leave trainer_state.json in the output directory."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    if not torch.cuda.is_available():
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # Megatron compiles small functions, which takes a C++ compiler
    if "RANK" not in os.environ:
        runpy.run_path(str(HERE.parent / "megatron_swift" / "train.py"))["be_alone"]()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    log = train(config)
    if dist.get_rank() == dist.get_world_size() - 1:  # the last stage has the loss
        output = Path(config["arguments"]["output_dir"])
        output.mkdir(parents=True, exist_ok=True)
        (output / "trainer_state.json").write_text(json.dumps({"log_history": log}), encoding="utf-8")
    dist.destroy_process_group()


def train(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the asked optimizer steps and return what was logged of each."""
    mpu = load("megatron.core.parallel_state")
    mpu.initialize_model_parallel(
        config["tp"],
        config["pp"],
        context_parallel_size=1,
        expert_model_parallel_size=config["ep"],
        expert_tensor_parallel_size=1,
    )
    load("megatron.core.tensor_parallel.random").model_parallel_cuda_manual_seed(config["seed"] + 1)
    torch.manual_seed(config["seed"])
    distributed, schedules = load("megatron.core.distributed"), load("megatron.core.pipeline_parallel.schedules")
    module = build(config, mpu)
    fill(module, config)
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    module.to(device)
    wrapping = distributed.DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=False)
    model = distributed.DistributedDataParallel(module.config, wrapping, module)
    module.config.finalize_model_grads_func = distributed.finalize_model_grads
    optimizer, rates = make_optimizer(config, model)
    model.train()
    places = {**config, "dp_size": mpu.get_data_parallel_world_size()}
    batches = runpy.run_path(str(HERE.parent / "plain" / "train.py"))["read_batches"](
        places, rank=mpu.get_data_parallel_rank()
    )
    log: list[dict[str, Any]] = []
    for step in range(1, config["steps"] + 1):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        rate = max(group["lr"] for group in optimizer.param_groups)
        losses = schedules.get_forward_backward_func()(
            forward_step_func=partial(forward_step, device=device),
            data_iterator=batches,
            model=[model],
            num_microbatches=config["micro_batches"],
            seq_length=config["seq_len"],
            micro_batch_size=config["batch"],
            forward_only=False,
        )
        _, norm, _ = optimizer.step()
        rates.step(increment=1)
        if losses:
            total = torch.stack(losses).sum(0)
            dist.all_reduce(total, group=mpu.get_data_parallel_group())
            entry = {"step": step, "loss": float(total[0] / total[1]), "learning_rate": rate}
            log.append(entry if norm is None else {**entry, "grad_norm": float(norm)})
            print({key: value for key, value in log[-1].items() if key != "step"}, flush=True)
    return log


def load(module: str) -> Any:
    """A module of the framework, which has no types."""
    return importlib.import_module(module)


def build(config: dict[str, Any], mpu: Any) -> Any:
    """The model that the checkpoint's config.json describes, without fused kernels."""
    told = json.loads((Path(config["model"]) / "config.json").read_text(encoding="utf-8"))
    experts = told.get("num_experts") or told.get("num_local_experts")
    normed = told["model_type"].startswith("qwen3")
    settings: dict[str, Any] = {
        "num_layers": told["num_hidden_layers"],
        "hidden_size": told["hidden_size"],
        "ffn_hidden_size": told["intermediate_size"],
        "num_attention_heads": told["num_attention_heads"],
        "num_query_groups": told["num_key_value_heads"],
        "kv_channels": told.get("head_dim") or told["hidden_size"] // told["num_attention_heads"],
        "normalization": "RMSNorm",
        "layernorm_epsilon": told["rms_norm_eps"],
        "gated_linear_unit": True,
        "activation_func": functional.silu,
        "add_bias_linear": False,
        "add_qkv_bias": told["model_type"] == "qwen2",
        "qk_layernorm": normed,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "tensor_model_parallel_size": config["tp"],
        "pipeline_model_parallel_size": config["pp"],
        "expert_model_parallel_size": config["ep"],
        "expert_tensor_parallel_size": 1,
        "pipeline_dtype": torch.float32,
        "params_dtype": torch.float32,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",
        "calculate_per_token_loss": True,
        "use_cpu_initialization": True,
        "perform_initialization": True,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
        "apply_rope_fusion": False,
        "attention_softmax_in_fp32": True,
    }
    if config["gradient_checkpointing"]:
        settings |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if experts:
        settings |= {
            "num_moe_experts": experts,
            "moe_router_topk": told["num_experts_per_tok"],
            "moe_ffn_hidden_size": told["moe_intermediate_size"],
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
            "moe_grouped_gemm": False,
        }
    specs = load("megatron.core.models.gpt.gpt_layer_specs")
    layers = specs.get_gpt_layer_local_spec(
        num_experts=experts, moe_grouped_gemm=False, qk_layernorm=normed, normalization="RMSNorm"
    )
    rotary = told.get("rope_parameters") or {}
    return (
        load("megatron.core.models.gpt")
        .GPTModel(
            config=load("megatron.core.transformer").TransformerConfig(**settings),
            transformer_layer_spec=layers,
            vocab_size=told["vocab_size"],
            max_sequence_length=told["max_position_embeddings"],
            pre_process=mpu.is_pipeline_first_stage(),
            post_process=mpu.is_pipeline_last_stage(),
            parallel_output=True,
            share_embeddings_and_output_weights=bool(told.get("tie_word_embeddings")),
            position_embedding_type="rope",
            rotary_base=int(rotary.get("rope_theta", told.get("rope_theta", 10000))),
        )
        .float()
    )


def fill(module: Any, config: dict[str, Any]) -> None:
    """Copy the checkpoint's tensors into this rank's parameters, box by box, experts stacked as the map has them."""
    pieces = json.loads(Path(config["names"]).read_text(encoding="utf-8"))["ranks"][dist.get_rank()]
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(Path(config["model"]).glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    parameters = dict(module.named_parameters())
    if sorted(parameters) != sorted(pieces):
        raise SystemExit(f"the model's parameters are not those of the name map: {set(parameters) ^ set(pieces)}")
    with torch.no_grad():
        for source, found in pieces.items():
            for piece in found:
                if piece["name"] is not None:
                    place = tuple(slice(*span) for span in piece["source"])
                    value = read(tensors, piece["name"])[tuple(slice(*span) for span in piece["target"])]
                    parameters[source][place] = value.reshape(parameters[source][place].shape)


def read(tensors: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """A tensor of the checkpoint, or the stack of experts that it saves one by one."""
    if name not in tensors:
        path, kind = name.rsplit(".", 1)
        parts = ["gate_proj", "up_proj"] if kind == "gate_up_proj" else [kind]
        count = len({other for other in tensors if other.startswith(f"{path}.") and other.endswith("down_proj.weight")})
        tensors[name] = torch.stack(
            [torch.cat([tensors[f"{path}.{expert}.{part}.weight"] for part in parts]) for expert in range(count)]
        )
    return tensors[name]


def make_optimizer(config: dict[str, Any], model: Any) -> tuple[Any, Any]:
    """Megatron's optimizer, and what sets its learning rate."""
    made = load("megatron.core.optimizer").get_megatron_optimizer(
        load("megatron.core.optimizer").OptimizerConfig(
            optimizer={"adamw": "adam", "sgd": "sgd"}[config["optimizer"]],
            lr=config["lr"],
            min_lr=0.0,
            weight_decay=config["weight_decay"],
            adam_beta1=config["beta1"],
            adam_beta2=config["beta2"],
            adam_eps=config["eps"],
            sgd_momentum=config["momentum"],
            clip_grad=config["max_grad_norm"],
            bf16=False,
            fp16=False,
            use_distributed_optimizer=False,
        ),
        [model],
    )
    rates = load("megatron.core.optimizer_param_scheduler").OptimizerParamScheduler(
        made,
        init_lr=0.0,
        max_lr=config["lr"],
        min_lr=0.0,
        lr_warmup_steps=config["warmup_steps"],
        lr_decay_steps=config["steps"],
        lr_decay_style=config["schedule"],
        start_wd=config["weight_decay"],
        end_wd=config["weight_decay"],
        wd_incr_steps=config["steps"],
        wd_incr_style="constant",
    )
    return made, rates


def forward_step(batches: Any, model: Any, *, device: torch.device) -> tuple[torch.Tensor, Any]:
    """One micro-batch through this rank's stage, and what makes its loss of the losses of its tokens."""
    batch = {name: value.to(device) for name, value in next(batches).items()}
    ids = batch["input_ids"]
    rows, length = ids.shape
    labels = functional.pad(batch["labels"], (0, 1), value=IGNORED)[:, 1:].contiguous()
    hidden = torch.triu(torch.ones(length, length, dtype=torch.bool, device=device), 1)[None, None]
    hidden = hidden | (batch["attention_mask"] == 0)[:, None, None, :]
    positions = torch.arange(length, device=device).expand(rows, length).contiguous()
    output = model(input_ids=ids, position_ids=positions, attention_mask=hidden, labels=labels)
    return output, partial(add_up, labels=labels)


def add_up(losses: torch.Tensor, *, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sum over the counted tokens, their number, and both for the log."""
    counts = labels != IGNORED
    total, number = (losses.float() * counts).sum(), counts.sum()
    return total, number.int(), torch.stack([total.detach(), number.to(total.dtype)])


if __name__ == "__main__":
    main(sys.argv[1])
