"""The rows that reach the model are the data set's samples, rendered and tokenised as the checkpoint says.

Reference: each sample rendered with jinja2 in the environment that chat templates are written for
(https://huggingface.co/docs/transformers/chat_templating_writing), tokenised from tokenizer.json and cut to its first
seq_len tokens; text, and prompt with completion, end in the end-of-sequence token. Neither the framework's tokenizer
class nor its template code is used. A row is found among the samples by its content, so that a fault does not hide it.
Catches: a first token that is doubled, added or missing (`automodel-special-tokens-forced`), an end token that is
missing (`trl-sft-no-eos-appended`) or added (`trl-dpo-double-eos-chat`), another end token
(`lf-llama3-pretrain-wrong-end-token`), rows cut on the wrong side or at another length
(`trl-dpo-keep-end-empties-samples`, `axolotl-truncate-strategy-ineffective`, `slime-length-filter-in-characters`),
documents split in the middle (`trl-bfd-packing-splits-long-samples`), answers that truncation takes away, special
tokens split into ordinary ones, a template that is ignored or another one, turns that are lost or torn apart
(`automodel-vlm-system-turns-dropped`, `slime-consecutive-tool-turns-split`), a trailing generation prompt.
Cannot see: a template or tokenizer that is wrong in the checkpoint itself; arguments of the template that the run spec
does not name; rows of steps that were not captured (`data.coverage` counts those).
Cost: no run of its own; the samples are rendered once a validation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checks.check import Check, inconclusive
from checks.lifecycle.shown_tokens import SHOWN_ROWS, cut_window
from checks.material import Material
from checks.references.conversation import ANSWERING, NoPieces, Part
from checks.references.dataset import Dataset
from checks.references.deviation import Deviation, Kind, explain
from checks.references.matching import Found, match_rows
from checks.references.rows import read_rows
from checks.verdict import Measurement, Status, Verdict

NAME = "data.template"

SHARED = ("tokenizers",)


@dataclass(frozen=True)
class Wrong:
    """One document that is not its sample."""

    found: Found
    deviation: Deviation


def judge(material: Material) -> Verdict:
    if material.capture is None or not material.capture.steps:
        return inconclusive(NAME, material.why_not())
    dataset = material.dataset
    if dataset is None:
        return inconclusive(NAME, material.no_dataset)
    batches = read_rows(material.capture, pad_token_id=dataset.tokenizer.pad_token_id)
    if not batches.rows:
        return inconclusive(NAME, "no micro-batch holds input_ids of (rows, positions); nothing can be compared")
    found = match_rows(batches.rows, dataset, packing=material.spec.packs)
    wrong = [Wrong(one, deviation) for one in found if (deviation := _explain(one, dataset)) is not None]
    eaten = [one for one in found if one.exact and one.sample is not None and not _answers(one, dataset)]
    other = "documents that are not their sample"
    measurements = [Measurement(other, float(len(wrong)), 0.0, not wrong, limit=1.0, unit="count")]
    if dataset.assistant_only:
        without = "documents without a token of their answer"
        measurements.append(Measurement(without, float(len(eaten)), 0.0, not eaten, limit=1.0, unit="count"))
    if all(measurement.holds for measurement in measurements):
        return _pass(found, eaten, dataset, tuple(measurements), batches.missing)
    return _fail(found, wrong, eaten, dataset, tuple(measurements))


def _explain(one: Found, dataset: Dataset) -> Deviation | None:
    if one.sample is not None:
        return None if one.exact else explain(one.ids, one.sample, dataset)
    nearest = "no sample has anything in common with it"
    if one.nearest is not None:
        nearest = f"the nearest is {dataset.place(one.nearest)}, with {one.share:.0%} of the tokens in common"
    return Deviation(Kind.UNKNOWN, 0, nearest)


def _answers(one: Found, dataset: Dataset) -> bool:
    """Whether a token of an answer is left; a document that is whole lost none."""
    assert one.sample is not None
    if len(one.ids) == len(dataset.documents[one.sample]):
        return True
    try:
        pieces = dataset.mark(one.sample).pieces[1 : len(one.ids)]
    except NoPieces:
        return True  # data.mask says that it cannot be told
    return any(piece.part is Part.CONTENT and piece.role in ANSWERING for piece in pieces)


def _pass(
    found: Sequence[Found],
    eaten: Sequence[Found],
    dataset: Dataset,
    measurements: tuple[Measurement, ...],
    missing: Sequence[str],
) -> Verdict:
    tokens = sum(len(one.ids) for one in found)
    cut = sum(len(one.ids) < len(dataset.documents[one.sample]) for one in found if one.sample is not None)
    sentence = (
        f"{len(found)} documents ({tokens} tokens) equal their samples' independent rendering, token by token; "
        f"{cut} of them cut at seq_len={dataset.seq_len}"
    )
    if eaten:
        sentence += f", {len(eaten)} before their answer begins, so that they train on the prompt alone"
    if missing:
        sentence += f"; {len(missing)} micro-batches without input_ids were not compared"
    evidence = {"documents": len(found), "tokens": tokens, "cut": cut, "without_answer": len(eaten)}
    return Verdict(NAME, Status.PASS, sentence, measurements, shared_code=SHARED, evidence=evidence)


def _fail(
    found: Sequence[Found],
    wrong: Sequence[Wrong],
    eaten: Sequence[Found],
    dataset: Dataset,
    measurements: tuple[Measurement, ...],
) -> Verdict:
    kinds = Counter(one.deviation.kind for one in wrong)
    evidence: dict[str, object] = {"kinds": {kind.value: count for kind, count in kinds.items()}}
    evidence["rows"] = [_show(one, dataset) for one in wrong[:SHOWN_ROWS]]
    if not wrong:
        first = eaten[0]
        assert first.sample is not None
        sentence = (
            f"truncation eats the answer: {len(eaten)} of {len(found)} documents end before it begins, first "
            f"{first.place} ({dataset.place(first.sample)}, {len(dataset.documents[first.sample])} tokens); raise "
            f"seq_len={dataset.seq_len} or leave such samples out"
        )
        evidence["without_answer"] = [dataset.place(one.sample) for one in eaten if one.sample is not None]
        deviation = Deviation(Kind.CUT_SHORT, len(first.ids), sentence)
    else:
        kind = kinds.most_common(1)[0][0]
        chosen = next(one for one in wrong if one.deviation.kind is kind)
        deviation = chosen.deviation
        sample = "" if chosen.found.sample is None else f" ({dataset.place(chosen.found.sample)})"
        others = "" if len(kinds) == 1 else f"; also: {', '.join(k.value for k in kinds if k is not kind)}"
        sentence = (
            f"{len(wrong)} of {len(found)} documents are not what the data imply: {kind.value} in {kinds[kind]}, first "
            f"at {chosen.found.place}{sample}: {deviation.detail}{others}"
        )
    return Verdict(
        NAME,
        Status.FAIL,
        sentence,
        measurements,
        shared_code=SHARED,
        pattern=deviation.pattern,
        first_wrong=deviation.cause,
        evidence=evidence,
    )


def _show(one: Wrong, dataset: Dataset) -> Mapping[str, object]:
    """One wrong document for a page: its tokens and the sample's, as text, around the first difference."""
    sample = one.found.sample if one.found.sample is not None else one.found.nearest
    start, seen = cut_window(one.deviation.token, one.found.ids, dataset)
    expected = () if sample is None else dataset.cut(sample)
    return {
        "place": one.found.place,
        "sample": None if sample is None else dataset.place(sample),
        "kind": one.deviation.kind.value,
        "detail": one.deviation.detail,
        "first_difference": one.deviation.token,
        "from": start,
        "seen": seen,
        "expected": cut_window(one.deviation.token, expected, dataset)[1],
    }


CHECK = Check(NAME, "rows are the samples, rendered and tokenised as the checkpoint says", __doc__ or "", judge)
