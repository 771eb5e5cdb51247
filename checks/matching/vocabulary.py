"""Words of this field as terms: what a verdict and a bug report call differently becomes one term.

The table knows the field's vocabulary (`RoPE` is rotary, `bf16` is bfloat16), and nothing of any problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

SYNONYMS: Mapping[str, str] = {
    "recomputation": "activation checkpointing, gradient checkpointing, recomputation, recompute, recomputed",
    "chattemplate": "chat template, chat templates, template, templated",
    "learningrate": "learning rate, learning rates, lr, rate",
    "weightdecay": "weight decay, decay, decayed",
    "warmup": "warm up, warmup",
    "schedule": "schedule, scheduler, schedules",
    "logprob": "log probability, log probabilities, log prob, log probs, logprob, logprobs",
    "microbatch": "micro batch, micro batches, microbatch, microbatches, micro step, micro steps",
    "accumulation": "gradient accumulation, accumulation, accumulate, accumulated, accumulates, accumulating, grad acc",
    "dataparallel": "data parallel, data parallelism, dp, ddp, dp size",
    "tensorparallel": "tensor parallel, tensor parallelism, tp, tp size",
    "pipelineparallel": "pipeline parallel, pipeline parallelism, pipeline, pp, pp size, pipeline stage",
    "contextparallel": "context parallel, context parallelism, cp, cp size",
    "expertparallel": "expert parallel, expert parallelism, ep, ep size",
    "sequenceparallel": "sequence parallel, sequence parallelism, sp, ulysses",
    "rank": "rank, ranks, gpu, gpus, world size, worker, workers, devices, replica, replicas",
    "shard": "fsdp, fsdp2, hsdp, shard, shards, sharded, sharding, fully sharded",
    "endtoken": "end of sequence, end token, end tokens, eos, im end, stop token, stop tokens, end of turn",
    "bostoken": "beginning of sequence, bos, im start, first token is doubled",
    "padding": "pad, pads, padded, padding",
    "position": "position ids, position id, position, positions",
    "rope": "rotary, rope, inv freq, yarn",
    "bfloat": "bf16, bfloat16, half precision, lower precision, low precision",
    "float": "fp32, float32, single precision, full precision",
    "fphalf": "fp16, float16",
    "autocast": "autocast, mixed precision",
    "kl": "kl, kl penalty, kl divergence",
    "expert": "moe, expert, experts, mixture of experts",
    "router": "router, routers, routing, gate, gates, gating, top k",
    "balanceloss": "load balancing, load balance, balance, balancing, auxiliary loss, aux loss, auxiliary, aux, "
    "balance loss, balancing loss, load balancing loss",
    "tied": "tie, tied, tying, untied, unties, ties, retied",
    "lmhead": "lm head, output layer, output projection",
    "embedding": "embed tokens, embedding, embeddings, vocabulary row, vocabulary rows",
    "adapter": "lora, adapter, adapters, peft",
    "alpha": "lora alpha, alpha",
    "normalise": "layernorm, rmsnorm, rms norm, layer norm, normalise, normalised, normalises, normalisation, "
    "normalized, input layernorm, q norm, k norm, norm weight, norm weights",
    "deviation": "standard deviation, std, deviation, variance",
    "answer": "answer, answers, completion, completions, response, responses, assistant, assistant only",
    "importanceratio": "old policy, importance ratio, importance ratios, importance sampling, ratio, policy ratio",
    "referencemodel": "reference model, reference policy, ref model",
    "window": "sliding window, sliding windows, window, windows",
    "loss": "cross entropy, nll, loss, losses",
    "attention": "self attn, attn, attention, attend, attends, attended, sdpa, flash, flash attention",
    "denominator": "num items, item count, items, token count, denominator, denominators, normaliser, wrong count, "
    "number of tokens, count of tokens, counted tokens",
    "average": "divided, divides, divide, mean, means, average, averaged, averages, averaging",
    "twice": "twice, double, doubled, doubles, again, two times, once more",
    "half": "half, halved, halves",
    "summed": "sum, sums, summed, added up, adds up",
    "scale": "scale, scales, scaled, scaling, factor, multiplied, multiply, times, larger, smaller, shrink, inflates",
    "resume": "resume, resumed, resumes, resuming, restart, restarts, starts over, start over, taken up",
    "checkpoint": "checkpoint, checkpoints, save, saved, saves, saving, state dict, state dicts",
    "serving": "export, exported, exports, weight sync, rollout, rollouts, serving, engine, inference, generation, "
    "vllm, sglang",
    "cache": "decode, decoding, decodes, kv cache, cache, cached",
    "sampler": "shuffle, shuffled, shuffles, shuffling, sampler, order, epoch, epochs, seed, seeded",
    "sample": "sample, samples, row, rows, example, examples",
    "missing": "drop, dropped, drops, lost, missing, left out, leaves out, never, discarded, ignored, ignores, "
    "not applied, skipped",
    "dropout": "dropout, training mode, train mode, eval mode, evaluation mode",
    "truncated": "truncate, truncated, truncates, truncation, cut short, cut off, cut, characters, max length",
    "packing": "pack, packs, packed, packing, padding free, flatten, flattened, flattening, cu seqlens, document, "
    "documents, boundary, boundaries",
    "random": "at random, random, random init, uninitialised, garbage, initialised, initialisation, re initialised, "
    "reinitialised, drawn, generator, other numbers",
    "permuted": "transpose, transposed, permuted, permutation, another order, swap, swapped, interleaved",
    "frozen": "frozen, freeze, freezes, requires grad, untrained, not trained, no gradient, no gradients, detached, "
    "received no gradient",
    "memory": "out of memory, oom, memory, bytes, alive",
    "hang": "hang, hangs, deadlock, timed out, stuck, time limit",
    "clipping": "clip, clipped, clipping, clips, gradient norm, grad norm, max grad norm, total norm, "
    "gradient clipping",
    "shifted": "shift, shifted, shifts, off by one, ahead",
    "preference": "preference, preferences, pair, pairs, chosen, rejected, dpo, margin, margins, preferred",
    "advantage": "advantage, advantages, group relative, grpo, reward, rewards",
    "lossscale": "loss scale, loss scaling, loss scaler, grad scaler, unscale, unscaled, overflow",
    "turn": "turn, turns, multi turn, conversation, conversations",
    "header": "header, headers, role token, role tokens, generation prompt",
    "smoothing": "smoothing, smoother, smoothed, label smoothing",
    "determinism": "deterministic, not deterministic, nondeterministic, non deterministic, determinism, race",
    "optimizerstate": "optimizer state, optimizer states, moment, moments, exp avg, momentum",
    "label": "mask, masked, masks, masking, loss mask, label, labels, target, targets",
    "attentionmask": "attention mask, attention masks",
    "quantised": "quantise, quantised, quantisation, quantized, quantization, fp8, mxfp4, int8, int4",
    "head": "head dim, attention heads, heads",
    "precision": "precision, dtype, dtypes, rounded, rounding, rounds",
    "gradient": "gradient, gradients, grad, grads, backward",
    "evaluation": "evaluation, eval, eval loss, validation, evaluates",
    "temperature": "temperature, temperatures",
}
"""Term → what is written for it, separated by commas."""

_SAY_NOTHING = (
    "a an and are as asked at be but by do does each every for from has have if in instead into is it its model models "
    "more no not of off on once one only or other our own same set should so some still than that the their them then "
    "there these they this those to too under use used uses using was were what when where which while who will with "
    "without wrong right differ differs different fault framework training train trained step steps allowed first data "
    "though although up down been being can cannot may must any all both between after before because"
)
STOPWORDS = frozenset(_SAY_NOTHING.split())
"""Words that say nothing of which problem it is: English, and what every verdict says."""

_WORD = re.compile(r"[a-z][a-z0-9]*")
_ENDINGS = ("ations", "ation", "ings", "ing", "ies", "ed", "es", "ly", "s", "e")
_SHORTEST_STEM = 4
_SHORTEST_WORD = 3


def _read_phrases() -> dict[str, tuple[tuple[tuple[str, ...], str], ...]]:
    """First word → the phrases that begin with it, each with its term; the longest first."""
    found: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for term, phrases in SYNONYMS.items():
        for phrase in phrases.split(","):
            words = tuple(_WORD.findall(phrase))
            found.setdefault(words[0], []).append((words, term))
    return {first: tuple(sorted(each, key=lambda pair: -len(pair[0]))) for first, each in found.items()}


_PHRASES = _read_phrases()


@lru_cache(maxsize=4096)
def list_terms(text: str) -> tuple[str, ...]:
    """The terms of a text, in order, each as often as it stands there; the longest phrase is taken first.

    >>> list_terms("RoPE angles are computed in bf16"), list_terms("rotary frequencies rounded to bfloat16")
    (('rope', 'angl', 'comput', 'bfloat'), ('rope', 'frequenc', 'precision', 'bfloat'))
    """
    return tuple(term for term, _ in pair_terms(text))


def pair_terms(text: str) -> Iterator[tuple[str, str]]:
    """Each term with the words that stand for it in the text, in small letters."""
    words = _WORD.findall(text.lower().replace("×1/2", " half ").replace("×2", " twice "))
    index = 0
    while index < len(words):
        word = words[index]
        for phrase, term in _PHRASES.get(word, ()):
            if len(phrase) == 1 or tuple(words[index : index + len(phrase)]) == phrase:
                yield term, " ".join(phrase)
                index += len(phrase)
                break
        else:
            index += 1
            if word not in STOPWORDS and len(word) >= _SHORTEST_WORD:
                yield stem(word), word


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """The word without its ending, where enough is left to know it by.

    >>> stem("resets"), stem("gathered"), stem("frequencies"), stem("bias")
    ('reset', 'gather', 'frequenc', 'bias')
    """
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            return word[: -len(ending)]
    return word
