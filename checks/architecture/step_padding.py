"""Padding a row, on either side, changes nothing of its own log-probabilities.

Reference: an identity: each row alone, in float64.
Catches: attention to padding, positions that count it, a mask that is dropped or of the wrong side, norms or routers
that mix it in (`trl-grpo-no-attention-mask` is a loop that gave no mask).
Cannot see: what the framework's collator does to labels (`data.mask`), or padding inside a pack (`data.packing`).
Cost: shared with `step.lengths`.
"""

from __future__ import annotations

from checks.check import Check, inconclusive
from checks.material import Material
from checks.probes.answers import relative_limit
from checks.probes.plan import PADDED_LEFT, PADDED_RIGHT
from checks.roles import Role
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.padding"


def judge(material: Material) -> Verdict:
    answers = [material.probes[name] for name in (PADDED_RIGHT, PADDED_LEFT) if name in material.probes]
    if len(answers) < 2:
        return inconclusive(NAME, material.no_probes or "not both sides of padding were answered")
    multiple = MULTIPLES[material.spec.precision]
    measurements: list[Measurement] = []
    lines: list[tuple[str, int, float, float]] = []
    for answer in answers:
        for row in range(answer.input_ids.shape[0]):
            kept = ~answer.exact[row].isnan()
            if not bool(kept.any()):
                continue
            error = float(answer.errors[row][kept].nan_to_num(nan=float("inf")).max())
            floor = float(answer.floor[row])
            padding = int((~answer.mask[row]).sum())
            name = f"{answer.name} by {padding}"
            holds = error <= multiple * floor
            measurements.append(
                Measurement(name, error, multiple * floor, holds, floor, (multiple + 1.0) * floor, unit="nats")
            )
            lines.append((answer.name, padding, error, multiple * floor))
    if not measurements:
        return inconclusive(NAME, "every row has an expert choice that this precision does not decide; use float32")
    limits = {"token": relative_limit(max(m.limit or 0.0 for m in measurements), answers)}
    wrong = [m for m in measurements if not m.holds]
    evidence = {"rows": [list(line) for line in lines]}
    if not wrong:
        worst = max(m.value for m in measurements)
        most = max(line[1] for line in lines)
        sentence = (
            f"{len(measurements)} rows, padded on either side by up to {most} tokens, are as if alone "
            f"within {worst:.2g} nats"
        )
        return Verdict(
            NAME, Status.PASS, sentence, tuple(measurements), limits, material.probes_shared, evidence=evidence
        )
    worst_row = max(wrong, key=lambda m: m.value)
    unpadded = any(m.name.endswith(" by 0") for m in wrong)
    sides = sorted({m.name.split(" by ")[0] for m in wrong})
    sentence = (
        f"rows {' and '.join(sides)} differ from the same rows alone, by up to {worst_row.value:.3g} nats "
        f"(allowed {worst_row.threshold:.2g})"
    )
    if unpadded:
        sentence += "; rows without padding too, so the fault is not, or not only, in the padding"
    pattern = Pattern.MODEL_DEFINITION if unpadded else Pattern.SEQUENCE_LENGTH
    where = "model" if unpadded else "attention mask or positions"
    return Verdict(
        NAME,
        Status.FAIL,
        sentence,
        tuple(measurements),
        limits,
        material.probes_shared,
        pattern,
        where,
        evidence=evidence,
    )


CHECK = Check(NAME, "padding changes nothing of a row's own numbers", __doc__ or "", judge, roles=(Role.PROBED,))
