"""The run spec: one framework execution, stated in the field's own terms."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

Precision = Literal["float32", "bf16", "bf16_params", "fp16"]
Attention = Literal["eager", "sdpa"]
Optimizer = Literal["adamw", "sgd"]
Schedule = Literal["constant", "linear", "cosine"]
Sharding = Literal["none", "ddp", "fsdp2"]
Objective = Literal["sft", "dpo", "orpo", "kto", "reward", "grpo", "ppo", "reinforce_plus_plus"]
GrpoLoss = Literal["grpo", "dr_grpo", "dapo", "bnpo", "gspo"]

PREFERENCE_OBJECTIVES: tuple[Objective, ...] = ("dpo", "orpo", "kto", "reward")
"""Those whose data are preferences: pairs of an answer and a worse one, which kto takes apart."""

POLICY_OBJECTIVES: tuple[Objective, ...] = ("grpo", "ppo", "reinforce_plus_plus")
"""Those that train on the model's own answers, by their rewards."""


@dataclass(frozen=True)
class RunSpec:
    """What a framework is asked to do. Every field but the first three can be given as `--set name=value`.

    One optimizer step trains on `dp_size × batch × accumulation` rows of at most `seq_len` tokens, or on as many pairs
    of preferred and rejected rows. The objective is the mean over the counted tokens of the whole step; the others are
    stated in checks.references.objectives. Weight decay applies to weight matrices and embeddings, not to norms
    or biases.
    """

    framework: str
    model: Path
    """directory with a checkpoint (config.json, *.safetensors, tokenizer)"""
    data: Path
    objective: Objective = "sft"
    """sft: the next token; dpo: preferred answers over rejected ones (arXiv:2305.18290, equation 7); orpo: the same
    without a reference model (arXiv:2403.07691); kto: answers that are desirable or not (arXiv:2402.01306); reward: a
    score of each answer, from a head of its own (arXiv:2203.02155, equation 1); grpo: the
    model's own answers, by their rewards (arXiv:2402.03300); ppo: the same against a value function
    (arXiv:1707.06347); reinforce_plus_plus: against the mean of the batch (arXiv:2501.03262)"""
    beta: float = 0.1
    """of dpo, kto and grpo: how strongly the policy is held to the checkpoint's own log-probabilities, of ppo and
    reinforce_plus_plus within the rewards; of orpo: the weight of the odds ratio; of reward: that of the term that
    centres the scores"""
    grpo_loss: GrpoLoss = "grpo"
    """of grpo: the variant, as checks.references.objectives.group_relative states it"""
    num_generations: int = 2
    """completions of one prompt, which grpo holds against each other"""
    num_iterations: int = 1
    """steps that train on the same completions; from the second on the policy is not the one that sampled"""
    max_completion_length: int = 16
    """of completions: tokens that are generated at most"""
    temperature: float = 1.0
    """of completions: what logits are divided by, where completions are sampled and where they are trained on"""
    steps: int = 3
    """optimizer steps to run; steps 1 and `steps` are captured"""
    batch: int = 2
    accumulation: int = 2
    seq_len: int = 128
    precision: Precision = "float32"
    """float32; bf16: float32 parameters under bf16 autocast; bf16_params: parameters and compute in bf16; fp16: float32
    parameters under fp16 autocast, with loss scaling"""
    attention: Attention = "sdpa"
    packing: bool = False
    padding_free: bool = False
    """the rows of a batch one after the other in one row, without padding"""
    assistant_only: bool = False
    lora: bool = False
    lora_r: int = 4
    lora_alpha: float = 8.0
    lora_targets: tuple[str, ...] = ("q_proj", "v_proj")
    optimizer: Optimizer = "adamw"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    momentum: float = 0.0
    max_grad_norm: float = 1.0
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    gradient_checkpointing: bool = False
    dp_size: int = 1
    """processes that each train on rows of their own"""
    tp_size: int = 1
    """processes that share every weight matrix"""
    ep_size: int = 1
    """processes that share the experts"""
    pp_size: int = 1
    """processes that each hold some of the layers"""
    cp_size: int = 1
    """processes that share the tokens of every row"""
    sharding: Sharding = "none"
    """what data-parallel processes hold: ddp, all of the model; fsdp2, a part of each parameter"""
    seed: int = 0
    options: tuple[str, ...] = ()
    """settings that only this framework has, each as name=value; its adapter says which there are"""
    command: tuple[str, ...] = ()
    """of framework command: the argument list that is run; {model}, {data} and {output} stand for paths"""
    unstated: tuple[str, ...] = ()
    """settings that nobody stated of a command: their values here are no claim about it"""
    synced: Path | None = None
    """directory of the weights that a rollout engine holds, to be held against the trainer's"""
    resume_after: int | None = None
    """save after this many steps, end the process, and let a new one take the rest of the steps"""
    resharded: bool = False
    """with `resume_after`: the processes that go on divide the model otherwise, as `checks.roles.other_layout` says"""
    probed: bool = False
    """ask the prepared model about the batches of `checks.probes` before its first step"""
    first_rows: int | None = None
    """train on so many samples only, the first of the data"""
    fault: str | None = None
    """slug of a fault of checks.faults to inject, for showing that a check sees it"""

    @property
    def packs(self) -> bool:
        """Whether one row holds several documents."""
        return self.packing or self.padding_free

    @property
    def processes(self) -> int:
        return self.dp_size * self.tp_size * self.ep_size * self.pp_size * self.cp_size


LISTS: tuple[str, ...] = tuple(field.name for field in fields(RunSpec) if isinstance(field.default, tuple))
"""Fields that hold several values, which JSON gives back as lists."""
