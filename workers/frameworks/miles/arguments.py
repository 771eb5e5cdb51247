"""Miles' own arguments, by the names of its command line, for what a run spec asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.spec import RunSpec

ESTIMATORS: Mapping[tuple[str, str], str] = {
    ("grpo", "grpo"): "grpo",
    ("grpo", "gspo"): "gspo",
    ("grpo", "dapo"): "grpo",
    ("ppo", "grpo"): "ppo",
    ("reinforce_plus_plus", "grpo"): "reinforce_plus_plus",
}
"""(objective, grpo_loss) → what Miles calls it"""


def build_arguments(spec: RunSpec) -> dict[str, Any]:
    """What `train_one_step` and what it calls read of Miles' arguments; every default of Miles' is stated."""
    # loads torch, which a command that runs nothing does without
    from checks.references.objectives.advantages import DISCOUNT, TRACE
    from checks.references.sampled import penalty_of, variant_of

    variant, penalty = variant_of(spec), penalty_of(spec)
    rows = spec.batch * spec.accumulation
    return {
        "advantage_estimator": ESTIMATORS[spec.objective, spec.grpo_loss],
        "rewards_normalization": True,
        "grpo_std_normalization": variant.scaled,
        "normalize_advantages": spec.objective == "reinforce_plus_plus",
        "reward_key": None,
        "n_samples_per_prompt": spec.num_generations,
        "rollout_batch_size": rows // spec.num_generations,
        "global_batch_size": rows,
        "micro_batch_size": spec.batch,
        "seq_length": spec.seq_len,
        "decoder_seq_length": None,
        "rollout_temperature": spec.temperature,
        "loss_type": "policy_loss",
        "eps_clip": variant.low,
        "eps_clip_high": variant.high,
        "eps_clip_c": None,
        # Miles' mean over a completion's tokens and then over completions, or over all tokens
        "calculate_per_token_loss": variant.reduction == "token_mean",
        "use_kl_loss": penalty > 0.0,
        "kl_loss_coef": penalty,
        "kl_coef": spec.beta - penalty,
        # the published estimates: GRPO's within the loss, the ratio's logarithm within rewards
        "kl_loss_type": "k3" if spec.objective == "grpo" else "k1",
        "use_unbiased_kl": False,
        "gamma": DISCOUNT,
        "lambd": TRACE,
        "entropy_coef": 0.0,
        **_OFF,
    }


_OFF: Mapping[str, Any] = {
    "use_rollout_logprobs": False,
    "use_rollout_entropy": False,
    "skip_actor_forward_only": False,
    "use_tis": False,
    "get_mismatch_metrics": False,
    "use_opsm": False,
    "use_opd": False,
    "observe_training_entropy": False,
    "recompute_loss_function": False,
    "true_on_policy_mode": False,
    "use_dynamic_global_batch_size": False,
    "use_dynamic_batch_size": False,
    "log_probs_chunk_size": -1,
    "qkv_format": "thd",
    "allgather_cp": False,
    "data_pad_size_multiplier": 128,
    "cp_comm_type": None,
    "custom_pg_loss_reducer_function_path": None,
    "custom_megatron_before_train_step_hook_path": None,
    "custom_megatron_before_log_prob_hook_path": None,
    "debug_disable_optimizer": False,
    "enable_mtp_training": False,
    "enable_witness": False,
    "ci_test": False,
    "check_for_nan_in_loss_and_grad": True,
    "save_local_weight_checksum": False,
    "dumper_enable": False,
    "dumper_fwd_bwd": None,
    "dumper_fwd_only": None,
    "dumper_inference": None,
    "dumper_dir": "/nowhere",
    "dump_details": None,
    "lora_rank": 0,
    "multi_lora": False,
    "multi_lora_n_adapters": 0,
}
"""What is not used here: corrections of an engine's log-probabilities, distillation, adapters, dumps."""
