"""What a forward holds for its backward, and both peaks, against a reference's of the same shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from checks.memory.comparison import Comparison, Finding, measure, name_place
from checks.memory.implied import Implied, ImpliedMicroBatch
from checks.memory.measured import Group, Measured, Phase
from checks.spec import RunSpec
from checks.verdict import Measurement

OUTPUT_COPIES = 1
"""Float32 copies of the logits beyond the definition: a loop that keeps the model's output, or accelerate, which makes
the output of an autocast float32
(https://github.com/huggingface/accelerate/blob/main/src/accelerate/utils/operations.py, convert_outputs_to_fp32)."""

DEFINED_COPIES = 3
"""Float32 copies of the logits that the loss's backward has alive at once: log-softmax, its gradient, the logits'."""

TILE_COLUMNS = 32_768

TILE_COPIES = 6
"""A loss in tiles of the vocabulary has a scratch of so many columns, also where the vocabulary has fewer, and up to so
many temporaries of a tile (https://github.com/huggingface/trl, chunked_logprob.py)."""


def compare_activations(spec: RunSpec, measured: Measured, implied: Implied, factor: float) -> Comparison:
    """What the forward holds for the backward, and both peaks, micro-batch by micro-batch."""
    measurements: list[Measurement] = []
    findings: list[Finding] = []
    forwards = {phase.micro_batch: phase for phase in measured.phases_of(implied.step, "forward")}
    backwards = {phase.micro_batch: phase for phase in measured.phases_of(implied.step, "backward")}
    begin = min((phase.begin for phase in forwards.values()), default=0)
    for micro in implied.micro_batches:
        forward, backward = forwards.get(micro.micro_batch), backwards.get(micro.micro_batch)
        if forward is None or backward is None:
            continue
        limit = factor * micro.held + OUTPUT_COPIES * micro.logits
        measurements.append(measure(f"held by the forward of micro-batch {micro.micro_batch}", forward.left, limit))
        held_too_much = forward.left > limit
        if held_too_much:
            findings.append(_explain_held(spec, forward, micro, implied, limit))
        for phase, peak, logits in (
            (forward, micro.forward_peak, micro.forward_logits),
            (backward, micro.backward_peak, micro.backward_logits),
        ):
            found, allowed = _peak(phase, begin, micro, peak, factor)
            name = f"peak of the {phase.name} of micro-batch {micro.micro_batch}"
            measurements.append(measure(name, found, allowed))
            if found > allowed and not held_too_much:  # else the peaks say the same again
                findings.append(_explain_peak(phase, micro, found, allowed, logits=logits, copies=_copies(phase)))
    return Comparison(tuple(measurements), tuple(_first_of_each(findings)))


def _peak(phase: Phase, begin: int, micro: ImpliedMicroBatch, peak: int, factor: float) -> tuple[int, float]:
    """The peak above the step's begin and what is allowed; the scratch of a loss in tiles is not counted."""
    tiles = [group for group in phase.at_peak if group.role is None and group.shape[-1:] == (TILE_COLUMNS,)]
    scratch = sum(group.bytes for group in tiles) if micro.vocabulary < TILE_COLUMNS else 0
    return phase.peak - begin - scratch, factor * peak + _copies(phase) * micro.logits


def _copies(phase: Phase) -> int:
    """Float32 copies of the logits, or temporaries of a tile, that are allowed beyond the definition."""
    tiled = any(group.role is None and group.shape[-1:] == (TILE_COLUMNS,) for group in phase.at_peak)
    return OUTPUT_COPIES + (TILE_COPIES if tiled else 0)


def _explain_held(spec: RunSpec, forward: Phase, micro: ImpliedMicroBatch, implied: Implied, limit: float) -> Finding:
    head = f"the forward of micro-batch {micro.micro_batch} holds {forward.left:,} bytes for its backward"
    without = implied.without_checkpointing
    if spec.gradient_checkpointing and without is not None and forward.left > (micro.held + without) / 2:
        sentence = (
            f"{head}, as one without gradient checkpointing; with it, which was asked, {micro.held:,} are implied"
        )
        return Finding("gradient checkpointing", sentence)
    square = _more_than(
        [group for group in forward.left_groups if _is_square(group, micro.positions)],
        [group for group in micro.groups if _is_square(group, micro.positions)],
    )
    if spec.attention == "sdpa" and square is not None:
        sentence = f"{head}, and {micro.held:,} are implied; {square.sentence} is dense, which sdpa does not need"
        return Finding(name_place(square), sentence)
    most = _more_than(forward.left_groups, micro.groups) or forward.left_groups[0]
    if most.shape[-1:] == (micro.vocabulary,):
        sentence = f"{head}, above {limit:,.0f} that are implied and allowed: copies of the logits, {most.sentence}"
        return Finding("logits", sentence)
    return Finding(name_place(most), f"{head}, above {limit:,.0f} that are implied and allowed: {most.sentence}")


def _explain_peak(
    phase: Phase, micro: ImpliedMicroBatch, found: int, allowed: float, *, logits: int, copies: int
) -> Finding:
    """`logits`: bytes of the reference's peak that are as wide as the vocabulary; `copies`: allowed beyond them."""
    head = f"the {phase.name} of micro-batch {micro.micro_batch} peaks at {found:,} bytes above the step's begin"
    wide = [group for group in phase.at_peak if group.role is None and group.shape[-1:] == (micro.vocabulary,)]
    beyond = (sum(group.bytes for group in wide) - max(logits, DEFINED_COPIES * micro.logits)) / micro.logits
    if beyond > copies:
        sentence = (
            f"{head}, above {allowed:,.0f}; {beyond:.1f} float32 copies of the logits are alive beyond the definition: "
            f"{wide[0].sentence}"
        )
        return Finding("logits", sentence)
    square = [group for group in phase.at_peak if group.role is None and _is_square(group, micro.positions)]
    most = (square or [group for group in phase.at_peak if group.role is None] or list(phase.at_peak))[0]
    return Finding(name_place(most), f"{head}, above {allowed:,.0f} that are implied and allowed: {most.sentence}")


def _is_square(group: Group, positions: int) -> bool:
    """Whether a tensor has a number for every pair of positions of a row."""
    return len(group.shape) >= 3 and group.shape[-2:] == (positions, positions) and positions > 1


def _more_than(found: Sequence[Group], implied: Sequence[Group]) -> Group | None:
    """The group that takes most beyond what the reference has of its shape and dtype; None where none does."""
    wanted: dict[tuple[tuple[int, ...], str], int] = {}
    for group in implied:
        key = (group.shape, group.dtype)
        wanted[key] = wanted.get(key, 0) + group.bytes
    excess: dict[tuple[tuple[int, ...], str], int] = {}
    for group in found:
        key = (group.shape, group.dtype)
        excess[key] = excess.get(key, -wanted.get(key, 0)) + group.bytes
    most = max(excess, key=lambda key: excess[key], default=None)
    if most is None or excess[most] <= 0:
        return None
    return next(group for group in found if (group.shape, group.dtype) == most)


def _first_of_each(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The first finding of each place: later micro-batches say the same."""
    seen: set[str] = set()
    for finding in findings:
        if finding.where not in seen:
            seen.add(finding.where)
            yield finding
