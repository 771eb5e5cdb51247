"""Data-parallel ranks train on rows of their own, together on the global batch; ranks that share a model share rows.

Reference: an identity: the rows of one process that takes the micro-batches of all ranks, and the ranks' positions in
them: micro-batch k of data-parallel rank r is number k · dp_size + r. Rows are compared by the fingerprints that the
recorder prints of every step.
Catches: the same rows on several ranks (`accelerate-shuffle-not-synced`, `swift-packing-cache-not-shared`), rows that
no rank takes, tensor- or expert-parallel ranks that read different rows.
Cannot see: rows whose tokens are wrong on every rank (`data.template`); order over epochs (`data.coverage`).
Cost: the run of one process, which `parallel.gradients` takes too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from checks.captures.capture import Capture
from checks.captures.row_prints import Print, read_forwards
from checks.check import Check, inconclusive
from checks.errors import CaptureError
from checks.material import Material
from checks.parallel.joining import find_heads, find_sharing
from checks.parallel.runs import find_steps, join_asked, single_capture
from checks.parallel.scope import why_not_alone
from checks.parallel.tensors import NotJoined
from checks.roles import Role
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "parallel.data"

Rows = Mapping[int, Mapping[int, tuple[tuple[Print, ...], ...]]]
"""step → rank → the rows of each micro-batch"""


@dataclass(frozen=True)
class StepRows:
    """One step: the ranks that share rows, how many rows of the global batch nobody took, and ranks out of place.

    `split`: ranks of one model that read different rows. `wrong`: data-parallel ranks whose rows are not those of their
    place in the global batch.
    """

    step: int
    shared: tuple[tuple[int, int, int], ...]
    """(rank, rank, rows that both took and the global batch holds fewer times)"""
    lost: int
    foreign: int
    split: tuple[int, ...]
    wrong: tuple[int, ...]
    rows: int

    @property
    def holds(self) -> bool:
        return not (self.shared or self.lost or self.foreign or self.split)


def judge(material: Material) -> Verdict:
    try:
        for step in find_steps(material):
            join_asked(material, step)
        single = single_capture(material)
        assert material.capture is not None
        ours, theirs = _read(material.capture), _read(single)
    except (NotJoined, CaptureError) as error:
        return inconclusive(NAME, str(error).rstrip("."))
    steps = sorted(ours.keys() & theirs.keys())
    if not steps:
        return inconclusive(NAME, "no row was printed by the recorder; record again with the present plumbline-capture")
    dp_size, processes = material.spec.dp_size, material.spec.processes
    silent = sorted(set(range(processes)) - {rank for step in steps for rank in ours[step]})
    if silent:
        return inconclusive(NAME, f"rank {silent[0]} printed no row; record all ranks")
    sharing = find_sharing(material.capture, dp_size=dp_size)
    found = [compare_rows(step, ours[step], theirs[step][0], sharing=sharing) for step in steps]
    return _decide(found, len(set(sharing.values())), processes)


def compare_rows(
    step: int,
    ours: Mapping[int, tuple[tuple[Print, ...], ...]],
    theirs: tuple[tuple[Print, ...], ...],
    *,
    sharing: Mapping[int, int],
) -> StepRows:
    """One step's rows by rank against the micro-batches of one process.

    `sharing`: rank → its place on the data-parallel axis.
    """
    heads = find_heads(sharing)
    counted = {rank: Counter(row for micro in ours[rank] for row in micro) for rank in ours}
    due = Counter(row for micro in theirs for row in micro)
    taken = sum((counted[rank] for rank in heads), Counter[Print]())
    too_often = taken - due
    shared = tuple(
        (one, other, sum(common.values()))
        for place, one in enumerate(heads)
        for other in heads[place + 1 :]
        if (common := counted[one] & counted[other] & too_often)
    )
    expected = {
        rank: Counter(row for micro in theirs[place :: len(heads)] for row in micro) for place, rank in enumerate(heads)
    }
    split = tuple(rank for rank in sorted(ours) if ours[rank] != ours[heads[sharing[rank]]])
    foreign = sum(count for row, count in too_often.items() if row not in due)
    wrong = tuple(rank for rank in heads if counted[rank] != expected[rank])
    return StepRows(step, shared, sum((due - taken).values()), foreign, split, wrong, sum(taken.values()))


def _read(capture: Capture) -> Rows:
    found: dict[int, dict[int, list[tuple[Print, ...]]]] = {}
    for forward in read_forwards(capture):
        found.setdefault(forward.step, {}).setdefault(forward.rank, []).append(forward.rows)
    return {step: {rank: tuple(rows) for rank, rows in ranks.items()} for step, ranks in found.items()}


def _decide(found: list[StepRows], dp_size: int, processes: int) -> Verdict:
    counts = {
        "rows that two ranks share": sum(rows for each in found for _, _, rows in each.shared),
        "rows of the global batch that no rank took": sum(each.lost for each in found),
        "rows that are not of the global batch": sum(each.foreign for each in found),
        "ranks of one model with other rows": sum(len(each.split) for each in found),
    }
    measurements = tuple(
        Measurement(name, float(count), 0.0, count == 0, limit=1.0, unit="count") for name, count in counts.items()
    )
    bad = next((each for each in found if not each.holds), None)
    ranks = sorted({*(bad.split or bad.wrong)} if bad else ())
    evidence = {
        "ranks": ranks,
        "steps": [[each.step, each.rows, [list(pair) for pair in each.shared], each.lost] for each in found],
    }
    if bad is None:
        rows = sum(each.rows for each in found)
        how = f"{dp_size} ranks take {rows} rows" if dp_size > 1 else f"{processes} ranks take the same {rows} rows"
        steps = f"step {found[0].step}" if len(found) == 1 else f"{len(found)} steps"
        sentence = f"{how} in {steps}, which are the global batch, each row once"
        return Verdict(NAME, Status.PASS, sentence, measurements, evidence=evidence)
    if bad.split:
        sentence = f"rank {bad.split[0]} reads other rows than the rank that it shares a model with, in step {bad.step}"
    elif bad.shared:
        one, other, rows = bad.shared[0]
        named = f"; rank {ranks[0]} is the one that is not at its place" if len(ranks) == 1 else ""
        sentence = (
            f"ranks {one} and {other} train on {rows} of the same rows in step {bad.step}, "
            f"and {bad.lost} rows of the global batch are on no rank{named}"
        )
    else:
        sentence = (
            f"{bad.lost} rows of the global batch of step {bad.step} are on no rank, and {bad.foreign} rows are not of "
            f"it; rank {', '.join(map(str, ranks))} is not at its place"
        )
    return Verdict(
        NAME,
        Status.FAIL,
        sentence,
        measurements,
        pattern=Pattern.PARALLELISM,
        first_wrong=f"sampler of rank {', '.join(map(str, ranks))}",
        evidence=evidence,
    )


CHECK = Check(
    NAME,
    "ranks train on rows of their own, together the global batch",
    __doc__ or "",
    judge,
    roles=(Role.RUN, Role.SINGLE),
    applies=why_not_alone,
)
