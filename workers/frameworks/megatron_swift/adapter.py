"""Megatron-SWIFT: `megatron sft` on Megatron-core through mcore-bridge; tensor, pipeline, context, expert parallel."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from checks.captures.log import LogRecord
from checks.samples import Sample, read_samples
from checks.spec import RunSpec
from workers.frameworks.base import Launch
from workers.frameworks.interpreter import require_module
from workers.frameworks.megatron_core.layout import layout_of
from workers.frameworks.megatron_core.requests import DISTRIBUTED, check_megatron, check_options
from workers.frameworks.megatron_swift.logs import read_log
from workers.frameworks.megatron_swift.names import build_name_map, read_shapes
from workers.frameworks.ms_swift.templates import choose_template
from workers.frameworks.options import Option, read_options
from workers.frameworks.requests import check_request, refuse_objective
from workers.frameworks.shims import find_shims
from workers.frameworks.trainer import write_run

HERE = Path(__file__).parent
DRIVER, HOOKS = HERE / "train.py", HERE / "hooks.py"
REMEDY = (
    "build an environment with plumbline env create megatron-core==0.16.1 --with mcore-bridge==1.6.5 "
    "--with ms-swift==4.6.0"
)
ENGINE, ENGINE_NAME = "transformer_engine", "Transformer Engine, of whose layers mcore-bridge builds every model,"
ENGINE_REMEDY = "it is built for GPUs: use an environment that has it (env create … --with transformer-engine[pytorch])"
OPTIONS = {
    "perform_initialization": Option(bool, "initialise weights before they are loaded, which marks what is divided"),
    "use_distributed_optimizer": DISTRIBUTED,
}
"""of `megatron sft`, handed on as they are"""


class MegatronSwiftAdapter:
    """ms-swift's own preparation of rows, and Megatron-core's model, schedules and optimizer."""

    name = "megatron_swift"

    def check(self, spec: RunSpec) -> None:
        """Raise BadRequest for what Megatron-SWIFT is not run with here, and for what no framework can run."""
        refuse_objective(spec, framework="Megatron-SWIFT, as it is run here,")
        check_megatron(spec, framework="Megatron-SWIFT", saves=True)
        check_request(spec, read_samples(spec.data), options=OPTIONS)
        check_options(spec, OPTIONS)

    def prepare(self, spec: RunSpec, scratch: Path) -> Launch:
        """Write the driver's configuration, the rows and the name map into `scratch`."""
        self.check(spec)
        for module in ("swift", "mcore_bridge", "megatron.core"):
            require_module(module, framework="megatron_swift", remedy=REMEDY)
        if not any(name.split(".")[0] == ENGINE for shim in find_shims("megatron_swift") for name in shim.replaces):
            require_module(ENGINE, framework="megatron_swift", remedy=ENGINE_REMEDY, what=ENGINE_NAME)
        samples = read_samples(spec.data)
        config = {
            "model": str(spec.model.resolve()),
            "arguments": build_arguments(spec, samples[0], output=scratch.resolve() / "output"),
        }
        launch = write_run(config, samples, driver=DRIVER, scratch=scratch, spec=spec)
        names = scratch.resolve() / "names.json"
        found = build_name_map(read_shapes(spec.model), layout_of(spec), style="te")
        names.write_text(json.dumps(found), encoding="utf-8")
        return replace(launch, names=names, hooks=(HOOKS,))

    def read_log(self, output: Path, log: Path) -> tuple[LogRecord, ...]:
        """Megatron-SWIFT's own log."""
        return read_log(output)


def build_arguments(spec: RunSpec, sample: Sample, *, output: Path) -> dict[str, Any]:
    """The options of `megatron sft` that say what `spec` says; every default that differs from the spec's is stated."""
    layout = layout_of(spec)
    arguments: dict[str, Any] = {
        "output_dir": str(output),
        "add_version": False,
        "tuner_type": "full",
        "torch_dtype": "float32",
        "fp16": False,  # left alone, Megatron-SWIFT trains a float32 checkpoint in fp16
        "bf16": False,
        "train_iters": spec.steps,
        "micro_batch_size": spec.batch,
        "global_batch_size": spec.batch * spec.accumulation * spec.dp_size,
        "max_length": spec.seq_len,
        "truncation_strategy": "right",
        "packing": spec.packing,
        "padding_free": spec.packing or spec.padding_free,
        "optimizer": {"adamw": "adam", "sgd": "sgd"}[spec.optimizer],
        "lr": spec.lr,
        "min_lr": 0.0,
        "lr_decay_style": spec.schedule,
        "lr_warmup_iters": spec.warmup_steps,
        "adam_beta1": spec.beta1,
        "adam_beta2": spec.beta2,
        "adam_eps": spec.eps,
        "sgd_momentum": spec.momentum,
        "weight_decay": spec.weight_decay,
        "clip_grad": spec.max_grad_norm,
        "seed": spec.seed + 1,  # Megatron-core takes positive ones only
        "data_seed": spec.seed,
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": 1,
        "use_distributed_optimizer": False,
        "attention_backend": {"sdpa": "flash", "eager": "unfused"}[spec.attention],
        "logging_steps": 1,
        "save_steps": spec.steps,
        "no_save_optim": spec.resume_after is None,
        "no_save_rng": spec.resume_after is None,
        "split_dataset_ratio": 0.0,
        "dataset_shuffle": False,
        "dataset_num_proc": 1,
        "load_from_cache_file": False,
        "dataloader_num_workers": 0,
        "check_model": False,
        **_choose_recomputation(spec),
        **choose_template(spec, sample),
        **read_options(spec, OPTIONS),
    }
    if read_shapes(spec.model).experts:
        # The objective is the mean over the tokens alone, without a term for the balance of experts.
        arguments |= {"moe_grouped_gemm": True, "moe_aux_loss_coeff": 0.0, "moe_router_dtype": "fp32"}
    return arguments


def _choose_recomputation(spec: RunSpec) -> dict[str, Any]:
    if not spec.gradient_checkpointing:
        return {"recompute_granularity": "none"}
    return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
