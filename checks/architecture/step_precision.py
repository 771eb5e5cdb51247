"""Every number is held and computed in the precision that was asked, and none has been through a lower one.

Reference: the run spec for dtypes: parameters, gradients, optimizer states, autocast, matrix products, the loss and
its logits (float32 in every precision). The checkpoint for weights, the config for tables and scalars of modules
(rotary frequencies, epsilons): one that is the asked one rounded to bfloat16 or float16 is named. Float32 numbers of
which all low bits are zero (gradients, moments, updated weights, routers' outputs) have been through a lower precision.
Where the forward is wrong, the first wrong module is computed again with its rotary angles, softmax, norm, router,
matrix products or output in a lower precision; one that gives what the framework's module gave explains it.
Catches: weights, tables or gradients rounded on the way (`automodel-rope-frequencies-rounded-to-bf16`,
`automodel-gdn-decay-rounded-to-bf16`, `automodel-gradient-reduction-bf16-default`), parameters, moments or a loss in
another dtype (`automodel-fp32-master-weights-lost`, `swift-lora-dtype-overridden`), autocast that is missing
(`accelerate-tp-bf16-no-autocast`), a softmax, norm, router or rotary table that should be float32
(`automodel-dsv4-router-softmax-bf16`, `hf-rope-bf16-positions`), a layer that gives other numbers from run to run
(`automodel-router-recompute-mismatch`).
Cannot see: a rounding that float32 sums hide again, such as that of each micro-batch's gradient before it is added;
in bf16 runs gradients that were rounded, for autocast rounds them too; weights that the checkpoint itself holds in the
lower precision; TF32 (`environment.settings`).
Cost: nothing beyond the run, and the pass that traces a wrong forward to its module.
"""

from __future__ import annotations

from collections.abc import Iterator

from checks.architecture.step_loss import forward_differs
from checks.check import Check, inconclusive
from checks.material import Material
from checks.precision.findings import Compared, Finding, compare_tables, look
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.precision"
SHOWN = 3
"""Findings that a sentence names."""


def judge(material: Material) -> Verdict:
    capture = material.capture
    if capture is None or not capture.steps:
        return inconclusive(NAME, material.why_not())
    reference = material.references.get(1)
    compared = look(material.spec, capture, reference, float32=material.float32_names)
    numbers, tables = compare_tables(capture.step(capture.steps[0]).scalars, material.expected_scalars)
    computed = tuple(_read_divergence(material))
    findings = (*compared.findings, *tables, *computed)
    counts = {**compared.counts, **({"numbers of modules' settings": numbers} if numbers else {})}
    measurements = (
        Measurement(
            "in another precision than asked", float(len(findings)), 0.0, not findings, limit=1.0, unit="count"
        ),
    )
    evidence = {
        "asked": material.spec.precision,
        "compared": counts,
        "findings": [{"where": f.where, "found": f.sentence, "how many": f.count} for f in findings],
    }
    if findings:
        more = f" (and {len(findings) - SHOWN} more)" if len(findings) > SHOWN else ""
        return Verdict(
            NAME,
            Status.FAIL,
            "; ".join(finding.sentence for finding in findings[:SHOWN]) + more,
            measurements,
            pattern=Pattern.PRECISION,
            first_wrong=findings[0].where,
            evidence=evidence,
        )
    undecided = _name_undecided(material)
    if undecided is not None:
        return inconclusive(NAME, undecided, measurements=measurements, evidence=evidence)
    return Verdict(NAME, Status.PASS, _say_pass(compared, material, numbers), measurements, evidence=evidence)


def _read_divergence(material: Material) -> Iterator[Finding]:
    """What the traced pass says of a wrong forward: numbers that do not repeat, or that a lower precision gives."""
    divergence = material.divergence
    if divergence is None:
        return
    first = divergence.first
    if divergence.unsteady > 1.0:
        started = "a second pass from the same batch, weights and random state"
        where = "" if first is None else f"; the first module to differ from the reference is {first.module}"
        sentence = f"{started} gave other gradients, by {divergence.unsteady:.3g} times what is allowed{where}"
        yield Finding("forward" if first is None else first.module, sentence)
    elif first is not None and divergence.rounding is not None:
        rounding = divergence.rounding
        yield Finding(
            first.module,
            f"the forward first differs in {first.module} ({first.class_name}), and what it gives is the reference's "
            f"with its {rounding} (which leaves {rounding.left:.2g} of the error)",
        )


def _name_undecided(material: Material) -> str | None:
    """Why a forward that is wrong, or unknown, leaves open in which precision it was computed."""
    reference = material.first_reference()
    if reference is None or not forward_differs(reference, precision=material.spec.precision):
        return None
    if any(micro.token_losses_seen is None for micro in reference.micro_batches):
        return "dtypes and values are as asked; the losses of tokens were not recorded, so the forward is not compared"
    if material.divergence is None:
        return "dtypes and values are as asked; the forward is wrong (see step.loss), and no second pass traced it"
    return "dtypes and values are as asked; the forward is wrong (see step.loss), and no lower precision explains it"


def _say_pass(compared: Compared, material: Material, numbers: int) -> str:
    counts = ", ".join(f"{count} {what}" for what, count in compared.counts.items())
    tables = f", {numbers} numbers of modules' settings" if numbers else ""
    unknown = "" if material.references else f"; the forward and the weights are not compared: {material.why_not()}"
    return f"{counts}{tables} are in the precision asked ({material.spec.precision}){unknown}"


CHECK = Check(NAME, "numbers are held and computed in the asked precision", __doc__ or "", judge, reference=True)
