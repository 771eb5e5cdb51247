"""What must be said of each fault: by which check, and which module or stage it must name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from checks.faults import Fault

DENSE = ("qwen3", "llama", "qwen2", "mistral")
UNTIED = DENSE
ROUTED = ("qwen3_moe", "qwen3_next")
GROUP_ROUTED = ("deepseek_v3", "glm4_moe")
BOTH = ("transformers", "trl")
TRAINER = ("transformers",)
TRL = ("trl",)
PLAIN = ("plain",)
"""Of fp16: on a CPU the other frameworks train in float32 where it was asked, in silence."""


@dataclass(frozen=True)
class Expected:
    """How a fault is run, and what must be said of it.

    `where`: regular expression that the first wrong module, parameter or setting of a failing check must match; where
    it is empty the stage is all there is to name, which the right check does by failing. `checks`: the right ones, any
    of which will do; the fault's own where there is none. `families`: those that can have the fault; dense ones where
    there is none.
    """

    where: str = ""
    checks: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = BOTH
    settings: tuple[str, ...] = ()
    data: str = "gsm8k_sample"
    config: tuple[tuple[str, float], ...] = ()
    """entries of the model's config.json without which the fault has nothing to act on"""

    def checks_of(self, fault: Fault) -> tuple[str, ...]:
        return self.checks or (fault.check,)


CHAT = "tulu3_sample"
PAIRS = "preferences_sample"
BALANCED = (("output_router_logits", True), ("router_aux_loss_coef", 0.05))
"""A config that asks for a load-balancing loss, of a weight that shows in float32."""

EXPECTED: Mapping[str, Expected] = {
    "wrong-loss-count": Expected("loss denominator"),
    "labels-shifted-twice": Expected("labels"),
    "rmsnorm-eps": Expected(r"norm.*eps"),
    "attention-scale": Expected(r"layers\.0\.self_attn"),
    "weight-scaled": Expected(r"layers\.0\.(mlp\.down_proj|self_attn\.o_proj)"),
    "norm-misses-embedding": Expected("gradient norm"),
    "decay-on-norms": Expected(r"weight_decay of .*norm"),
    "clip-before-accumulation": Expected("clipping|accumulation", checks=("step.accumulation", "step.gradients")),
    "adapter-frozen": Expected(r"layers\.0\.self_attn\.q_proj\.lora_A"),
    "label-masked": Expected("labels"),
    "micro-batch-mean": Expected("loss denominator"),
    "rope-bf16": Expected(r"rotary_emb", checks=("step.precision",)),
    "packed-positions": Expected("", frameworks=TRL),
    "head-scaled": Expected(r"layers\.0\.self_attn\.o_proj", checks=("step.gradients", "step.activations")),
    "one-expert-scaled": Expected(r"experts", families=("qwen3_moe", "qwen3_next", "gpt_oss", "glm4_moe")),
    "beta2-wrong": Expected("beta2", checks=("step.update",)),
    "warmup-off-by-one": Expected("lr|rate|schedule", checks=("step.update", "step.schedule")),
    "gradient-zeroed": Expected(r"layers\.1\.self_attn\.k_proj"),
    "accumulation-not-divided": Expected("loss denominator"),
    "optimizer-not-restored": Expected("exp_avg|optimizer|state"),
    "schedule-restarts": Expected("learning rate|lr|rate"),
    "data-restart": Expected("batch|input_ids|rows|data"),
    "dropout-restarts": Expected("random", config=(("attention_dropout", 0.1),), checks=("checkpoint.resume",)),
    "loaded-at-random": Expected(r"weight"),
    "saved-transposed": Expected(r"weight"),
    "saved-in-bf16": Expected(r"weight"),
    "tied-head-stale": Expected(r"lm_head|embed_tokens", families=("gemma3_text",)),
    "adapter-alpha-saved": Expected(r"alpha"),
    "bos-doubled": Expected(),
    "eos-not-appended": Expected(),
    "truncated-in-characters": Expected(),
    "truncated-from-left": Expected(),
    "template-ignored": Expected(),
    "eos-masked-as-pad": Expected("labels"),
    "header-trained": Expected("labels", data=CHAT),
    "first-turn-only": Expected("labels", data=CHAT),
    "last-turn-only": Expected("labels", data=CHAT),
    "tool-turn-trained": Expected("labels", data="tools_sample"),
    "sample-repeated": Expected("sampler"),
    "sample-dropped": Expected("sampler"),
    "same-order-each-epoch": Expected("sampler"),
    "rope-theta": Expected(r"rotary_emb"),
    "rope-scaling-ignored": Expected(r"rotary_emb", families=("gpt_oss",)),
    "rope-chunk-offset": Expected(r"rotary_emb|self_attn|position", checks=("step.loss", "step.gradients")),
    "window-plus-one": Expected(
        r"self_attn|sliding_window|position",
        checks=("step.loss", "step.gradients"),
        families=("gemma3_text", "gpt_oss"),
    ),
    "window-ignored": Expected(
        r"self_attn|sliding_window|position",
        checks=("step.loss", "step.gradients"),
        families=("gpt_oss", "gemma3_text"),
    ),
    "mask-added-as-one": Expected(
        r"self_attn|attention mask", checks=("step.loss", "step.gradients", "step.causality")
    ),
    "heads-tiled": Expected(r"self_attn", checks=("step.loss", "step.gradients")),
    "key-norm-twice": Expected(
        r"layers\.0\.self_attn", checks=("step.loss", "step.gradients"), families=("qwen3", "glm4_moe")
    ),
    "router-input-normalised": Expected(
        r"mlp", checks=("step.loss", "step.gradients"), families=("qwen3_moe", "deepseek_v3", "glm4_moe", "gpt_oss")
    ),
    "head-untied": Expected(r"lm_head|embed_tokens", families=("gemma3_text",)),
    "head-retied": Expected(r"lm_head|embed_tokens"),
    "weights-reinitialised": Expected(r"layers\.1\.self_attn\.o_proj"),
    "experts-at-random": Expected(r"experts", families=("qwen3_moe", "qwen3_next", "glm4_moe")),
    "expert-bias-unweighted": Expected(
        r"layers\.0\.mlp", checks=("step.loss", "step.gradients"), families=("gpt_oss",)
    ),
    "embedding-scale-dropped": Expected(r"embed_tokens", families=("gemma3_text",)),
    "rope-angles-bf16": Expected(r"rotary_emb|self_attn"),
    "softmax-bf16": Expected(r"self_attn"),
    "gradients-bf16": Expected("gradient"),
    "decay-rounded": Expected(r"A_log|dt_bias", families=("qwen3_next",)),
    "master-weights-bf16": Expected(r"dtype"),
    "no-autocast": Expected(r"dtype|autocast"),
    "padding-counted": Expected("loss denominator"),
    "loss-divided-twice": Expected("loss denominator"),
    "loss-times-ranks": Expected("loss denominator"),
    "rows-weigh-alike": Expected(
        r"loss denominator", checks=("step.denominator", "step.gradients", "step.loss"), frameworks=TRAINER
    ),
    "label-smoothing": Expected("label smoothing", frameworks=TRAINER),
    "zero-grad-each-micro-batch": Expected(r"accumulation", checks=("step.accumulation", "step.gradients")),
    "expert-gradients-halved": Expected(r"experts", families=("qwen3_moe", "qwen3_next")),
    "tied-gradient-doubled": Expected(r"embed_tokens", families=("gemma3_text",)),
    "clip-scales-up": Expected(r"."),
    "clip-norm-of-half": Expected(r"."),
    "decay-doubled": Expected(r"weight_decay"),
    "optimizer-one-step-ahead": Expected(r"."),
    "rate-of-scheduler": Expected(r"\blr\b|rate", checks=("step.update", "step.schedule")),
    "rate-decays": Expected(r"\blr\b|rate", checks=("step.update", "step.schedule")),
    "schedule-twice": Expected(r"\blr\b|rate", checks=("step.update", "step.schedule")),
    "step-each-micro-batch": Expected(r"micro-batch"),
    "lora-scale-halved": Expected(r"(q|v)_proj\.scaling"),
    "adapter-elsewhere": Expected(r"o_proj\.lora_A"),
    "adapters-begin-alike": Expected(r"lora_A"),
    "adapter-dropout-on": Expected(r"lora_dropout"),
    "balance-loss-on": Expected(
        r"router|gate|aux",
        checks=("step.gradients", "step.settings", "step.denominator", "step.loss"),
        families=("qwen3_moe", "qwen3_next"),
        frameworks=TRAINER,
    ),
    "balance-loss-detached": Expected(
        r"balanc", families=("qwen3_moe", "qwen3_next"), frameworks=TRL, config=BALANCED, checks=("step.moe",)
    ),
    "balance-loss-each-micro-batch": Expected(
        r"balanc", families=("qwen3_moe", "qwen3_next"), frameworks=TRL, config=BALANCED, checks=("step.moe",)
    ),
    "top-k-not-normalised": Expected(r"gate|router", families=("qwen3_moe", "qwen3_next"), checks=("step.moe",)),
    "dropout-left-on": Expected(r"layers\.0\.mlp|dropout", checks=("step.dropout",)),
    "padding-attended": Expected(r"mask|position"),
    "noisy-layer": Expected(r"forward|mlp", checks=("step.determinism",)),
    "router-detached": Expected(
        r"gate|router",
        families=("qwen3_moe", "glm4_moe", "deepseek_v3", "gpt_oss"),
        checks=("step.gradients", "step.update", "step.frozen"),
    ),
    "packing-not-isolated": Expected("", frameworks=TRL),
    "boundary-trained": Expected("", checks=("data.mask", "data.packing", "step.loss"), frameworks=TRL),
    "answer-start-masked": Expected("labels"),
    "answer-end-masked": Expected("labels"),
    "row-masked": Expected("labels"),
    "decode-position-zero": Expected(r"cache"),
    "eval-in-training-mode": Expected("dropout", frameworks=TRAINER, config=(("attention_dropout", 0.1),)),
    "eval-covers-the-tail": Expected("rows of the evaluation"),
    "every-third-update-lost": Expected("loss of step"),
    "updates-stop": Expected("loss of step"),
    "export-lags": Expected("exported weight"),
    "export-rounded": Expected("exported weight"),
    "ranks-share-rows": Expected("sampler", frameworks=TRAINER),
    "ranks-shuffle-apart": Expected("sampler", frameworks=TRAINER),
    "preference-swapped": Expected("pairs", frameworks=TRL, data=PAIRS),
    "preference-prompt-cut": Expected("truncation", frameworks=TRL, data=PAIRS),
    "preference-mask-early": Expected("labels", frameworks=TRL, data=PAIRS),
    "rejected-answer-cut": Expected("special tokens|truncation", frameworks=TRL, data=PAIRS),
    "reference-is-policy": Expected("reference model", frameworks=TRL, data=PAIRS),
    "preference-beta-doubled": Expected(
        "beta|loss denominator", frameworks=TRL, data=PAIRS, checks=("step.rl_loss", "step.gradients")
    ),
    "advantages-not-centred": Expected("mean", frameworks=TRL, data=PAIRS),
    "advantages-of-population": Expected("standard deviation", frameworks=TRL, data=PAIRS),
    "advantages-over-batch": Expected("standard deviation", frameworks=TRL, data=PAIRS),
    "advantages-astray": Expected("rows", frameworks=TRL, data=PAIRS),
    "ratio-of-sequence": Expected("importance ratio", frameworks=TRL, data=PAIRS),
    "mean-over-tokens": Expected("loss denominator", frameworks=TRL, data=PAIRS),
    "penalty-reversed": Expected("KL penalty", frameworks=TRL, data=PAIRS),
    "penalty-plain": Expected("KL penalty", frameworks=TRL, data=PAIRS),
    "old-follows-policy": Expected("importance ratio", frameworks=TRL, data=PAIRS),
    "temperature-forgotten": Expected("temperature", frameworks=TRL, data=PAIRS),
    "reference-temperature-forgotten": Expected("temperature", frameworks=TRL, data=PAIRS),
    "odds-of-sums": Expected("answer log-probabilities", frameworks=TRL, data=PAIRS),
    "orpo-learns-padding": Expected("labels", frameworks=TRL, data=PAIRS),
    "orpo-not-divided": Expected("loss denominator", frameworks=TRL, data=PAIRS),
    "kto-labels-flipped": Expected("label", frameworks=TRL, data=PAIRS),
    "preference-not-divided": Expected(
        "loss denominator", frameworks=TRL, data=PAIRS, checks=("step.rl_loss", "step.gradients")
    ),
    "losses-kept-with-graphs": Expected("", checks=("memory.step",)),
    "activations-kept": Expected(r"layers\.\d", checks=("memory.step",)),
    "checkpointing-not-in-force": Expected("gradient checkpointing", checks=("memory.step",)),
    "gradients-held-twice": Expected("gradient", checks=("memory.step",)),
    "mask-for-every-head": Expected("self_attn", checks=("memory.step",)),
    "logits-copied": Expected("logits", checks=("memory.step",), frameworks=TRAINER),
    "clip-of-scaled-gradients": Expected("clipping", checks=("step.scaler",), frameworks=PLAIN),
    "schedule-advances-on-skipped-step": Expected("learning rate", checks=("step.scaler",), frameworks=PLAIN),
    "scale-never-updated": Expected("loss scale", checks=("step.scaler",), frameworks=PLAIN),
}
