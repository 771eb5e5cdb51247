"""Every sample is trained on once an epoch over all ranks, and epochs come in different orders.

Reference: the data set's samples, rendered and tokenised independently and cut to seq_len; the recorder prints the rows
of every step, captured or not, and a row is found among the samples by its print. Of packed rows the documents are
counted, where position ids tell them apart and their tokens are samples. Where the run is shorter than an epoch nothing
may come twice in it, and the pass says how much of the epoch it saw. Rows that the capture lacks leave it open. Over
several ranks the last batches of an epoch may be filled up with its first rows.
Catches: samples that are dropped (`titan-boundary-length-samples-dropped`) or come twice
(`hf-resume-order-wrong-after-first-epoch`, `verl-resume-sampler-epoch-zero`), ranks that train on the same rows
(`accelerate-shuffle-not-synced`, `swift-packing-cache-not-shared`), the same order in every epoch
(`mswift-streaming-same-order-every-epoch`, `accelerate-skip-batches-resets-epoch`).
Cannot see: what comes after the last step that was asked for; rows whose tokens are wrong (`data.template`; they leave
it open); whether a shuffle is random, beyond two epochs that are not in one order; order where there are fewer than 8
samples.
Cost: no run of its own; the recorder copies each step's token ids to the CPU once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from checks.captures.capture import Capture
from checks.captures.row_prints import read_forwards
from checks.check import Check, inconclusive
from checks.errors import CaptureError
from checks.lifecycle.unprinted_rows import find_unprinted
from checks.material import Material
from checks.parallel.joining import find_heads, find_sharing
from checks.references.dataset import Dataset
from checks.references.epochs import LEAST_FOR_ORDER, Coverage, Epoch, follow
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "data.coverage"

SHOWN_SAMPLES, SHOWN_UNITS = 50, 4096
"""Samples that the evidence names of each epoch, and rows whose sample it gives in order."""

MODEL_AXES = ("tp", "cp", "sp", "pp", "ep", "tensor", "context", "sequence", "pipeline", "expert")
"""Names of mesh axes over which ranks may read the same rows."""


def judge(material: Material) -> Verdict:
    capture, dataset = material.capture, material.dataset
    if capture is None or not capture.steps:
        return inconclusive(NAME, material.why_not())
    if dataset is None:
        return inconclusive(NAME, material.no_dataset)
    if capture.ranks != tuple(range(len(capture.ranks))):
        lost = next(rank for rank in range(len(capture.ranks)) if rank not in capture.ranks)
        return inconclusive(NAME, f"rank {lost} left no record, so that its rows are not known; record all ranks")
    try:
        forwards = read_forwards(capture)
    except CaptureError as error:
        return inconclusive(NAME, str(error).rstrip("."))
    if not forwards:
        return inconclusive(NAME, "no row was printed by the recorder; record again with the present plumbline-capture")
    lost_rows = [note.why for note in capture.missing if note.what == "rows"]
    if lost_rows:
        return inconclusive(NAME, f"not all rows were printed: {lost_rows[0]}")
    spec, ranks = material.spec, capture.ranks
    if any("dp" in place for place in capture.mesh.values()):
        ranks = find_heads(find_sharing(capture, dp_size=spec.dp_size))
        forwards = tuple(one for one in forwards if one.rank in ranks)  # the others have the rows of one of these
    coverage = follow(forwards, dataset, packing=spec.packs, batch=spec.batch)
    if not coverage.due:
        return inconclusive(NAME, "truncation leaves no sample with a token to learn; raise seq_len")
    unprinted = find_unprinted(capture, forwards, ranks=ranks, size=0 if spec.packs else coverage.size)
    if unprinted is not None:
        return inconclusive(NAME, f"{unprinted}, so that samples cannot be counted; record the capture again")
    what = "documents" if material.spec.packs else "rows"
    if coverage.unknown:
        sentence = f"{coverage.unknown} of {len(coverage.units)} {what} are no sample of the data set"
        judged = "data.preference" if dataset.preferences else "data.template"
        return inconclusive(NAME, f"{sentence} (see {judged}), so that samples cannot be counted")
    if coverage.shared and (axis := _find_model_axis(capture)):
        sentence = f"ranks of the mesh axis {axis} may read the same rows, and the capture does not say which ranks do"
        return inconclusive(NAME, f"{sentence}; record one rank of each data-parallel group")
    return _decide(coverage, dataset, last_step=max(one.step for one in forwards), what=what)


def _find_model_axis(capture: Capture) -> str | None:
    axes = {axis for entry in capture.manifest["tensors"] for axis in entry.get("placement") or ()}
    return next((axis for axis in sorted(axes) if axis.lower() in MODEL_AXES), None)


def _decide(coverage: Coverage, dataset: Dataset, *, last_step: int, what: str) -> Verdict:
    missing = sum(len(epoch.missing) for epoch in coverage.epochs)
    repeated = sum(len(epoch.repeated) for epoch in coverage.epochs)
    whole = sum(epoch.whole for epoch in coverage.epochs)
    counts = {"samples that come twice in an epoch": repeated, "rows that two ranks share": len(coverage.shared)}
    if whole:
        counts = {"samples that an epoch leaves out": missing, **counts}
    if whole > 1 and len(coverage.due) >= LEAST_FOR_ORDER:
        counts["epochs in the order of the one before"] = len(coverage.same_order)
    measurements = tuple(
        Measurement(name, float(count), 0.0, count == 0, limit=1.0, unit="count") for name, count in counts.items()
    )
    evidence = _collect_evidence(coverage, dataset)
    if all(measurement.holds for measurement in measurements):
        sentence = _describe_pass(coverage, whole, last_step, what=what)
        return Verdict(NAME, Status.PASS, sentence, measurements, evidence=evidence)
    pattern = Pattern.PARALLELISM if coverage.shared else Pattern.LOSS_MASK
    if coverage.shared:
        sentence = _describe_shared(coverage, dataset)
    elif missing or repeated:
        sentence = _describe_counts(coverage, dataset)
    else:
        one, other = coverage.same_order[0]
        sentence = (
            f"epochs {one} and {other} hold the {coverage.size} samples in the same order: the shuffle is not seeded "
            "with the epoch, or there is none"
        )
    return Verdict(NAME, Status.FAIL, sentence, measurements, pattern=pattern, first_wrong="sampler", evidence=evidence)


def _describe_pass(coverage: Coverage, whole: int, last_step: int, *, what: str) -> str:
    ranks = len({unit.rank for unit in coverage.units})
    over = f" over {ranks} ranks" if ranks > 1 else ""
    rest = len(coverage.epochs[-1].units) if not coverage.epochs[-1].whole else 0
    if not whole:
        share = f"{len(coverage.units) / coverage.size:.0%}"
        text = f"no sample comes twice in the {len(coverage.units)} {what} of steps 1 to {last_step}{over}"
        return f"{text}, which are {share} of an epoch of {coverage.size}; samples left out, and order, need more steps"
    text = f"each of {coverage.size} samples is trained on once in each of {whole} epochs{over}"
    if whole > 1:
        judged = len(coverage.due) >= LEAST_FOR_ORDER
        text += ", in different orders" if judged else f", whose order {len(coverage.due)} samples do not tell"
    if rest:
        text += f"; no sample comes twice in the {rest} {what} after them"
    if coverage.left_out:
        text += f"; {len(coverage.left_out)} samples have no answer within seq_len and are left out"
    return text


def _describe_shared(coverage: Coverage, dataset: Dataset) -> str:
    step, micro_batch, sample = coverage.shared[0]
    return (
        f"ranks train on the same rows {len(coverage.shared)} times, first on {dataset.place(sample)} in step {step}, "
        f"micro-batch {micro_batch}: the data are not divided over the ranks, or ranks shuffle each for itself"
    )


def _describe_counts(coverage: Coverage, dataset: Dataset) -> str:
    number, epoch = next((n, e) for n, e in enumerate(coverage.epochs, start=1) if e.missing or e.repeated)
    seen = {unit.sample for unit in coverage.units}
    said = []
    if epoch.missing:
        never = [index for index in epoch.missing if index not in seen]
        whole_run = f", {len(never)} of them in the whole run" if never else ""
        said.append(f"leaves out {_name(never or epoch.missing, dataset, len(epoch.missing))}{whole_run}")
    if epoch.repeated:
        said.append(f"repeats {_name(epoch.repeated, dataset, len(epoch.repeated))}")
    where = _find_repetition(epoch)
    return f"epoch {number} ({len(epoch.units)} rows for {coverage.size} samples) {' and '.join(said)}{where}"


def _name(indices: Sequence[int], dataset: Dataset, count: int) -> str:
    first = dataset.place(indices[0])
    return first if count == 1 else f"{count} samples, {first} first"


def _find_repetition(epoch: Epoch) -> str:
    """Where a sample of the epoch came for the second time."""
    if not epoch.repeated:
        return ""
    seen: Counter[int | None] = Counter()
    for unit in epoch.units:
        seen[unit.sample] += 1
        if unit.sample in epoch.repeated and seen[unit.sample] > 1:
            return f" (again in step {unit.step}, micro-batch {unit.micro_batch}, rank {unit.rank})"
    return ""


def _collect_evidence(coverage: Coverage, dataset: Dataset) -> dict[str, object]:
    times = Counter(Counter(unit.sample for unit in coverage.units).values())
    return {
        "samples": coverage.size,
        "rows": len(coverage.units),
        "times_seen": {str(count): number for count, number in sorted(times.items())},
        "left_out_without_answer": [dataset.place(index) for index in coverage.left_out[:SHOWN_SAMPLES]],
        "epochs": [
            {
                "rows": len(epoch.units),
                "whole": epoch.whole,
                "missing": [dataset.place(index) for index in epoch.missing[:SHOWN_SAMPLES]],
                "repeated": [dataset.place(index) for index in epoch.repeated[:SHOWN_SAMPLES]],
            }
            for epoch in coverage.epochs
        ],
        "shared": [list(one) for one in coverage.shared[:SHOWN_SAMPLES]],
        "order": [[unit.step, unit.rank, unit.sample] for unit in coverage.units[:SHOWN_UNITS]],
    }


CHECK = Check(NAME, "every sample is trained on once an epoch, over all ranks", __doc__ or "", judge)
