"""What other projects publish as the rule by which two training steps agree, each written from its source.

A rule takes the tensors of a step and those of the healthy float32 step, and returns the names of those that it calls
wrong, in the order in which the step produces them; none means that the steps agree. Comparisons are written so that
NaN never agrees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from benchmarks.ten_cases.tensors import Tensors
from checks.captures.blocks import layer_of

Rule = Callable[[Tensors, Tensors], tuple[str, ...]]

BOUND_K = 4.0
BOUND_C = 1.03
"""the defaults of Megatron-LM's `expected_rel_bound`"""
MEGATRON_LAYERS = 32
"""its default depth, whatever the model's"""
SGLANG_THRESHOLD = 1e-3
MSPROBE_COSINE, MSPROBE_ABSOLUTE = 0.99, 1e-3
MSPROBE_COSINE_ALONE, MSPROBE_ABSOLUTE_ALONE = 0.9, 1.0
TORCHTITAN_THRESHOLD = 1e-8
PADIFF_RTOL = 1e-7
GRADIENT_NORM_TOLERANCE = 0.03
LOSS_RTOL = 0.05


def assert_close(candidate: Tensors, baseline: Tensors) -> tuple[str, ...]:
    """`torch.testing.assert_close` with its float32 defaults, rtol 1.3e-6 and atol 1e-5, element by element.

    https://docs.pytorch.org/docs/stable/testing.html#torch.testing.assert_close
    """
    return tuple(name for name, a, b in candidate.pairs(baseline) if not _is_close(a, b))


def depth_bound(candidate: Tensors, baseline: Tensors) -> tuple[str, ...]:
    """‖a − b‖ / ‖b‖ ≤ k · C^(L + 1 − l) · ε, with l the tensor's layer from 1, L the model's depth and ε the
    machine epsilon of the baseline's dtype.

    Theorem 5.3 of https://arxiv.org/abs/2506.09280, with the constants k = 4 and C = 1.03 of its form in
    https://github.com/NVIDIA/Megatron-LM/blob/main/tests/functional_tests/python_test_utils/test_optimizer_grads_match.py.
    The theorem is about gradients; the rule is applied to outputs as well. l is 0 before the layers, L + 1 after them.
    """
    depth = 1 + max((layer for name in baseline.outputs if (layer := layer_of(name)) is not None), default=-1)
    wrong = []
    for name, a, b in candidate.pairs(baseline):
        layer = _layer_from_one(name, depth)
        if not _relative(a, b) <= relative_bound(layer, depth=depth, dtype=b.dtype):
            wrong.append(name)
    return tuple(wrong)


def megatron(candidate: Tensors, baseline: Tensors) -> tuple[str, ...]:
    """The same bound as Megatron-LM's test calls it: bf16's ε, 32 layers and l = 0 for every tensor, which is 8.3 %.

    https://github.com/NVIDIA/Megatron-LM/blob/main/tests/functional_tests/python_test_utils/test_optimizer_grads_match.py
    (`assert_grads_close`).
    """
    bound = relative_bound(0, depth=MEGATRON_LAYERS, dtype=torch.bfloat16)
    return tuple(name for name, a, b in candidate.pairs(baseline) if not _relative(a, b) <= bound)


def sglang(candidate: Tensors, baseline: Tensors) -> tuple[str, ...]:
    """1 − 2⟨a, b⟩ / (‖a‖² + ‖b‖²) ≤ 1e-3: like a cosine, but not blind to scale.

    https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/debug_utils/dump_comparator.py
    """
    return tuple(name for name, a, b in candidate.pairs(baseline) if not _dissimilarity(a, b) <= SGLANG_THRESHOLD)


def msprobe(candidate: Tensors, baseline: Tensors) -> tuple[str, ...]:
    """Not reached: cosine < 0.99 with a largest absolute error > 1e-3, or cosine < 0.9, or an absolute error > 1.

    The three conditions of the documentation,
    https://www.hiascend.com/doc_center/source/zh/canncommercial/700/modeldevpt/ptmigr/AImpug_000197.html, as in
    https://github.com/Ascend/msprobe/blob/master/python/msprobe/core/compare/multiprocessing_compute.py
    (`check_accuracy`). A scalar has no cosine: the last condition alone judges it, as documented (the code gives it no
    result).
    """
    return tuple(name for name, a, b in candidate.pairs(baseline) if not _reaches_accuracy(a, b))


def torchtitan(candidate: Tensors, baseline: Tensors) -> tuple[str, ...]:
    """The L1 norms, summed in float64, differ by at most 1e-8 of the larger.

    https://github.com/pytorch/torchtitan/blob/main/torchtitan/tools/compare_numerics.py (`_compute_match_status`)
    """
    wrong = []
    for name, a, b in candidate.pairs(baseline):
        x, y = float(a.double().abs().sum()), float(b.double().abs().sum())
        if not abs(x - y) / max(x, y, 1e-30) <= TORCHTITAN_THRESHOLD:
            wrong.append(name)
    return tuple(wrong)


def padiff(candidate: Tensors, baseline: Tensors) -> tuple[str, ...]:
    """The means, in the tensor's own float32, differ by at most 1e-7 of the baseline's (`compare_mode` "mean").

    https://github.com/PaddlePaddle/PaDiff/blob/develop/padiff/utils/utils.py (`assert_tensor_equal`)
    """
    wrong = []
    for name, a, b in candidate.pairs(baseline):
        x, y = float(a.float().numpy().mean()), float(b.float().numpy().mean())
        if not abs(x - y) <= PADIFF_RTOL * abs(y):
            wrong.append(name)
    return tuple(wrong)


def gradient_norm(candidate: Tensors, baseline: Tensors) -> tuple[str, ...]:
    """The norm of all gradients together agrees within 3 %, or 0.03.

    https://github.com/radixark/miles/blob/main/miles/backends/training_utils/ci_utils.py (`check_grad_norm`)
    """
    a, b = _total_norm(candidate.gradients), _total_norm(baseline.gradients)
    close = math.isclose(a, b, rel_tol=GRADIENT_NORM_TOLERANCE, abs_tol=GRADIENT_NORM_TOLERANCE)
    return () if close else ("gradient norm",)


def loss(candidate: Tensors, baseline: Tensors) -> tuple[str, ...]:
    """The loss agrees within 5 % of the baseline's.

    https://github.com/NVIDIA/Megatron-LM/blob/main/tests/functional_tests/python_test_utils/test_pretraining_regular_pipeline.py
    (`CHECK_THRESHOLDS`, "lm loss")
    """
    a, b = float(candidate.loss), float(baseline.loss)
    return () if abs(a - b) <= LOSS_RTOL * abs(b) else ("loss of the step",)


RULES: Mapping[str, Rule] = {
    "assert_close fp32": assert_close,
    "k·C^depth·ε bound": depth_bound,
    "Megatron (8.3 %)": megatron,
    "SGLang (1e-3)": sglang,
    "msprobe (cos < 0.99)": msprobe,
    "torchtitan (1e-8 of L1)": torchtitan,
    "PaDiff (1e-7)": padiff,
    "grad norm 3 %": gradient_norm,
    "loss 5 %": loss,
}
"""column of the table → rule"""


def relative_bound(layer: int, *, depth: int, dtype: torch.dtype) -> float:
    """k · C^(L + 1 − l) · ε for layer l of a model of L layers."""
    return BOUND_K * BOUND_C ** max(depth + 1 - layer, 0) * torch.finfo(dtype).eps


def _layer_from_one(name: str, depth: int) -> int:
    layer = layer_of(name)
    if layer is not None:
        return layer + 1
    return 0 if "embed_tokens" in name else depth + 1


def _is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(a.float(), b.float())
    except AssertionError:
        return False
    return True


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """‖a − b‖ / ‖b‖ in float64; 0 where both are zero."""
    error, norm = float((a.double() - b.double()).norm()), float(b.double().norm())
    if norm == 0.0:
        return 0.0 if error == 0.0 else math.inf
    return error / norm


def _dissimilarity(a: torch.Tensor, b: torch.Tensor) -> float:
    x, y = a.double(), b.double()
    size = float((x * x + y * y).sum())
    return 0.0 if size == 0.0 else 1.0 - 2.0 * float((x * y).sum()) / size


def _reaches_accuracy(a: torch.Tensor, b: torch.Tensor) -> bool:
    x, y = a.double().flatten(), b.double().flatten()
    absolute = float((x - y).abs().max())
    if x.numel() == 1:
        return absolute <= MSPROBE_ABSOLUTE_ALONE
    norms = float(x.norm()) * float(y.norm())
    cosine = float(x @ y) / norms if norms > 0.0 else float(torch.equal(x, y))
    if not (cosine >= MSPROBE_COSINE or absolute <= MSPROBE_ABSOLUTE):
        return False
    return cosine >= MSPROBE_COSINE_ALONE and absolute <= MSPROBE_ABSOLUTE_ALONE


def _total_norm(gradients: Mapping[str, torch.Tensor]) -> float:
    return math.sqrt(math.fsum(float(g.double().square().sum()) for g in gradients.values()))
