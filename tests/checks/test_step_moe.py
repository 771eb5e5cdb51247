"""What step.moe says of choices, weights, load, the balance loss and routing biases, and one real run with a fault."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.detection.faulty import list_faulty
from benchmarks.detection.running import run_cases
from checks.architecture import step_moe
from checks.captures.blocks import WHOLE
from checks.captures.differences import project
from checks.check import Check
from checks.material import Material
from checks.moe.balance import Shares, divide, judge_balance, solve
from checks.moe.bias import judge_biases
from checks.moe.finding import Part
from checks.moe.load import count_incomplete, count_load, judge_load
from checks.moe.routing import judge_routing
from checks.references.reference import Reference
from checks.references.router_weights import WeightError, judge_weights
from checks.references.routing import ChoiceError
from checks.registry import CHECKS
from checks.verdict import Pattern, Status
from tests.checks.conftest import Editor

ROUTER = "model.layers.0.self_attn.k_proj"  # of the dense run here, a matrix stands for a router's
WEIGHT = f"{ROUTER}.weight"
ASKED: Mapping[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
EPSILON = 2.0**-24


def first(material: Material) -> Reference:
    found = material.first_reference()
    assert found is not None
    return found


def sentences(part: Part) -> list[str]:
    return [problem.sentence for problem in part.problems]


def test_the_check_is_read_before_the_denominator_and_needs_no_further_run() -> None:
    check: Check = CHECKS["step.moe"]
    names = list(CHECKS)
    assert names.index("step.loss") < names.index("step.moe") < names.index("step.denominator")
    assert check.reference
    assert len(check.roles) == 1


def test_a_dense_model_is_skipped_and_unrecorded_routers_leave_it_open(healthy: Material) -> None:
    assert step_moe.judge(healthy).status is Status.SKIPPED
    assert step_moe.judge(healthy).sentence == "the model has no experts"
    assert step_moe.judge(replace(healthy, asked_config={"num_experts": 1})).status is Status.SKIPPED
    nested = replace(healthy, asked_config={"text_config": ASKED})
    verdict = step_moe.judge(nested)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith("no router's choice was recorded")
    without = step_moe.judge(replace(nested, references={}, no_reference={1: "dropout is on"}))
    assert (without.status, without.sentence) == (Status.INCONCLUSIVE, "dropout is on")


def test_load_counts_tokens_of_each_expert_and_those_that_lack_one() -> None:
    chosen = torch.tensor([[0, 1], [1, 3], [2, 2], [-1, 1], [4, 0]])
    assert count_load(chosen, experts=4) == [2, 3, 2, 1]
    assert count_incomplete(chosen, experts=4, top_k=2) == 3
    assert count_incomplete(chosen, experts=5, top_k=2) == 2
    assert count_incomplete(chosen[:2], experts=4, top_k=2) == 0


def test_choices_hold_within_twice_the_multiple_of_their_noise_and_keys_are_no_experts(healthy: Material) -> None:
    def judged(margin: float) -> Part:
        choices = (
            ChoiceError(ROUTER, 335, 3, margin, 1e-6),
            ChoiceError("model.layers.0.self_attn.indexer", 335, 3, 9.0, 1e-6, "keys"),
        )
        return judge_routing(replace(first(healthy), choices=choices), precision="float32", forward_agrees=True)

    assert not judged(1.599e-5).problems
    assert len(judged(1.599e-5).measurements) == 1
    (problem,) = judged(1.601e-5).problems
    assert problem.sentence == (
        f"{ROUTER} chose other experts than its scores say for 3 of 335 tokens, by a margin of up to 1.6e-05 where the "
        "scores' noise is 1e-06"
    )
    assert (problem.pattern, problem.where) == (Pattern.MODEL_DEFINITION, ROUTER)


def test_weights_are_held_against_the_reference_only_where_the_forward_agrees(healthy: Material) -> None:
    def judged(*, agrees: bool = True, **changed: Any) -> Part:
        fields = {"error": 0.0, "floor": 1e-6, "total": None, "worst_total": 0.6, "largest": 1.0}
        weights = (WeightError(ROUTER, 335, **(fields | changed)),)
        reference = replace(first(healthy), router_weights=weights, epsilon=EPSILON)
        return judge_routing(reference, precision="float32", forward_agrees=agrees)

    edge = 8.0 * (1e-6 + EPSILON)
    assert not judged(error=0.999 * edge).problems
    (problem,) = judged(error=1.001 * edge).problems
    assert problem.sentence.startswith(f"{ROUTER} gives the chosen experts other weights than the reference: off by")
    unsure = judged(error=1.0, agrees=False)
    assert not unsure.problems
    assert unsure.open_questions == (
        "the forward differs (step.loss), so that the reference's scores are not those of the run",
    )
    for agrees in (True, False):
        edge = 8.0 * 4.0 * EPSILON * 2.5
        assert not judged(total=2.5, worst_total=2.5 - 0.999 * edge, agrees=agrees).problems
        (problem,) = judged(total=2.5, worst_total=1.25, agrees=agrees).problems
        assert problem.sentence == (
            f"{ROUTER} gives a token's experts weights that add up to 1.25; the config asks for weights that add up to "
            "2.5"
        )


def test_weights_of_every_token_are_summed_and_compared_padding_apart() -> None:
    exact = torch.tensor([[[0.75, 0.25], [0.5, 0.5], [math.nan, math.nan]]], dtype=torch.float64)
    seen = torch.tensor([[[0.75, 0.25], [0.5, 0.375], [9.0, 9.0]]])
    noisy = [{ROUTER: [exact + 0.125]}]
    (found,) = judge_weights({ROUTER: [seen]}, {ROUTER: [exact]}, noisy)
    assert found == WeightError(ROUTER, 2, 0.125, 0.125, 1.0, 0.875, 0.75)
    uneven = exact * torch.tensor([1.0, 0.5, 1.0])[None, :, None]
    (found,) = judge_weights({ROUTER: [seen]}, {ROUTER: [uneven]}, [])
    assert (found.total, found.worst_total, found.floor) == (None, 0.75, 0.0)
    assert judge_weights({ROUTER: [seen[..., :1]]}, {ROUTER: [exact]}, []) == ()


def test_a_gradient_is_divided_into_the_token_loss_s_and_the_term_s() -> None:
    generator = torch.Generator().manual_seed(0)
    token, term, other = torch.randn(3, 40, dtype=torch.float64, generator=generator)
    shares = solve(0.5 * token + 3.0 * term, token, term, floor=0.1)
    assert shares.token == pytest.approx(0.5, abs=1e-12)
    assert shares.term == pytest.approx(3.0, abs=1e-12)
    assert shares.residual < 1e-12
    alone = term - (term @ token) / (token @ token) * token
    assert shares.noise == pytest.approx(1.0 / float(alone.norm()))
    rest = other - torch.linalg.lstsq(torch.stack([token, term], 1), other[:, None]).solution[:, 0] @ torch.stack(
        [token, term]
    )
    assert solve(token + term + rest, token, term, floor=0.1).residual == pytest.approx(float(rest.norm()))
    assert math.isinf(solve(token, token, torch.zeros_like(term), floor=0.1).noise)


def with_term(material: Material, edit: Editor, *, scale: float, value: float = 0.5, sketched: bool = False) -> Part:
    """judge_balance of a run whose first key projection has a term's gradient, `scale` × what it should be."""
    reference, capture = first(material), material.capture
    assert capture is not None
    whole = reference.gradients[WEIGHT]
    assert whole.full is not None
    added = torch.randn(whole.full.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    added *= whole.norm / added.norm() / 10.0
    changed = replace(
        reference,
        gradients={**reference.gradients, WEIGHT: project(WEIGHT, whole.full + added, whole.blocks)},
        auxiliary_gradients={WEIGHT: project(WEIGHT, added, WHOLE)},
        auxiliary=0.5,
    )
    editing = edit(capture).put("gradient", WEIGHT, (whole.full + scale * added).float())
    if sketched:
        editing.keep_sketches()
    config = editing.step()["scalars"][""]["config"]
    config |= {"output_router_logits": True, "router_aux_loss_coef": 0.05}
    for record in editing.step()["micro_batches"]:
        record["backward"] += value / 2
    asked = {**ASKED, "output_router_logits": True, "router_aux_loss_coef": 0.05}
    return judge_balance(editing.save(), changed, asked, precision="float32")


@pytest.mark.parametrize("sketched", [False, True])
def test_the_term_s_gradient_is_once_what_the_config_asks(healthy: Material, edit: Editor, *, sketched: bool) -> None:
    right = with_term(healthy, edit, scale=1.0, sketched=sketched)
    assert not right.problems
    assert not right.open_questions
    assert [m.name for m in right.measurements] == [
        "gradient of the load-balancing loss on the routers",
        "value of the load-balancing loss",
    ]
    assert right.measurements[0].value < right.measurements[0].threshold < 0.01
    for scale, what in (
        (2.0, "is 2 × what the config asks for: it is added in full in each of the 2 micro-batches"),
        (0.5, "is 0.5 × what the config asks for: it is divided by the 2 micro-batches twice"),
        (1.25, "is 1.25 × what the config asks for"),
    ):
        wrong = with_term(healthy, edit, scale=scale, sketched=sketched)
        assert sentences(wrong) == [f"the gradient of the load-balancing loss on the routers {what}"]
        assert wrong.problems[0].pattern is Pattern.OBJECTIVE_SCALE
    none = with_term(healthy, edit, scale=0.0, sketched=sketched)
    assert sentences(none) == ["no gradient of the load-balancing loss reaches the routers"]


def test_the_term_s_value_is_what_is_back_propagated_beyond_the_token_losses(healthy: Material, edit: Editor) -> None:
    wrong = with_term(healthy, edit, scale=1.0, value=0.25)
    (sentence,) = sentences(wrong)
    assert re.fullmatch(r"the load-balancing loss adds 0\.25\d* to the loss, 0\.5 by its definition", sentence)
    floor = wrong.measurements[1].threshold
    assert not with_term(healthy, edit, scale=1.0, value=0.5 + 0.9 * floor).problems


def test_a_router_gradient_that_is_off_otherwise_leaves_the_term_open(healthy: Material, edit: Editor) -> None:
    reference, capture = first(healthy), healthy.capture
    assert capture is not None
    noise = torch.randn(reference.gradients[WEIGHT].full.shape, generator=torch.Generator().manual_seed(2))  # type: ignore[union-attr]
    changed = replace(reference, auxiliary_gradients={WEIGHT: project(WEIGHT, noise * 1e-3, WHOLE)})
    editing = edit(capture).change("gradient", WEIGHT, lambda g: g + g.norm() * noise.flip(0) / noise.norm())
    part = judge_balance(editing.save(), changed, ASKED, precision="float32")
    assert not part.problems
    assert part.open_questions[0].startswith("the routers' gradients differ otherwise too")
    tiny = replace(reference, auxiliary_gradients={WEIGHT: project(WEIGHT, noise * 1e-12, WHOLE)})
    part = judge_balance(capture, tiny, ASKED, precision="float32")
    assert part.open_questions[0].startswith("the load-balancing loss's gradient is lost in the noise of the routers'")
    absent = edit(capture).drop("gradient", WEIGHT).save()
    assert divide(absent, changed) is None
    assert isinstance(divide(capture, changed), Shares)


@pytest.mark.parametrize(
    ("asked", "held", "found"),
    [
        ({}, {}, None),
        ({"output_router_logits": True, "router_aux_loss_coef": 0.01}, {"output_router_logits": True}, "0.5; "),
        ({"output_router_logits": True, "router_aux_loss_coef": 0.5}, {"output_router_logits": True}, None),
        ({"output_router_logits": True}, {"output_router_logits": True}, None),
        ({"router_aux_loss_coef": 0.5}, {"output_router_logits": True}, "0.5; config.json asks for 0"),
        ({"output_router_logits": True, "router_aux_loss_coef": 0.5}, {}, "0; config.json asks for 0.5"),
        ({"router_aux_loss_coef": 0.5}, {}, None),
    ],
)
def test_the_weight_in_force_is_the_one_asked_for(
    healthy: Material, edit: Editor, asked: Mapping[str, Any], held: Mapping[str, Any], found: str | None
) -> None:
    editing = edit(healthy.capture)
    editing.step()["scalars"][""]["config"] |= {"router_aux_loss_coef": 0.5, "output_router_logits": False, **held}
    part = judge_balance(editing.save(), first(healthy), asked, precision="float32")
    if found is None:
        assert not part.problems
        assert part.said == ("no load-balancing loss is asked for",)
    else:
        (sentence,) = sentences(part)
        assert sentence.startswith("a load-balancing loss is added with weight ")
        assert found in sentence
        assert part.problems[0].where == "router_aux_loss_coef"


def test_a_routing_bias_is_the_checkpoint_s_and_stays_so(healthy: Material, edit: Editor) -> None:
    name = f"{ROUTER}.e_score_correction_bias"
    asked = {name: (0.5, -0.25)}

    def judged(*held: list[float] | None, trained: bool = False) -> Part:
        editing = edit(healthy.capture)
        for step, values in zip((1, 3), held, strict=True):
            if values is not None:
                editing.step(step)["scalars"][ROUTER]["e_score_correction_bias"] = values
        if trained:
            editing.group(WEIGHT)["parameters"].append(name)
        return judge_biases(editing.save(), asked, precision="float32")

    right = judged([0.5, -0.25], [0.5, -0.25])
    assert (right.problems, right.said) == ((), ("1 biases of routers are the checkpoint's and stay so",))
    assert sentences(judged([0.5, -0.2], [0.5, -0.2])) == [
        f"{name} is not the checkpoint's: off by up to 0.05 at step 1"
    ]
    assert sentences(judged([0.5, -0.25], [0.501, -0.25])) == [
        f"{name} moved by up to 0.001 until step 3, and the run asks for no rule that moves it"
    ]
    assert judged([0.5, -0.25], [0.5, -0.25], trained=True).problems[0].where == name
    assert not judged(None, None).problems
    assert judged(None, None).open_questions[0].startswith(f"{name} was not recorded")
    assert judge_biases(healthy.capture, {}, precision="float32") == Part()  # type: ignore[arg-type]


def test_a_capture_without_routers_has_no_load(healthy: Material) -> None:
    assert healthy.capture is not None
    part = judge_load(healthy.capture, 1, first(healthy).micro_batches, experts=4, top_k=2)
    assert part.measurements == ()
    assert part.open_questions


def test_a_balance_loss_added_in_every_micro_batch_of_a_real_run_is_named(tmp_path: Path) -> None:
    (case,) = [case for case in list_faulty() if case.fault == "balance-loss-each-micro-batch"]
    (result,) = run_cases([case], directory=tmp_path, at_once=1, keep=False)
    assert result.broken is None
    assert result.took_effect
    (moe,) = [check for check in result.checks if check.check == "step.moe"]
    assert (moe.status, moe.pattern, moe.first_wrong) == ("fail", "objective-scale", "load-balancing loss")
    assert moe.sentence == (
        "the gradient of the load-balancing loss on the routers is 2 × what the config asks for: it is added in full "
        "in each of the 2 micro-batches"
    )
    (accumulation,) = [check for check in result.checks if check.check == "step.accumulation"]
    assert accumulation.status == "inconclusive"
