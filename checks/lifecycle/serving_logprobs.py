"""The exported model gives each token the log-probability that the trainer's model gives it.

Reference: the trainer's own model after the last step, asked about batches of our choice; the same batches are asked
of the directory that the framework exports, loaded by plain transformers in a process of its own, with the run's
dtype. Adapters are merged into their base by PEFT, so that merged is held against applied. What may differ is the
noise of the reference's forms in the run's precision, of the same rows one step before. Where an OpenAI-compatible
endpoint is configured (`PLUMBLINE_SERVING_URL`), it is asked for the same rows, by their token ids.
Catches: weights that are exported rounded (`miles-expert-bias-exported-in-bf16`), transposed or from an older step
(`verl-weight-sync-tied-to-cache-flag`), a tied head that is stale (`automodel-gemma4-moe-orphan-tie`), settings that
the exported config has otherwise, adapters that merge with another scale (`peft-rslora-scale-reset`); an endpoint that
holds older weights, puts a token before the row, renders a conversation otherwise, or whose log-probabilities change
with the temperature.
Cannot see: what is wrong in trainer and export alike (`step.loss`); how a server samples; rows above 256 tokens; tokens
behind an expert choice that the run's precision does not decide.
Cost: one start of plain transformers, beside the run that asks the prepared model; a request a row where there is an
endpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from checks.captures.capture import Capture, TensorRecord
from checks.check import Check, inconclusive
from checks.material import Material
from checks.plot import to_evidence
from checks.probes.answers import Answer, draw_moved, relative_limit
from checks.roles import Role
from checks.serving.endpoint import EndpointResult, judge_endpoint
from checks.tolerance import MULTIPLES, USEFUL_TOKEN_LIMIT
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "serving.logprobs"

EXPORTED = 0
"""the step that an export's tensors bear"""


@dataclass(frozen=True)
class _Row:
    """One row of a probe, (S − 1,) each: how far the log-probabilities are apart, signed, and which are judged."""

    probe: str
    row: int
    apart: torch.Tensor
    judged: torch.Tensor
    threshold: float

    @property
    def largest(self) -> float:
        moved = self.apart.abs().nan_to_num(nan=torch.inf)[self.judged]
        return float(moved.max()) if moved.numel() else 0.0

    @property
    def first_wrong(self) -> int | None:
        wrong = self.judged & ~(self.apart.abs() <= self.threshold)
        return int(wrong.nonzero()[0, 0]) if bool(wrong.any()) else None


def judge(material: Material) -> Verdict:
    exported = _judge_export(material)
    return exported if material.served is None else _add_endpoint(exported, judge_endpoint(material, material.served))


def _add_endpoint(exported: Verdict, endpoint: EndpointResult) -> Verdict:
    """Of two failures the export's is told first: an endpoint that serves it has it too."""
    decided = exported.status if exported.status is Status.FAIL else endpoint.status
    if exported.status is Status.FAIL:
        sentence = f"{exported.sentence}; {endpoint.sentence}"
    elif endpoint.status is Status.PASS and exported.status is not Status.PASS:
        sentence = f"{endpoint.sentence}; the exported directory was not compared ({exported.sentence})"
    else:
        sentence = f"{endpoint.sentence}; {exported.sentence}"
    failed = decided is Status.FAIL
    return replace(
        exported,
        status=decided,
        sentence=sentence,
        measurements=(*exported.measurements, *([endpoint.measurement] if endpoint.measurement else [])),
        pattern=Pattern.STATE_TRANSFER if failed else None,
        first_wrong=(exported.first_wrong or endpoint.first_wrong) if failed else None,
        evidence={**exported.evidence, "endpoint": endpoint.evidence},
    )


def _judge_export(material: Material) -> Verdict:
    probed = material.capture_of(Role.PROBED)
    if probed is None or not probed.steps:
        return inconclusive(NAME, material.no_probes or "the run that exports its model left no capture")
    trainer, exported = _read(probed, max(probed.steps), "probe_after"), _read(probed, EXPORTED, "export")
    if not trainer or not exported:
        notes = [note.why for note in probed.missing if note.what == "export"]
        missing = "the trainer's model was not asked after its last step" if not trainer else "no model was exported"
        return inconclusive(NAME, notes[0] if notes else f"{missing}; {material.spec.framework} may not export one")
    if not material.probes:
        return inconclusive(NAME, material.no_probes or "there is no noise floor of the answers")
    asked = [name for name in trainer if name in exported and name in material.probes]
    # A short row's own noise is by luck less than that of others.
    floor = max((float(material.probes[name].floor.max()) for name in asked), default=0.0)
    threshold = MULTIPLES[material.spec.precision] * floor
    rows = [
        row
        for name in asked
        for row in _compare(material.probes[name], trainer[name], exported[name], threshold=threshold)
    ]
    tokens = sum(int(row.judged.sum()) for row in rows)
    if not tokens:
        return inconclusive(NAME, "no token that both models answered is decided in this precision; use float32")
    described = (probed.manifest.get("exports") or [{}])[0]
    return _decide(rows, tokens, [material.probes[name] for name in asked], floor, described)


def _read(capture: Capture, step: int, kind: str) -> dict[str, torch.Tensor]:
    records: dict[str, TensorRecord] = dict(capture.tensors(step, kind, field="log_probs"))
    read = {name: record.read("full") for name, record in records.items()}
    return {name: tensor for name, tensor in read.items() if tensor is not None}


def _compare(answer: Answer, trainer: torch.Tensor, exported: torch.Tensor, *, threshold: float) -> list[_Row]:
    """Row by row; a tensor of another shape is wrong throughout."""
    shape = answer.exact.shape
    apart = exported - trainer if exported.shape == trainer.shape == shape else torch.full(shape, torch.nan)
    return [
        _Row(answer.name, index, apart[index], ~answer.exact[index].isnan(), threshold) for index in range(shape[0])
    ]


def _decide(rows: list[_Row], tokens: int, answers: list[Answer], floor: float, described: dict[str, Any]) -> Verdict:
    worst = max(rows, key=lambda row: row.largest)
    limit = worst.threshold + floor
    measurement = Measurement(
        "exported against trained",
        worst.largest,
        worst.threshold,
        worst.first_wrong is None,
        floor,
        limit,
        unit="nats",
    )
    ratios = torch.cat([row.apart[row.judged] for row in rows]).exp()
    mean, largest = float(ratios.mean()), float(torch.maximum(ratios, 1.0 / ratios).max())
    evidence = {
        "importance_ratio": {"mean": _json(mean), "largest": _json(largest), "tokens": tokens},
        "export": {
            "directory": str(described.get("directory", "")).rpartition("/")[2],
            "class": described.get("class"),
            "parameter_dtypes": described.get("parameter_dtypes"),
            "merged_adapters": described.get("merged"),
        },
        "plots": to_evidence([draw_moved(f"Exported against trained: {worst.probe}", _moved(worst), worst.threshold)]),
    }
    limits = {"token": relative_limit(limit, answers)}
    if limits["token"] > USEFUL_TOKEN_LIMIT:
        sentence = f"a log-probability that is {limits['token']:.0%} off would not be seen in this precision"
        return inconclusive(NAME, f"{sentence}; use float32", measurements=(measurement,), evidence=evidence)
    wrong = next((row for row in rows if row.first_wrong is not None), None)
    if wrong is None:
        how = "with its adapters merged " if described.get("merged") else ""
        sentence = (
            f"the exported model {how}gives {tokens} tokens the trainer's log-probabilities, within "
            f"{worst.largest:.2g} nats; the importance ratio is 1 within {largest - 1.0:.1g}"
        )
        return Verdict(NAME, Status.PASS, sentence, (measurement,), limits, evidence=evidence)
    count = sum(int((row.judged & ~(row.apart.abs() <= row.threshold)).sum()) for row in rows)
    sentence = (
        f"the exported model departs from the trainer's first at position {wrong.first_wrong} of {wrong.probe!r}, by "
        f"up to {worst.largest:.3g} nats (allowed {worst.threshold:.1g}), in {count} of {tokens} tokens; importance "
        f"ratios have the mean {mean:.4g} and reach {largest:.4g}"
    )
    return Verdict(
        NAME,
        Status.FAIL,
        sentence,
        (measurement,),
        limits,
        pattern=Pattern.STATE_TRANSFER,
        first_wrong=f"exported weight behind position {wrong.first_wrong}",
        evidence=evidence,
    )


def _moved(row: _Row) -> torch.Tensor:
    return torch.where(row.judged, row.apart.abs(), torch.nan)


def _json(value: float) -> float | str:
    return value if value == value and abs(value) != float("inf") else str(value)


CHECK = Check(
    NAME, "the exported model gives the trainer's log-probabilities", __doc__ or "", judge, roles=(Role.PROBED,)
)
