"""Each token goes to the experts of the best scores, and the load-balancing loss is added once, as the config asks.

Reference: the float64 model with the experts that the run chose. A choice may differ from that of the float64 scores
only within their noise; the weights of the chosen are the reference's. The load-balancing loss is that of
arXiv:2101.03961, equations 4 to 6, averaged over the micro-batches, times the config's weight: its gradient on the
routers is told apart from the token loss's by least squares on both. Biases of routers are compared with the
checkpoint's at every captured step.
Catches: experts chosen against the scores, weights that are not normalised or not scaled, tokens given too few
experts, a balance loss that is missing, unasked, of another weight, without a gradient, or added once a micro-batch
(`automodel-moe-aux-loss-accumulation-scale`, `automodel-moe-aux-loss-gradient-dropped`,
`automodel-minimax-aux-loss-from-default`, `swift-aux-loss-not-scaled-with-items`), a routing bias that is trained.
Cannot see: the experts' own arithmetic (`step.gradients`), a balance loss over ranks (`parallel.gradients`), a family
whose routers say neither indices nor weights.
Cost: the reference step, and one more in float64 where a balance loss is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from checks.architecture.step_loss import forward_differs
from checks.check import Check, inconclusive, skipped
from checks.material import Material
from checks.models.checkpoint import read_text_setting
from checks.moe.balance import judge_balance
from checks.moe.bias import judge_biases
from checks.moe.finding import Part
from checks.moe.load import judge_load
from checks.moe.routing import judge_routing
from checks.verdict import Status, Verdict

NAME = "step.moe"

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_k")
"""How configs of transformers call the number of experts, and how many of them a token is given."""


def judge(material: Material) -> Verdict:
    capture, config = material.capture, material.asked_config
    experts = _read_count(config, EXPERT_COUNTS)
    if experts is None or experts < 2:
        return skipped(NAME, "the model has no experts")
    if capture is None or not capture.steps or not material.references:
        return inconclusive(NAME, material.why_not())
    reference = material.references[min(material.references)]
    precision, step = material.spec.precision, reference.step
    top_k = _read_count(config, TOP_K)
    agrees = not forward_differs(reference, precision=precision)
    parts = (
        judge_load(capture, step, reference.micro_batches, experts=experts, top_k=top_k),
        judge_routing(reference, precision=precision, forward_agrees=agrees),
        judge_balance(capture, reference, config, precision=precision),
        judge_biases(capture, material.router_biases, precision=precision),
    )
    return _decide(parts, reference.source.shared)


def _decide(parts: Sequence[Part], shared: tuple[str, ...]) -> Verdict:
    measurements = tuple(m for part in parts for m in part.measurements)
    problems = [p for part in parts for p in part.problems]
    questions = [q for part in parts for q in part.open_questions]
    limits = {key: value for part in parts for key, value in part.limits.items()}
    evidence = {key: value for part in parts for key, value in part.evidence.items()} | {"not_judged": questions}
    if problems:
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return Verdict(
            NAME,
            Status.FAIL,
            f"{first.sentence}{more}",
            measurements,
            limits,
            shared,
            pattern=first.pattern,
            first_wrong=first.where,
            evidence=evidence | {"problems": [[p.where, p.sentence] for p in problems]},
        )
    if questions:
        sentence = "; ".join(questions)
        return inconclusive(
            NAME, sentence, measurements=measurements, detection_limits=limits, shared_code=shared, evidence=evidence
        )
    said = "; ".join(sentence for part in parts for sentence in part.said)
    return Verdict(NAME, Status.PASS, said, measurements, limits, shared, evidence=evidence)


def _read_count(config: Mapping[str, object], names: Sequence[str]) -> int | None:
    values = (read_text_setting(config, name) for name in names)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)


CHECK = Check(
    NAME, "tokens go to the right experts, and balance is asked for once", __doc__ or "", judge, reference=True
)
