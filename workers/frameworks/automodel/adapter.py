"""NVIDIA NeMo AutoModel: its fine-tuning recipe, with FSDP2 or DDP, tensor, pipeline and expert parallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from checks.captures.log import LogRecord
from checks.models.checkpoint import read_config
from checks.samples import read_samples
from checks.spec import RunSpec
from workers.frameworks.automodel.logs import read_log
from workers.frameworks.automodel.requests import BIASED, check_automodel
from workers.frameworks.base import Launch
from workers.frameworks.interpreter import framework_python, require_module
from workers.frameworks.options import Option, read_options
from workers.frameworks.processes import build_launch
from workers.frameworks.requests import check_request, refuse_objective
from workers.frameworks.trainer import RESUME, write_run

DRIVER, HOOKS = (Path(__file__).with_name(name) for name in ("train.py", "hooks.py"))
REMEDY = "build an environment with plumbline env create nemo-automodel==0.7.0"
UNDECAYED = r"(norm|layernorm)\.weight$|\.bias$"
"""names of one-dimensional parameters, by the pattern that AutoModel groups them by"""
OPTIONS = {
    "loss": Option(("masked", "chunked"), "of whole logits, or of a chunk of tokens at a time, head included"),
    "force_hf": Option(bool, "whether the model is transformers' class, and not AutoModel's own"),
    "tp_plan": Option(("attention",), "ranks share the heads and add up their norms' gradients; else AutoModel's own"),
    "force_e_score_correction_bias": Option(bool, "whether routers keep the checkpoint's biases, which are not moved"),
}
ATTENTION_PLAN = {
    **{f"model.layers.*.self_attn.{name}_proj": "columns" for name in "qkv"},
    **{f"model.layers.*.self_attn.{name}_norm": "summed" for name in "qk"},
    "model.layers.*.self_attn.o_proj": "rows",
}
"""module → how tensor parallel divides it, in the words of `train.build_plan`; all else is whole on each rank"""
CHUNK = 64
"""tokens; AutoModel's default of 512 would leave a tiny batch whole"""
MANY = 1_000_000
"""epochs, or steps between checkpoints, that no run gets to: the number of steps alone decides"""


class AutoModelAdapter:
    """AutoModel's own recipe, data loader, model code, parallelizer and clipping; rows come tokenised."""

    name = "automodel"

    def check(self, spec: RunSpec) -> None:
        """Raise BadRequest for what AutoModel is not run with here, and for what no framework can run."""
        refuse_objective(spec, framework="AutoModel, as it is run here,")
        check_automodel(spec, read_options(spec, OPTIONS))
        check_request(spec, read_samples(spec.data), options=OPTIONS)

    def prepare(self, spec: RunSpec, scratch: Path) -> Launch:
        """Write the recipe's configuration and the rows into `scratch`."""
        self.check(spec)
        require_module("nemo_automodel", framework="automodel", remedy=REMEDY)
        scratch = scratch.resolve()
        launch = _write(spec, scratch, {}) if spec.resume_after is None else _write_two(spec, scratch)
        # Without a compiler's graph breaks, and on any machine.
        environment = {**launch.environment, "TORCHDYNAMO_DISABLE": "1"}
        return replace(launch, hooks=(HOOKS,), environment=environment)

    def read_log(self, output: Path, log: Path) -> tuple[LogRecord, ...]:
        """The recipe's own log."""
        return read_log(output)


def _write(spec: RunSpec, scratch: Path, checkpoint: Mapping[str, Any], start: Sequence[str] = ()) -> Launch:
    """One process group's files.

    `checkpoint`: what the recipe is to save, or to begin from; `start`: what its processes are started by.
    """
    output = scratch / "output"
    recipe = build_recipe(spec, rows=scratch / "config.json", output=output)
    recipe["checkpoint"] |= checkpoint
    config = {
        "arguments": {"output_dir": str(output)},
        "seq_len": spec.seq_len,
        "assistant_only": spec.assistant_only,
        "recipe": recipe,
    }
    if checkpoint:
        recipe["step_scheduler"]["ckpt_every_steps"] = spec.resume_after
        config |= {"resume_from": checkpoint.get("restore_from", ""), "launch": list(start)}
    alone = replace(spec, resume_after=None)
    return write_run(config, read_samples(spec.data), driver=DRIVER, scratch=scratch, spec=alone)


def _write_two(spec: RunSpec, scratch: Path) -> Launch:
    """A run that saves on its way to its end, and a new process that goes on from what it saved.

    AutoModel counts steps from 0, and calls a checkpoint by the last step that it has taken.
    """
    assert spec.resume_after is not None
    saved = scratch / "save" / "output" / f"epoch_0_step_{spec.resume_after - 1}"
    kept = {"enabled": True, "model_save_format": "safetensors", "save_consolidated": "every"}
    start = build_launch(DRIVER, DRIVER, processes=spec.processes)[2:-2]
    _write(spec, scratch / "save", kept, start)
    launch = _write(spec, scratch / "load", {**kept, "restore_from": str(saved)}, start)
    files = [str(scratch / name / "config.json") for name in ("save", "load")]
    command = (framework_python(spec.framework), "-u", str(RESUME), str(DRIVER), *files)
    return replace(launch, command=command, checkpoints=(saved / "model" / "consolidated",))


def build_recipe(spec: RunSpec, *, rows: Path, output: Path) -> dict[str, Any]:
    """The recipe's configuration, as its YAML files have it, that says what `spec` says.

    `rows`: the file that `train.build_rows` reads. Ranks that share experts train on rows of their own, so that the
    micro-batches of a step are divided among them.
    """
    optimizer: dict[str, Any] = {"_target_": "torch.optim.AdamW", "lr": spec.lr, "weight_decay": spec.weight_decay}
    optimizer |= {"betas": [spec.beta1, spec.beta2], "eps": spec.eps}
    if spec.optimizer == "sgd":
        optimizer = {"_target_": "torch.optim.SGD", "lr": spec.lr, "weight_decay": spec.weight_decay}
        optimizer["momentum"] = spec.momentum
    return {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "seed": spec.seed,
        "step_scheduler": {
            "global_batch_size": spec.batch * spec.accumulation * spec.dp_size,
            "local_batch_size": spec.batch,
            "max_steps": spec.steps,
            "num_epochs": MANY,
            "ckpt_every_steps": MANY,
            "save_checkpoint_every_epoch": False,
        },
        "model": {
            "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
            "pretrained_model_name_or_path": str(spec.model.resolve()),
            "torch_dtype": "bfloat16" if spec.precision == "bf16_params" else "float32",
            "attn_implementation": spec.attention,
            **_choose_class(spec),
            **_leave_routers(spec),
        },
        "checkpoint": {"enabled": False, "checkpoint_dir": str(output)},
        "distributed": _divide(spec),
        "loss_fn": _choose_loss(spec),
        "dataset": {"_target_": f"{DRIVER}:build_rows", "config": str(rows)},
        "packed_sequence": {
            "packed_sequence_size": spec.seq_len if spec.packing else 0,
            "packing_strategy": "neat",  # of rows whose attention is masked; `thd` is Transformer Engine's
        },
        "dataloader": {
            "_target_": "torchdata.stateful_dataloader.StatefulDataLoader",
            "collate_fn": "nemo_automodel.components.datasets.utils.default_collater",
            "shuffle": True,
        },
        "optimizer": {**optimizer, "param_group_overrides": [{"pattern": UNDECAYED, "wd_mult": 0.0}]},
        "lr_scheduler": {
            "lr_decay_style": spec.schedule,
            "lr_warmup_steps": spec.warmup_steps,
            "lr_decay_steps": max(spec.steps, spec.warmup_steps + 1),
            "init_lr": 0.0,
            "min_lr": 0.0,
        },
        "clip_grad_norm": {"max_norm": spec.max_grad_norm},
        **({"peft": _build_adapters(spec)} if spec.lora else {}),
    }


def _choose_loss(spec: RunSpec) -> dict[str, Any]:
    where = "nemo_automodel.components.loss"
    if read_options(spec, OPTIONS).get("loss") != "chunked":
        return {"_target_": f"{where}.masked_ce.MaskedCrossEntropy"}
    return {"_target_": f"{where}.chunked_ce.ChunkedCrossEntropy", "chunk_len": CHUNK, "compile": False}


def _build_adapters(spec: RunSpec) -> dict[str, Any]:
    """AutoModel's own LoRA; its second factors, which it makes zero, are drawn by the driver."""
    return {
        "_target_": "nemo_automodel.components._peft.lora.PeftConfig",
        "target_modules": [f"*.{target}" for target in spec.lora_targets],
        "dim": spec.lora_r,
        "alpha": spec.lora_alpha,
        "dropout": 0.0,
        "use_triton": False,
    }


def _choose_class(spec: RunSpec) -> dict[str, Any]:
    """Transformers' class where that is asked for; else AutoModel's with torch's own layers, of those that it can have:
    its default is the GPU's where there is one.
    """
    if read_options(spec, OPTIONS).get("force_hf"):
        return {"force_hf": True}
    backend = {
        "_target_": "nemo_automodel.components.models.common.BackendConfig",
        "attn": spec.attention,
        "linear": "torch",
        "experts": "torch",
        "dispatcher": "torch",
        "rope_fusion": False,
    }
    return {"backend": backend}


def _leave_routers(spec: RunSpec) -> dict[str, Any]:
    """AutoModel moves the routers' biases of some families towards balance, by 0.001 a step unless told otherwise.

    Told so alone, it makes the routers without those biases, and the checkpoint's are not loaded.
    """
    if read_config(spec.model).get("model_type") not in BIASED:
        return {}
    asked = {"force_e_score_correction_bias": True, **read_options(spec, OPTIONS)}
    return {"moe_overrides": {"gate_bias_update_factor": 0.0, **asked}}


def _divide(spec: RunSpec) -> dict[str, Any]:
    if spec.sharding == "ddp":
        return {"strategy": "ddp", "dp_size": spec.dp_size}
    policy = {"_target_": "torch.distributed.fsdp.MixedPrecisionPolicy"}
    divided: dict[str, Any] = {
        "strategy": "fsdp2",
        "dp_size": "none",
        "tp_size": spec.tp_size,
        "pp_size": spec.pp_size,
        "ep_size": spec.ep_size,
        "cp_size": 1,
        # Left alone, it computes in bfloat16 whatever the parameters' dtype.
        "mp_policy": policy,
        "activation_checkpointing": spec.gradient_checkpointing,
    }
    if "tp_plan" in read_options(spec, OPTIONS):
        divided["tp_plan"] = ATTENTION_PLAN
    if spec.pp_size > 1:
        divided["pipeline"] = {"pp_schedule": "1f1b", "pp_microbatch_size": 1}
    if spec.ep_size > 1:
        divided["moe"] = {"mp_policy": policy}
    return divided
