"""A step takes the memory that its shapes imply: nothing grows, is held twice or is kept when it is not needed.

The asked run once more, with every storage counted that an operation makes, until it is freed: in the forward and the
backward of each micro-batch, in the update and between them.
Reference: for parameters, gradients and optimizer state the exact bytes of the asked shapes and dtypes. For
activations the checkpoint's model class with the asked attention and gradient checkpointing, in the run's dtypes, on
the batches of the measured run, with the loss from its definition (one float32 log-softmax): what its forward holds,
and both peaks. What is allowed beyond: 5 % for locals that live longer and one float32 copy of the logits (kept
outputs); twice the reference where the run's model class or device is another. The update may take one copy of what is
trained (foreach) and three of the largest parameter.
Catches: what every step leaves behind (a loss kept with its graph), gradient checkpointing that is asked and not in
force (`automodel-activation-checkpointing-skipped`), activations kept after their backward, gradients that zero_grad
leaves alive, a second copy of the model or of the gradients, states or gradients wider than asked, dense masks or
probabilities where sdpa needs none, copies of the logits (`automodel-logits-fp32-oom`).
Cannot see: what a kernel takes for itself while it runs, what compiled code takes, fragmentation of an allocator; what
transformers' model class itself holds too much (the reference is that class); a run of several processes.
Cost: one more framework run of five steps or more, slowed by the counting, and a forward and backward of the model.
"""

from __future__ import annotations

from collections.abc import Iterator

from checks.check import Check, inconclusive
from checks.errors import CaptureError
from checks.material import Material
from checks.memory.comparison import Comparison
from checks.memory.findings import compare, find_unsettled
from checks.memory.implied import Implied
from checks.memory.measured import Group, Measured, Phase, read_measured
from checks.plot import Curve, Plot, to_evidence
from checks.roles import Role
from checks.spec import RunSpec
from checks.verdict import Status, Verdict

NAME = "memory.step"
SHOWN = 3
"""Findings that a sentence names."""
ROWS = 16
"""Groups of tensors in the table of what is alive at the peak."""


def applies(spec: RunSpec) -> str | None:
    """Why the check has nothing to say on a run spec, None where it has."""
    if spec.objective != "sft":
        return f"the reference of a step's memory is that of next-token training, and {spec.objective} was asked"
    return None


def judge(material: Material) -> Verdict:
    capture = material.capture_of(Role.MEASURED)
    if capture is None or not capture.steps:
        return inconclusive(NAME, "the run that counts its memory left no capture; see run.completes")
    try:
        processes = read_measured(capture)
    except CaptureError as error:
        return inconclusive(NAME, str(error))
    if len(processes) != 1:
        lost = [note.why for note in capture.missing if note.what == "memory"]
        why = lost[0] if lost else f"{len(processes)} processes were metered, and one is judged"
        return inconclusive(NAME, why)
    (measured,) = processes
    unsettled = find_unsettled(measured)
    if unsettled is not None:
        return inconclusive(NAME, unsettled, evidence=_describe(measured, material.implied, None))
    implied = material.implied
    if implied is None or not implied.micro_batches:
        return inconclusive(NAME, material.no_implied, evidence=_describe(measured, None, None))
    compared = compare(material.spec, measured, implied, model=capture.step(capture.steps[-1]).model.name)
    evidence = _describe(measured, implied, compared)
    if compared.findings:
        first = compared.findings[0]
        more = len(compared.findings) - SHOWN
        sentence = "; ".join(finding.sentence for finding in compared.findings[:SHOWN])
        return Verdict(
            NAME,
            Status.FAIL,
            f"{sentence} (and {more} more)" if more > 0 else sentence,
            compared.measurements,
            shared_code=implied.shared,
            pattern=first.pattern,
            first_wrong=first.where,
            evidence=evidence,
        )
    return Verdict(
        NAME,
        Status.PASS,
        _say_pass(measured, implied),
        compared.measurements,
        shared_code=implied.shared,
        evidence=evidence,
    )


def _say_pass(measured: Measured, implied: Implied) -> str:
    peak = max(measured.phases, key=lambda phase: phase.peak)
    held = max(phase.left for phase in measured.phases_of(implied.step, "forward"))
    wanted = max(micro.held for micro in implied.micro_batches)
    steps = max(moment.step for moment in measured.moments)
    return (
        f"parameters, gradients and states take no more than the {sum(_resident(implied)):,} bytes that their shapes "
        f"imply, a forward holds {held:,} bytes ({wanted:,} implied), nothing grows over {steps} steps; the peak is "
        f"{peak.peak:,} bytes, in the {_title(peak)}"
    )


def _resident(implied: Implied) -> tuple[int, int, int]:
    return implied.resident.parameters, implied.resident.gradients, implied.resident.states


def _title(phase: Phase) -> str:
    of = "" if phase.micro_batch is None else f" of micro-batch {phase.micro_batch}"
    return f"{phase.name}{of} of step {phase.step}"


def _describe(measured: Measured, implied: Implied | None, compared: Comparison | None) -> dict[str, object]:
    detailed = [phase for phase in measured.phases if phase.at_peak]
    peak = max(detailed, key=lambda phase: phase.peak, default=None)
    evidence: dict[str, object] = {"device": measured.device, "plots": to_evidence([_draw(measured)])}
    if peak is not None:
        evidence["peak"] = f"{_title(peak)}: {peak.peak:,} bytes"
        evidence["alive at the peak"] = [_row(group) for group in peak.at_peak[:ROWS]]
    if measured.moments:
        last = measured.moments[-1]
        evidence["after the last update"] = {
            "parameters": last.parameters,
            "buffers": last.buffers,
            "gradients": last.gradients,
            "optimizer state": last.states,
            "other": last.other,
        }
        evidence["other tensors after the last update"] = [_row(group) for group in last.others[:ROWS]]
    if implied is not None:
        evidence["implied"] = dict(zip(("parameters", "gradients", "optimizer state"), _resident(implied), strict=True))
    if compared is not None:
        evidence["findings"] = [{"where": f.where, "found": f.sentence} for f in compared.findings]
    return evidence


def _row(group: Group) -> dict[str, object]:
    return {
        "bytes": group.bytes,
        "count": group.count,
        "shape": "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}".join(map(str, group.shape)),
        "dtype": group.dtype.removeprefix("torch."),
        "what": group.role or "",
        "made in": group.module or group.phase,
        "line": group.caller or "",
    }


def _draw(measured: Measured) -> Plot:
    """Live bytes over the phases, in the order in which they ran: their ends, and their peaks."""
    points = list(_points(measured))
    x = [float(place) for place, _, _ in points]
    curves = [
        Curve("alive", x, [float(live) for _, live, _ in points]),
        Curve("peak of the phase", x, [None if peak is None else float(peak) for _, _, peak in points], style="points"),
    ]
    if any(phase.allocator is not None for phase in measured.phases):
        allocated = [None if phase.allocator is None else float(phase.allocator) for phase in measured.phases]
        curves.append(Curve("allocator", [index + 1.0 for index in range(len(allocated))], allocated))
    return Plot("Bytes alive over the phases of the run", "phase", "bytes", tuple(curves))


def _points(measured: Measured) -> Iterator[tuple[float, int, int | None]]:
    for index, phase in enumerate(measured.phases):
        yield float(index), phase.begin, None
        yield index + 0.5, phase.peak, phase.peak
    if measured.phases:
        yield float(len(measured.phases)), measured.phases[-1].end, None


CHECK = Check(
    NAME,
    "a step takes the memory that its shapes imply",
    __doc__ or "",
    judge,
    roles=(Role.RUN, Role.MEASURED),
    applies=applies,
)
