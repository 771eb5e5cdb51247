"""The loss that is back-propagated is the sum of the token losses over the count of the *step's* counted tokens.

Reference: an identity of the capture itself. Σ token losses ÷ the scalar given to autograd is the denominator in
force; it must be the number of targets that the loss counted, over all micro-batches and ranks of the step.
Catches: a wrong or local token count, a mean of micro-batch means, a loss multiplied or divided by the accumulation
steps.
Cannot see: which tokens are counted (`step.loss`, `data.mask`), or a rescaling after the backward (`step.gradients`).
Cost: nothing beyond the run.
"""

from __future__ import annotations

import math

from checks.check import Check, inconclusive
from checks.material import Material
from checks.references.reference import root_config
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.denominator"


ROUND_OFF = {"torch.float64": 2.0**-53, "torch.float32": 2.0**-24, "torch.bfloat16": 2.0**-9, "torch.float16": 2.0**-11}


def judge(material: Material) -> Verdict:
    if material.capture is None or not material.batches:
        return inconclusive(NAME, material.why_not())
    step = min(material.batches)
    batches, records = material.batches[step], material.capture.micro_batches(step)
    reference = material.references.get(step)
    if reference is None and _adds_auxiliary_loss(material, step):
        return inconclusive(NAME, f"an auxiliary loss is added, and {material.why_not(step)}")
    auxiliary = 0.0 if reference is None else reference.auxiliary
    sums, scalars = [], []
    for micro, record in zip(batches, records, strict=True):
        if micro.token_losses_seen is None or record.backward is None:
            return inconclusive(
                NAME, f"micro-batch {record.index}: the per-token losses or the scalar were not recorded"
            )
        sums.append(float(micro.token_losses_seen[micro.counted].sum()))
        scalars.append(record.backward)
    counts = [int(micro.counted.sum()) for micro in batches]
    total = sum(counts)
    scalar = math.fsum(scalars) - auxiliary
    if scalar == 0.0 or total == 0:
        return inconclusive(NAME, f"the step's loss is {scalar} over {total} tokens: no denominator can be told")
    in_force = math.fsum(sums) / scalar
    # n terms added pairwise in the loss's dtype (ε · log2 n), each rounded, and one division.
    epsilon = max(ROUND_OFF.get(record.backward_dtype or "torch.float32", 2.0**-9) for record in records)
    floor = epsilon * (2.0 + math.log2(max(total, 2)))
    threshold = MULTIPLES["float32"] * floor
    error = abs(in_force / total - 1.0)
    # With an auxiliary term a micro-batch's own share of it is not known; one that counts no token has no denominator.
    shares = enumerate(zip(sums, scalars, counts, strict=True))
    parts = {} if auxiliary else {index: s / b if b else math.inf for index, (s, b, count) in shares if count}
    measurements = (
        Measurement("denominator of the step", error, threshold, error <= threshold, floor, threshold + floor),
        *(
            Measurement(
                f"denominator of micro-batch {index}",
                abs(part / total - 1.0),
                threshold,
                abs(part / total - 1.0) <= threshold,
                floor,
                threshold + floor,
            )
            for index, part in parts.items()
        ),
    )
    evidence = {
        "counted": counts,
        "total": total,
        "in_force": in_force,
        "in_force_by_micro_batch": list(parts.values()),
        "num_items_in_batch": [m.num_items_in_batch for m in material.capture.micro_batches(step)],
    }
    if all(m.holds for m in measurements):
        sentence = f"divided by {in_force:.6g}, and {total} tokens count in the step"
        return Verdict(NAME, Status.PASS, sentence, measurements, {"denominator": threshold + floor}, evidence=evidence)
    return Verdict(
        NAME,
        Status.FAIL,
        _describe(in_force, parts, counts, total, max(m.value for m in measurements)),
        measurements,
        {"denominator": threshold + floor},
        pattern=Pattern.OBJECTIVE_SCALE,
        first_wrong="loss denominator",
        evidence=evidence,
    )


def _describe(in_force: float, parts: dict[int, float], counts: list[int], total: int, worst: float) -> str:
    steps = len(counts)
    means = [abs(part / (counts[index] * steps) - 1.0) < worst / 10 for index, part in parts.items()]
    if steps > 1 and means and all(means):
        shown = ", ".join(str(count) for count in counts)
        return (
            f"each micro-batch is divided by {steps} × its own tokens ({shown}), not by the step's {total}: "
            "a mean of micro-batch means, which weighs tokens by how short their micro-batch is"
        )
    if steps > 1 and abs(in_force * steps / total - 1.0) < worst / 10:
        return f"the loss is not divided over the accumulation: {steps} × what it should be ({total} tokens count)"
    times = total / in_force if in_force else math.inf
    return (
        f"the loss is divided by {in_force:.6g}, and {total} tokens count in the step: "
        f"loss and every gradient are {times:.4f}× what they should be"
    )


def _adds_auxiliary_loss(material: Material, step: int) -> bool:
    return material.capture is not None and bool(root_config(material.capture, step).get("output_router_logits"))


CHECK = Check(NAME, "the loss is divided by the step's count of counted tokens", __doc__ or "", judge)
