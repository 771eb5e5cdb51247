"""The adapters are where they were asked for, as large and as strong as asked, and they alone are trained.

Reference: the run spec (targets, rank r, alpha) and the definition W x + (alpha / r) · B (A x) (arXiv:2106.09685,
equation 3). Every linear layer that a target names has both factors and no other has one; A is (r, in) and B (out, r);
the scale in force is alpha / r, no dropout stands before A, nothing is merged while it trains; factors are held in the
dtype of the run, A is not zero, and no two layers begin with the same A. The optimizer holds the adapters and nothing
else, the base is the same to the last bit of its sketch after the last step, and gradients are those of the product:
that of A is zero where B is zero, and nowhere else.
Catches: adapters on other or fewer layers (`peft-layers-to-transform-expert-index`), another scale
(`peft-rslora-scale-reset`), rank, dtype (`swift-lora-dtype-overridden`) or dropout, adapters that are frozen
(`swift-adapter-frozen-after-initial-save`) or begin alike (`mswift-lora-tp-init-same-seed`), a base that moves.
Cannot see: what a layer computes with right settings (`step.loss`, `step.gradients`); which distribution A was drawn
from; the scale of variants that a run spec cannot ask for (rank-stabilised, decomposed); adapters that are merged on
saving (`checkpoint.roundtrip`).
Cost: nothing beyond the run.
"""

from __future__ import annotations

from checks.adapters.problems import Adapters, find_problems
from checks.check import Check, inconclusive
from checks.material import Material
from checks.spec import RunSpec
from checks.verdict import Measurement, Status, Verdict

NAME = "step.lora"
SHOWN = 3
"""Problems that a sentence names."""


def judge(material: Material) -> Verdict:
    capture = material.capture
    if capture is None or not capture.steps:
        return inconclusive(NAME, material.why_not())
    if not material.expected_adapters:
        return inconclusive(NAME, "no linear layer of the model has a name that lora_targets gives; set lora_targets")
    adapters = Adapters.read(material, capture)
    problems = find_problems(adapters)
    wrong = {problem.where for problem in problems}
    layers = adapters.expected_layers
    measurements = (
        Measurement("adapters not as asked", float(len(wrong)), 0.0, not problems, limit=1.0, unit="count"),
    )
    zero = sum(adapters.norm(f"{layer}.lora_B.weight") == 0.0 for layer in layers)
    evidence = {
        "r": material.spec.lora_r,
        "scale": adapters.scale,
        "zero_B": zero,
        "layers": adapters.describe(),
        "problems": [{"where": p.where, "found": p.sentence, "how many": p.count} for p in problems],
    }
    if problems:
        more = f" (and {len(problems) - SHOWN} more)" if len(problems) > SHOWN else ""
        return Verdict(
            NAME,
            Status.FAIL,
            "; ".join(problem.text for problem in problems[:SHOWN]) + more,
            measurements,
            pattern=problems[0].pattern,
            first_wrong=problems[0].where,
            evidence=evidence,
        )
    begin = "all B zero" if zero == len(layers) else "B drawn" if not zero else f"B zero in {zero} of them"
    sentence = (
        f"{len(layers)} layers have adapters of rank {material.spec.lora_r} and scale {adapters.scale:g} "
        f"({begin} before step {adapters.first}), the optimizer holds them alone, and {adapters.still} other "
        "parameters do not move"
    )
    return Verdict(NAME, Status.PASS, sentence, measurements, evidence=evidence)


def _needs_adapters(spec: RunSpec) -> str | None:
    return None if spec.lora else "no adapters are asked for (lora=false)"


CHECK = Check(NAME, "adapters are where, what and as strong as asked", __doc__ or "", judge, applies=_needs_adapters)
