"""Every module gives what its definition gives for the input that it received.

Reference: each module of the float64 model, fed the input that the framework's module got in the first step, so that an
error is blamed on the module that makes it and never on one downstream.
Catches: a wrong scale, epsilon or rotation of one module (`automodel-mistral4-attention-scale-and-bias-sync`,
`mcore-mamba-norm-eps-ignored`, `mswift-mla-rope-layout-flag`), a norm applied twice
(`automodel-gemma4-router-double-norm`), a kernel that is wrong for one layer alone; also where the loss hides it.
Cannot see: what modules share with the reference's code (the pass names it), the backward (`step.gradients`), modules
whose output is not laid along the batch (they are counted).
Cost: one run of the framework of one step that keeps the inputs and outputs of every module (of a model too large for
that, those of its layers), and three forwards of the reference a level of nesting.
"""

from __future__ import annotations

from checks.check import Check, inconclusive
from checks.diagnosis.first_divergence import Divergence, ModuleError
from checks.material import Material
from checks.plot import Curve, Plot, to_evidence
from checks.roles import Role
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.activations"

USEFUL_LIMIT = 0.05
"""of a module's output: one that could be further off unseen is not counted as judged"""


def judge(material: Material) -> Verdict:
    divergence = material.activations
    if divergence is None:
        return inconclusive(NAME, material.no_activations or material.why_not())
    if not divergence.modules:
        return inconclusive(NAME, "no module's input and output could be laid beside the reference's")
    told = [module for module in divergence.modules if not module.holds or module.threshold <= USEFUL_LIMIT]
    measurements = tuple(_measure(module) for module in divergence.modules)
    loosest = max(told or divergence.modules, key=lambda module: module.threshold)
    limits = {loosest.module: loosest.threshold + loosest.floor}
    evidence = {
        "not_comparable": list(divergence.not_comparable),
        "plots": to_evidence([_draw(divergence)]),
    }
    reference = material.first_reference()
    shared = reference.source.shared if reference is not None else ()
    first = divergence.first
    if first is not None:
        wrong = sum(not module.holds for module in divergence.modules)
        sentence = (
            f"{first.module} ({first.class_name}), given the input that it received, is off by {first.error:.3g} of "
            f"its output's size (allowed {first.threshold:.2g}); {wrong} of {len(measurements)} modules are wrong"
        )
        return Verdict(
            NAME,
            Status.FAIL,
            sentence,
            measurements,
            limits,
            shared,
            Pattern.MODEL_DEFINITION,
            first.module,
            evidence=evidence,
        )
    if 2 * len(told) < len(measurements):
        sentence = (
            f"{len(measurements) - len(told)} of {len(measurements)} modules could be off by more than "
            f"{USEFUL_LIMIT:g} of their output unseen; run with precision=float32"
        )
        return inconclusive(NAME, sentence, measurements=measurements, detection_limits=limits, evidence=evidence)
    worst = max(told, key=lambda module: module.error / module.threshold)
    noisy = len(measurements) - len(told)
    left = f"; {noisy} compute too coarsely to tell" if noisy else ""
    left += f"; {len(divergence.not_comparable)} could not be compared" if divergence.not_comparable else ""
    sentence = (
        f"{len(told)} modules, each on the input that it received, agree; the largest error is "
        f"{worst.error:.2g} of {worst.module}'s output (allowed {worst.threshold:.2g}){left}"
    )
    return Verdict(NAME, Status.PASS, sentence, measurements, limits, shared, evidence=evidence)


def _measure(module: ModuleError) -> Measurement:
    return Measurement(
        module.module, module.error, module.threshold, module.holds, module.floor, module.threshold + module.floor
    )


def _draw(divergence: Divergence) -> Plot:
    places = [float(index) for index in range(len(divergence.modules))]
    return Plot(
        "Error of each module's output on the input that it received",
        "module, in order of completion",
        "relative error",
        (
            Curve("error", places, [module.error or None for module in divergence.modules]),
            Curve("threshold", places, [module.threshold for module in divergence.modules], style="threshold"),
            Curve("noise floor", places, [module.floor for module in divergence.modules], style="floor"),
        ),
        scale="log",
    )


CHECK = Check(
    NAME,
    "every module gives what its definition gives for its input",
    __doc__ or "",
    judge,
    roles=(Role.RUN, Role.TRACED),
    reference=True,
)
