"""The labels ask for exactly the tokens that the conversation implies: every answer with its end, and nothing else.

Reference: the turns' contents, found by their places in the rendered text and carried to tokens by the tokenizer's
offsets; neither the template's generation blocks nor the framework's mask is used. With assistant_only=true every
token of an assistant's content (a completion) and the special token that ends the turn must count, and nothing of the
template's headers, of other turns and of prompts. Conventions may differ, and either is right, in: the first token of a
document (nothing predicts it); white space between a turn's end token and the next header, and what the template
writes after the last turn's end; what it writes between the assistant's header and the content (an empty think block);
a token in which two of these parts meet; an end token at which no configuration says that generation stops. With
assistant_only=false every token that is not padding must count.
Catches: wrong turns (`trl-completion-collator-first-turn`, `swift-last-round-ignores-tool-turn`,
`automodel-last-turn-mask-reasoning-hole`, `automodel-nonprefix-template-mask`, `slime-qwen3-thinking-sft-mask`), turn
headers that are trained (`trl-completion-mask-includes-header`, `automodel-answer-mask-includes-turn-header`), end
tokens that are not (`trl-sft-eos-masked-as-pad`, `hf-collator-masks-eos-as-pad`, `automodel-pad-eos-collision`,
`slime-glm-end-of-turn-never-supervised`), masks off by one (`titan-chat-mask-off-by-one`, `verl-sft-mask-off-by-one`,
`automodel-squad-mask-off-by-one`), labels shifted twice (`hf-encdec-double-shift`, `swift-qwen3tts-label-shift`), tool
turns that are trained (`verl-megatron-multi-turn-mask`, `swift-tool-call-merge-drops-loss-flag`), rows with every label
masked (`automodel-vlm-bpe-pattern-labels-all-masked`), padding that is trained (`trl-orpo-pad-in-labels`).
Cannot see: what a loss does with the labels behind the model's door (`step.loss`, `step.denominator`); targets across
the boundary of packed documents (`data.packing`); weights of single messages, which a run spec cannot ask for.
Cost: no run of its own; only samples that reached the model are rendered again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from checks.check import Check, inconclusive
from checks.lifecycle.shown_tokens import SHOWN_ROWS, show_mask
from checks.material import Material
from checks.references.dataset import Dataset
from checks.references.mask import Aligned, Kind, align, count_kinds, name_wrong_targets
from checks.references.matching import match_rows
from checks.references.rows import Labels, read_rows
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "data.mask"

SHARED = ("tokenizers",)


def judge(material: Material) -> Verdict:
    if material.capture is None or not material.capture.steps:
        return inconclusive(NAME, material.why_not())
    dataset = material.dataset
    if dataset is None:
        return inconclusive(NAME, material.no_dataset)
    batches = read_rows(material.capture, pad_token_id=dataset.tokenizer.pad_token_id)
    if not batches.rows:
        return inconclusive(NAME, "no micro-batch holds input_ids of (rows, positions) to lay labels on")
    aligned, reasons = align(match_rows(batches.rows, dataset, packing=material.spec.packs), dataset)
    unread = [f"{labels.found} ({labels.place})" for labels in batches.labels if labels.found is not None]
    wrong_targets = name_wrong_targets(batches.labels)
    if wrong_targets is None and not any(one.judged for one in aligned):
        why = [*unread, *reasons] or ["the conversations imply no token that is to be trained or not"]
        return inconclusive(NAME, f"no label could be judged: {why[0]}")
    if wrong_targets is None and not any(any(one.expected) for one in aligned):
        return inconclusive(NAME, "no captured row holds a token that is to be trained; raise seq_len or give answers")
    return _decide(aligned, wrong_targets, dataset, open_=(*unread, *reasons))


def _decide(
    aligned: Sequence[Aligned], wrong_targets: tuple[Kind, Labels] | None, dataset: Dataset, *, open_: Sequence[str]
) -> Verdict:
    missed = sum(not one.trained[place] for one in aligned for place in one.wrong)
    added = sum(one.trained[place] for one in aligned for place in one.wrong)
    kinds = count_kinds(aligned, dataset)
    padding = kinds[Kind.PADDING_TRAINED]
    counts = {
        "tokens that must count and do not": missed,
        "tokens that count and must not": added,
        "padding that counts": padding,
        "micro-batches whose targets are not the next tokens": int(wrong_targets is not None),
    }
    measurements = tuple(
        Measurement(name, float(count), 0.0, count == 0, limit=1.0, unit="count") for name, count in counts.items()
    )
    if all(measurement.holds for measurement in measurements):
        return _pass(aligned, dataset, measurements, open_)
    wrong = [one for one in aligned if one.wrong]
    evidence: dict[str, object] = {
        "kinds": {kind.value: count for kind, count in kinds.items()},
        "rows": [show_mask(one, dataset, place=one.found.place) for one in wrong[:SHOWN_ROWS]],
        "not_judged": list(open_[:SHOWN_ROWS]),
    }
    return Verdict(
        NAME,
        Status.FAIL,
        _describe(wrong, wrong_targets, kinds, dataset, total=len(aligned)),
        measurements,
        shared_code=SHARED,
        pattern=Pattern.LOSS_MASK,
        first_wrong="labels",
        evidence=evidence,
    )


def _pass(
    aligned: Sequence[Aligned], dataset: Dataset, measurements: tuple[Measurement, ...], open_: Sequence[str]
) -> Verdict:
    judged = sum(one.judged for one in aligned)
    trained = sum(sum(one.trained) for one in aligned)
    asked = "the answers and their ends, and nothing else" if dataset.assistant_only else "every token"
    sentence = f"{len(aligned)} documents train {asked}: {trained} tokens count, {judged} were compared"
    if open_:
        sentence += f"; {len(open_)} could not be judged ({open_[0]})"
    evidence = {"documents": len(aligned), "judged": judged, "trained": trained, "not_judged": list(open_[:SHOWN_ROWS])}
    return Verdict(NAME, Status.PASS, sentence, measurements, shared_code=SHARED, evidence=evidence)


def _describe(
    wrong: Sequence[Aligned],
    wrong_targets: tuple[Kind, Labels] | None,
    kinds: Counter[Kind],
    dataset: Dataset,
    *,
    total: int,
) -> str:
    if wrong_targets is not None:
        kind, labels = wrong_targets
        ahead = "are no shift of the tokens" if labels.ahead is None else f"are {labels.ahead} ahead of the tokens"
        loss = "" if labels.loss is None else f", and the loss pairs each position with the token {labels.loss} ahead"
        return f"{kind.value}: at {labels.place} they {ahead}{loss}; position t must be trained on token t + 1"
    ordered = sorted(kinds, key=list(Kind).index)
    named = ", ".join(f"{kind.value} ({kinds[kind]} tokens)" for kind in ordered)
    if not wrong:
        return f"{named}: labels outside the attention mask must be −100"
    first = wrong[0]
    assert first.found.sample is not None
    place = first.wrong[0]
    text = dataset.tokenizer.tokenizer.decode([first.found.ids[place]], skip_special_tokens=False)
    state = "is trained and must not be" if first.trained[place] else "must be trained and is not"
    return (
        f"{named}, in {len(wrong)} of {total} documents; first at {first.found.place}, token {place} of "
        f"{dataset.place(first.found.sample)}: {text!r} {state}"
    )


CHECK = Check(NAME, "labels ask for the tokens that the conversation implies", __doc__ or "", judge)
