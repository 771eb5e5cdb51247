"""The rows of a preference run are pairs: one prompt, the preferred answer and the rejected one, and these are scored.

Reference: both sides of each preference rendered with jinja2 and tokenised from tokenizer.json as in `data.template`,
cut to their first seq_len tokens; text ends in the end-of-sequence token. The first half of a micro-batch's rows are
its preferred answers, the second half the rejected ones in the same order. Which tokens are an answer is found by its
place in the rendered text and the tokenizer's offsets, as in `data.mask`; of the prompt none counts, whoever speaks in
it. Where the last token of the prompt merges with the first of an answer, either is right from there on, and from the
same token on both sides.
Catches: pairs that are swapped, torn apart or doubled, prompts that are cut differently, a first token that is doubled,
an end token that is missing or added (`trl-dpo-double-eos-chat`), rows cut on the wrong side or too short
(`trl-dpo-keep-end-empties-samples`, `trl-dpo-drops-last-column`), answers that truncation takes away, a mask that is
shifted, prompts or padding that are scored (`trl-orpo-pad-in-labels`), parts of answers that are not.
Cannot see: what the loss does with the pairs and their masks; a preference that the data themselves state the wrong way
round; rows of steps that were not captured (`data.coverage` counts those). Frameworks differ in whether the turns of
others inside an answer of several turns are scored, and either is right.
Cost: no run of its own; both sides are rendered once a validation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checks.check import Check, inconclusive
from checks.lifecycle.shown_tokens import SHOWN_ROWS, cut_window, show_mask
from checks.material import Material
from checks.objectives import needs_preferences
from checks.references.dataset import Dataset
from checks.references.mask import Aligned, align, count_kinds, name_wrong_targets
from checks.references.mask import Kind as MaskKind
from checks.references.pairs import Kind, Pair, Side, find_eaten, match_pairs
from checks.references.rows import Labels, read_rows
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "data.preference"

SHARED = ("tokenizers",)


@dataclass(frozen=True)
class Findings:
    """All that was compared. `aligned`: the rows whose labels were laid along their sample's mask."""

    pairs: tuple[Pair, ...]
    aligned: tuple[Aligned, ...]
    kinds: Counter[MaskKind]
    wrong_targets: tuple[MaskKind, Labels] | None
    open: tuple[str, ...]
    """why rows could not be judged"""

    @property
    def strays(self) -> tuple[Side, ...]:
        """Rows that are no sample, or not quite the one that they are."""
        sides = [side for pair in self.pairs for side in pair.sides]
        return tuple(side for side in sides if side.deviation is not None or side.found.sample is None)

    @property
    def wrong_masks(self) -> tuple[Aligned, ...]:
        return tuple(one for one in self.aligned if one.wrong)


def judge(material: Material) -> Verdict:
    if material.capture is None or not material.capture.steps:
        return inconclusive(NAME, material.why_not())
    dataset = material.dataset
    if dataset is None:
        return inconclusive(NAME, material.no_dataset)
    batches = read_rows(material.capture, pad_token_id=dataset.tokenizer.pad_token_id)
    if not batches.rows:
        return inconclusive(NAME, "no micro-batch holds input_ids of (rows, positions); nothing can be compared")
    pairs, odd = match_pairs(batches.rows, dataset)
    if not pairs:
        return inconclusive(NAME, f"no rows could be laid into pairs: {odd[0]}")
    sides = [side for pair in pairs for side in pair.sides]
    aligned, reasons = align([side.found for side in sides], dataset)
    unread = [f"{labels.found} ({labels.place})" for labels in batches.labels if labels.found is not None]
    findings = Findings(
        pairs=pairs,
        aligned=aligned,
        kinds=count_kinds(aligned, dataset),
        wrong_targets=name_wrong_targets(batches.labels),
        open=(*odd, *unread, *reasons),
    )
    measurements = _measure(findings)
    if not all(measurement.holds for measurement in measurements):
        return _fail(findings, dataset, measurements)
    if not any(one.judged for one in aligned):
        why = [*unread, *reasons] or ["the answers imply no token that is to be scored or not"]
        return inconclusive(NAME, f"the rows are pairs, but no mask could be judged: {why[0]}")
    return _pass(findings, dataset, measurements)


def _measure(findings: Findings) -> tuple[Measurement, ...]:
    kinds = Counter(pair.kind for pair in findings.pairs)
    wrong = [(one, place) for one in findings.aligned for place in one.wrong]
    counts = {
        "pairs that are swapped": kinds[Kind.SWAPPED],
        "pairs that are torn apart or doubled": kinds[Kind.TORN] + kinds[Kind.SAME],
        "pairs whose prompts differ": kinds[Kind.PROMPT],
        "pairs without a token of an answer": kinds[Kind.EATEN],
        "rows that are not their sample": len(findings.strays),
        "tokens that must count and do not": sum(not one.trained[place] for one, place in wrong),
        "tokens that count and must not": sum(one.trained[place] for one, place in wrong),
        "padding that counts": findings.kinds[MaskKind.PADDING_TRAINED],
        "micro-batches whose targets are not the next tokens": int(findings.wrong_targets is not None),
    }
    return tuple(
        Measurement(name, float(count), 0.0, count == 0, limit=1.0, unit="count") for name, count in counts.items()
    )


def _pass(findings: Findings, dataset: Dataset, measurements: tuple[Measurement, ...]) -> Verdict:
    sides = [side for pair in findings.pairs for side in pair.sides]
    cut = sum(
        side.found.sample is not None and len(side.found.ids) < len(dataset.documents[side.found.sample])
        for side in sides
    )
    scored = sum(sum(one.trained) for one in findings.aligned)
    judged = sum(one.judged for one in findings.aligned)
    sentence = (
        f"{len(findings.pairs)} pairs are the data's, in order, with one prompt each, and score their answers and "
        f"nothing else: {scored} tokens count, {judged} were compared; {cut} of {len(sides)} rows cut at "
        f"seq_len={dataset.seq_len}"
    )
    if findings.open:
        sentence += f"; {len(findings.open)} could not be judged ({findings.open[0]})"
    evidence = {
        "pairs": len(findings.pairs),
        "scored": scored,
        "judged": judged,
        "cut": cut,
        "not_judged": list(findings.open[:SHOWN_ROWS]),
    }
    return Verdict(NAME, Status.PASS, sentence, measurements, shared_code=SHARED, evidence=evidence)


def _fail(findings: Findings, dataset: Dataset, measurements: tuple[Measurement, ...]) -> Verdict:
    """What is wrong with pairs comes first, then with rows, then with masks: each explains those after it."""
    broken = [pair for pair in findings.pairs if pair.kind is not None]
    if broken:
        sentence, pattern, cause = _say_pairs(findings, broken, dataset)
    elif findings.strays:
        sentence, pattern, cause = _say_rows(findings, dataset)
    else:
        sentence, pattern, cause = _say_masks(findings, dataset), Pattern.LOSS_MASK, "labels"
    named = Counter(
        [
            *(pair.kind.value for pair in broken if pair.kind is not None),
            *(side.deviation.kind.value for side in findings.strays if side.deviation is not None),
        ]
    )
    shown = [_show_pair(pair, dataset) for pair in broken[:SHOWN_ROWS]]
    shown += [_show_row(side, dataset) for side in findings.strays][: SHOWN_ROWS - len(shown)]
    shown += [show_mask(one, dataset, place=one.found.row.place) for one in findings.wrong_masks][
        : SHOWN_ROWS - len(shown)
    ]
    evidence: dict[str, object] = {
        "kinds": {**named, **{kind.value: count for kind, count in findings.kinds.items()}},
        "rows": shown,
        "not_judged": list(findings.open[:SHOWN_ROWS]),
    }
    return Verdict(
        NAME,
        Status.FAIL,
        sentence,
        measurements,
        shared_code=SHARED,
        pattern=pattern,
        first_wrong=cause,
        evidence=evidence,
    )


def _say_pairs(findings: Findings, broken: Sequence[Pair], dataset: Dataset) -> tuple[str, Pattern, str]:
    kind = Counter(pair.kind for pair in broken).most_common(1)[0][0]
    assert kind is not None
    first = next(pair for pair in broken if pair.kind is kind)
    others = sorted({pair.kind.value for pair in broken if pair.kind not in (None, kind)})
    also = f"; also: {', '.join(others)}" if others else ""
    count = sum(pair.kind is kind for pair in broken)
    return (
        f"{kind.value} in {count} of {len(findings.pairs)} pairs, first at {_say_pair(first, dataset)}{also}",
        Pattern.SEQUENCE_LENGTH if kind in (Kind.PROMPT, Kind.EATEN) else Pattern.LOSS_MASK,
        "truncation" if kind in (Kind.PROMPT, Kind.EATEN) else "pairs",
    )


def _say_pair(pair: Pair, dataset: Dataset) -> str:
    if pair.kind is Kind.PROMPT:
        side = next((side for side in pair.sides if side.deviation is not None), pair.rejected)
        detail = "" if side.deviation is None else f": {side.deviation.kind.value}, {side.deviation.detail}"
        token = 0 if side.deviation is None else side.deviation.token
        return f"{side.place}, token {token}, of {_name(side, dataset)}{detail}"
    if pair.kind is Kind.EATEN:
        side = find_eaten(pair, dataset) or pair.chosen
        return (
            f"{side.place}, token {len(side.found.ids)}, where {_name(side, dataset)} ends before its answer begins; "
            f"raise seq_len={dataset.seq_len} or leave such pairs out"
        )
    sides = " and ".join(f"{side.place} holds {_name(side, dataset)}" for side in pair.sides)
    return f"token {_first_difference(pair)}: {sides}"


def _first_difference(pair: Pair) -> int:
    """The first token in which the two rows part: what stands before it is their prompt."""
    ids = pair.chosen.found.ids, pair.rejected.found.ids
    places = enumerate(zip(*ids, strict=False))
    return next((place for place, (one, other) in places if one != other), min(map(len, ids)))


def _name(side: Side, dataset: Dataset) -> str:
    return "no sample of the data" if side.found.sample is None else dataset.place(side.found.sample)


def _say_rows(findings: Findings, dataset: Dataset) -> tuple[str, Pattern, str]:
    strays = findings.strays
    known = [side for side in strays if side.deviation is not None]
    count = f"{len(strays)} of {2 * len(findings.pairs)} rows are not what the data imply"
    if not known:
        return f"{count}: first at {strays[0].place}, which is no sample of the data", Pattern.LOSS_MASK, "data"
    kinds = Counter(side.deviation.kind for side in known if side.deviation is not None)
    kind = kinds.most_common(1)[0][0]
    first = next(side for side in known if side.deviation is not None and side.deviation.kind is kind)
    assert first.deviation is not None
    names = sorted({side.name for side in strays})
    alone = f", all of them {names[0]}" if len(names) == 1 else ""
    sentence = (
        f"{count}{alone}: {kind.value} in {kinds[kind]}, first at {first.place}, token {first.deviation.token}, of "
        f"{_name(first, dataset)}: {first.deviation.detail}"
    )
    return sentence, first.deviation.pattern, first.deviation.cause


def _say_masks(findings: Findings, dataset: Dataset) -> str:
    if findings.wrong_targets is not None:
        kind, labels = findings.wrong_targets
        return f"{kind.value} at {labels.place}; position t must be scored on token t + 1"
    ordered = sorted(findings.kinds, key=list(MaskKind).index)
    named = ", ".join(f"{kind.value} ({findings.kinds[kind]} tokens)" for kind in ordered)
    wrong = findings.wrong_masks
    if not wrong:
        return f"{named}: labels outside the attention mask must be −100"
    first, place = wrong[0], wrong[0].wrong[0]
    side = next(side for pair in findings.pairs for side in pair.sides if side.found is first.found)
    text = dataset.tokenizer.tokenizer.decode([first.found.ids[place]], skip_special_tokens=False)
    state = "is scored and must not be" if first.trained[place] else "must be scored and is not"
    return (
        f"{named}, in {len(wrong)} of {len(findings.aligned)} rows; first at {side.place}, token {place} of "
        f"{_name(side, dataset)}: {text!r} {state}"
    )


def _show_pair(pair: Pair, dataset: Dataset) -> Mapping[str, object]:
    """A pair for a page: the row in the place of the chosen, and what should stand there."""
    side = next((side for side in pair.sides if side.deviation is not None), pair.chosen)
    if side.deviation is not None:
        return _show_row(side, dataset)
    first = _first_difference(pair)
    start, seen = cut_window(first, side.found.ids, dataset)
    # Of a pair that is swapped what should stand there is the row beside it; of any other it is its sample's partner.
    right = pair.rejected.found.ids if pair.kind is Kind.SWAPPED else side.found.ids
    return {
        "place": side.place,
        "sample": _name(side, dataset),
        "kind": None if pair.kind is None else pair.kind.value,
        "detail": f"beside it, in the place of the rejected, stands {_name(pair.rejected, dataset)}",
        "first_difference": first,
        "from": start,
        "seen": seen,
        "expected": cut_window(first, right, dataset)[1],
    }


def _show_row(side: Side, dataset: Dataset) -> Mapping[str, object]:
    first = 0 if side.deviation is None else side.deviation.token
    start, seen = cut_window(first, side.found.ids, dataset)
    expected = () if side.found.sample is None else dataset.cut(side.found.sample)
    return {
        "place": side.place,
        "sample": _name(side, dataset),
        "kind": None if side.deviation is None else side.deviation.kind.value,
        "detail": "it is no sample of the data" if side.deviation is None else side.deviation.detail,
        "first_difference": first,
        "from": start,
        "seen": seen,
        "expected": cut_window(first, expected, dataset)[1],
    }


CHECK = Check(
    NAME,
    "rows are pairs of one prompt, an answer and a worse one, and score the answers",
    __doc__ or "",
    judge,
    applies=needs_preferences,
)
