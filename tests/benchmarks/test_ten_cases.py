from __future__ import annotations

import ast
import contextlib
import fcntl
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.ten_cases import rules
from benchmarks.ten_cases.__main__ import decide_exit_code, main
from benchmarks.ten_cases.cases import CASES, LONGEST, ROWS, SCRIPT, Case, find_cases
from benchmarks.ten_cases.expected import EXPECTED, differs
from benchmarks.ten_cases.judge import JUDGES, Judgement
from benchmarks.ten_cases.rules import RULES
from benchmarks.ten_cases.run import Row
from benchmarks.ten_cases.table import describe_alarms, describe_judgement, list_differences
from benchmarks.ten_cases.tensors import Tensors
from checks.errors import BadRequest
from checks.verdict import Status, Verdict

MODULES = ("model.embed_tokens", "model.layers.0.mlp", "model.layers.1.mlp", "model.norm")
BY_SLUG = {case.slug: case for case in CASES}


def one_output(values: object, *, dtype: torch.dtype = torch.float32) -> Tensors:
    """A step whose only output is `values`, with a loss and a gradient that never change."""
    output = torch.as_tensor(values, dtype=dtype)
    return Tensors({"model.norm": output}, {"model.norm.weight": torch.ones(2)}, torch.tensor(2.0))


def flags(rule: rules.Rule, candidate: object, baseline: object) -> bool:
    """Whether a rule calls the one output wrong; candidates in float64 keep offsets below float32's round-off."""
    alarms = rule(one_output(candidate, dtype=torch.float64), one_output(baseline))
    assert set(alarms) <= {"output of model.norm"}
    return bool(alarms)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_rule_agrees_with_itself_on_equal_steps(rule: rules.Rule) -> None:
    assert rule(one_output([1.0, -2.0, 0.0]), one_output([1.0, -2.0, 0.0])) == ()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_no_rule_lets_nan_pass(rule: rules.Rule) -> None:
    nan = torch.full((2,), math.nan)
    broken = Tensors({"model.norm": nan}, {"model.norm.weight": nan}, torch.tensor(math.nan))
    assert rule(broken, one_output([1.0, 2.0])) != ()


def test_assert_close_allows_one_hundred_thousandth_and_a_share_of_the_value() -> None:
    assert not flags(rules.assert_close, [1.0 + 1.08e-5], [1.0])
    assert flags(rules.assert_close, [1.0 + 1.2e-5], [1.0])
    assert not flags(rules.assert_close, [100.0 + 1.3e-4], [100.0])
    assert flags(rules.assert_close, [100.0 + 1.6e-4], [100.0])


def test_the_depth_bound_tightens_towards_the_head() -> None:
    scale = 1.0 + 4.0 * 1.03**1.5 * 2.0**-23  # between the bounds of layer 1 of 2, C², and of layer 2, C¹
    outputs = {module: torch.ones(8) for module in MODULES}
    candidate = Tensors({m: t.double() * scale for m, t in outputs.items()}, {}, torch.tensor(2.0))
    baseline = Tensors(outputs, {}, torch.tensor(2.0))
    assert rules.depth_bound(candidate, baseline) == ("output of model.layers.1.mlp", "output of model.norm")


def test_the_depth_bound_is_that_of_its_formula() -> None:
    assert rules.relative_bound(0, depth=2, dtype=torch.float32) == pytest.approx(4 * 1.03**3 * 2**-23, rel=1e-12)
    assert rules.relative_bound(3, depth=2, dtype=torch.float32) == 4 * 2**-23
    assert rules.relative_bound(9, depth=2, dtype=torch.float32) == 4 * 2**-23


def test_megatron_as_shipped_allows_eight_percent() -> None:
    assert not flags(rules.megatron, [1.0828, 0.0], [1.0, 0.0])
    assert flags(rules.megatron, [1.0830, 0.0], [1.0, 0.0])


def test_sglang_sees_a_scale_of_five_percent_and_not_of_four() -> None:
    assert not flags(rules.sglang, [1.045, 2.09], [1.0, 2.0])
    assert flags(rules.sglang, [1.047, 2.094], [1.0, 2.0])
    assert flags(rules.sglang, [0.0, 1.0], [1.0, 0.0])


def at_cosine(cosine: float, *, size: float) -> list[float]:
    return [size * cosine, size * math.sqrt(1.0 - cosine**2)]


@pytest.mark.parametrize(
    ("candidate", "baseline", "wrong"),
    [
        pytest.param(at_cosine(0.985, size=1.0), [1.0, 0.0], True, id="cosine 0.985 and a large error"),
        pytest.param(at_cosine(0.985, size=5e-3), [5e-3, 0.0], False, id="cosine 0.985 and an error below 1e-3"),
        pytest.param(at_cosine(0.985, size=6e-3), [6e-3, 0.0], True, id="cosine 0.985 and an error above 1e-3"),
        pytest.param(at_cosine(0.991, size=1.0), [1.0, 0.0], False, id="cosine 0.991"),
        pytest.param(at_cosine(0.89, size=1e-4), [1e-4, 0.0], True, id="cosine 0.89, however small"),
        pytest.param(at_cosine(0.91, size=1e-4), [1e-4, 0.0], False, id="cosine 0.91, small"),
        pytest.param([0.02, 0.04], [0.01, 0.02], False, id="twice the baseline, small: blind to scale"),
        pytest.param([101.1, 50.0], [100.0, 50.0], True, id="an error above 1 alone"),
        pytest.param([100.9, 50.0], [100.0, 50.0], False, id="an error below 1 at cosine 1"),
        pytest.param([3.1], [2.0], True, id="a scalar off by more than 1"),
        pytest.param([2.9], [2.0], False, id="a scalar off by less than 1"),
        pytest.param([0.0, 0.0], [0.0, 0.0], False, id="both zero"),
        pytest.param([1e-4, 0.0], [0.0, 0.0], True, id="zero in the baseline only"),
    ],
)
def test_msprobe_judges_cosine_and_largest_error_together(
    candidate: list[float], baseline: list[float], wrong: bool
) -> None:
    assert flags(rules.msprobe, candidate, baseline) is wrong


def test_torchtitan_sees_the_l1_norm_and_neither_signs_nor_order() -> None:
    assert not flags(rules.torchtitan, [1.0 + 0.9e-8], [1.0])
    assert flags(rules.torchtitan, [1.0 + 1.2e-8], [1.0])
    assert not flags(rules.torchtitan, [-2.0, 1.0], [1.0, 2.0])


def test_padiff_sees_one_last_bit_of_the_mean_and_nothing_of_the_spread() -> None:
    following = [float(torch.nextafter(torch.tensor(x), torch.tensor(9.0))) for x in (1.0, 1.9)]
    assert flags(rules.padiff, [following[0]], [1.0])  # one last bit is 1.2e-7 of 1.0 and 6.3e-8 of 1.9
    assert not flags(rules.padiff, [following[1]], [1.9])
    assert not flags(rules.padiff, [2.0, -2.0], [1.0, -1.0])


@pytest.mark.parametrize(
    ("norm", "reference", "wrong"), [(10.29, 10.0, False), (10.32, 10.0, True), (0.125, 0.1, False), (0.135, 0.1, True)]
)
def test_the_gradient_norm_may_move_by_three_percent(norm: float, reference: float, wrong: bool) -> None:
    def step(total: float) -> Tensors:
        return Tensors({}, {"a": torch.tensor([0.6 * total]), "b": torch.tensor([0.8 * total])}, torch.tensor(2.0))

    assert rules.gradient_norm(step(norm), step(reference)) == (("gradient norm",) if wrong else ())


@pytest.mark.parametrize(("value", "wrong"), [(2.09, False), (2.11, True), (1.91, False), (1.89, True)])
def test_the_loss_may_move_by_five_percent(value: float, wrong: bool) -> None:
    candidate, baseline = (Tensors({}, {}, torch.tensor(x)) for x in (value, 2.0))
    assert rules.loss(candidate, baseline) == (("loss of the step",) if wrong else ())


def test_alarms_come_in_the_order_of_the_step() -> None:
    baseline = Tensors({m: torch.ones(2) for m in MODULES}, {"a": torch.ones(2)}, torch.tensor(2.0))
    candidate = Tensors({m: torch.zeros(2) for m in MODULES}, {"a": torch.zeros(2)}, torch.tensor(0.0))
    assert rules.assert_close(candidate, baseline) == (*(f"output of {m}" for m in MODULES), "loss", "gradient of a")


def test_steps_with_different_tensors_are_not_compared() -> None:
    other = Tensors({"lm_head": torch.ones(3)}, {"model.norm.weight": torch.ones(2)}, torch.tensor(2.0))
    with pytest.raises(
        ValueError, match=r"^output of lm_head of one run stands against output of model\.norm of the other$"
    ):
        rules.sglang(other, one_output([1.0, 1.0, 1.0]))


@pytest.mark.parametrize(
    ("slug", "alarms", "cell"),
    [
        ("bf16", (), "ok"),
        ("bf16", ("gradient of model.norm.weight",), "false alarm"),
        ("weight", (), "miss"),
        ("weight", ("output of model.layers.0.mlp.down_proj",), "hit, exact module"),
        ("weight", ("output of model.layers.0.mlp",), "hit, wrong module"),
        ("weight", ("gradient of model.layers.0.mlp.down_proj.weight",), "hit"),
        ("scale-percent", ("output of model.layers.1.self_attn.o_proj",), "hit, exact module"),
        ("scale-percent", ("output of model.layers.1.mlp",), "hit, wrong module"),
        ("not-divided", ("loss",), "hit, loss only"),
        ("not-divided", ("loss", "gradient of model.norm.weight"), "hit"),
        ("labels-twice", ("loss",), "hit"),
    ],
)
def test_a_cell_says_whether_the_rule_is_right(slug: str, alarms: tuple[str, ...], cell: str) -> None:
    assert describe_alarms(BY_SLUG[slug], alarms) == cell


def test_a_plain_expected_hit_says_nothing_of_the_module() -> None:
    assert not differs("hit, exact module", "hit")
    assert not differs("hit", "hit")
    assert differs("miss", "hit")
    assert differs("hit, exact module", "hit, wrong module")
    assert differs("ok", "false alarm")


def test_every_cell_has_an_expected_value() -> None:
    assert {slug: set(cells) for slug, cells in EXPECTED.items()} == {slug: set(RULES) for slug in BY_SLUG}


def make_judgement(case: Case, statuses: Mapping[str, Status], first: str | None) -> Judgement:
    limits = {"scale of all": 3e-6, "norm": 4e-5, "k_proj": 6e-5, "lm_head by block": 0.5}
    return Judgement(
        case, {n: Verdict(n, statuses.get(n, Status.PASS), "", detection_limits=limits) for n in JUDGES}, first
    )


@pytest.mark.parametrize(
    ("slug", "statuses", "first", "right"),
    [
        ("rerun", {}, None, True),
        ("rerun", {"step.gradients": Status.INCONCLUSIVE}, None, False),
        ("rerun", {"step.loss": Status.FAIL}, None, False),
        ("rerun", {}, "model.norm", False),
        ("weight", {"step.settings": Status.FAIL}, "model.layers.0.mlp.down_proj", True),
        ("weight", {"step.settings": Status.FAIL}, "model.layers.0.mlp", False),
        ("weight", {"step.settings": Status.FAIL}, None, False),
        ("weight", {"step.settings": Status.INCONCLUSIVE}, "model.layers.0.mlp.down_proj", False),
        ("labels-twice", {"step.loss": Status.FAIL}, None, True),
        ("labels-twice", {"step.loss": Status.FAIL}, "model.norm", False),
        ("labels-twice", {}, None, False),
    ],
)
def test_right_means_the_verdict_and_the_module(
    slug: str, statuses: Mapping[str, Status], first: str | None, right: bool
) -> None:
    judgement = make_judgement(BY_SLUG[slug], statuses, first)
    row = Row(BY_SLUG[slug], 0.0, 0.0, {}, judgement)
    assert judgement.right is right
    assert decide_exit_code([row]) == (0 if right else 1)


def test_one_wrong_case_among_right_ones_fails_the_command() -> None:
    rows = [
        Row(BY_SLUG["rerun"], 0.0, 0.0, {}, make_judgement(BY_SLUG["rerun"], statuses, None))
        for statuses in ({}, {"step.loss": Status.FAIL})
    ]
    assert decide_exit_code(rows) == 1
    assert decide_exit_code([]) == 1


def test_a_pass_is_printed_with_the_smallest_fault_that_it_would_have_seen() -> None:
    judgement = make_judgement(BY_SLUG["rerun"], {}, None)
    seen = "3.0e-06 in scale, 6.0e-05 in any k_proj, 5.0e-01 in one row of lm_head"
    assert describe_judgement(judgement) == f"right: pass; would see {seen}"
    unsure = make_judgement(BY_SLUG["rerun"], {"step.gradients": Status.INCONCLUSIVE}, None)
    assert describe_judgement(unsure).startswith("WRONG: inconclusive")


def test_a_failure_is_printed_with_its_checks_and_module() -> None:
    failed = {"step.settings": Status.FAIL, "step.gradients": Status.FAIL}
    judgement = make_judgement(BY_SLUG["weight"], failed, "model.layers.0.mlp.down_proj")
    expected = "right: settings, gradients fail; first wrong module model.layers.0.mlp.down_proj"
    assert describe_judgement(judgement) == expected
    assert describe_judgement(make_judgement(BY_SLUG["weight"], {}, None)) == "WRONG: no check fail"


def test_a_cell_that_differs_is_listed_with_its_alarms() -> None:
    none: tuple[str, ...] = ()
    alarms = dict.fromkeys(RULES, none) | {"SGLang (1e-3)": ("gradient of model.norm.weight",)}
    expected = {name: cell for name, cell in EXPECTED["micro-batches"].items() if cell == "false alarm"}
    row = Row(BY_SLUG["micro-batches"], 0.0, 0.0, alarms, make_judgement(BY_SLUG["micro-batches"], {}, None))
    listed = list(list_differences([row]))
    assert len(listed) == 1 + len(expected)
    assert listed[0] == (
        "healthy: 2 micro-batches, SGLang (1e-3): "
        "false alarm (1 alarms, first gradient of model.norm.weight), expected ok"
    )


def test_an_unknown_case_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="there is no case 'fp8'; use rerun, sdpa"):
        find_cases(("bf16", "fp8"))
    assert main(["--cases", "fp8"]) == 3
    assert [case.slug for case in find_cases(("weight", "rerun"))] == ["rerun", "weight"]
    assert len(find_cases(None)) == 10


def test_the_run_specs_state_the_scripts_batch() -> None:
    assigned = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(SCRIPT.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert len(assigned["LENGTHS"]) == ROWS
    assert max(assigned["LENGTHS"]) == LONGEST
    assert {case.variant for case in CASES} == set(assigned["VARIANTS"])
    spec = BY_SLUG["micro-batches"].make_spec(Path("model"), Path("data"))
    assert (spec.batch, spec.accumulation, spec.precision, spec.attention) == (ROWS // 2, 2, "float32", "eager")
    assert BY_SLUG["bf16"].make_spec(Path("model"), Path("data")).precision == "bf16"
    assert BY_SLUG["sdpa"].make_spec(Path("model"), Path("data")).attention == "sdpa"


@dataclass(frozen=True)
class Benchmark:
    printed: str
    cases: Mapping[str, Any]


@pytest.fixture(scope="module")
def benchmark(shared: Path) -> Benchmark:
    """Three of the ten cases, really run, by the first worker that asks."""
    results, printed = shared / "ten-cases.json", shared / "ten-cases.txt"
    with (shared / "ten-cases.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        if not printed.exists():
            with contextlib.redirect_stdout(io.StringIO()) as output:
                code = main(["--cases", "bf16,scale-percent,labels-twice", "--json", str(results)])
            printed.write_text(f"{output.getvalue()}exit {code}")
    cases = json.loads(results.read_text())["cases"]
    return Benchmark(printed.read_text(), {case["case"]: case for case in cases})


def statuses(case: Mapping[str, Any]) -> dict[str, str]:
    return {name: verdict["status"] for name, verdict in case["plumbline"]["verdicts"].items()}


def cell(case: Mapping[str, Any], rule: str) -> str:
    return str(case["rules"][rule]["cell"])


def test_plumbline_is_right_about_all_three(benchmark: Benchmark) -> None:
    assert {slug: case["plumbline"]["right"] for slug, case in benchmark.cases.items()} == {
        "bf16": True,
        "scale-percent": True,
        "labels-twice": True,
    }
    assert benchmark.printed.endswith("Plumbline: 3 of 3 right\nexit 0")


def test_a_healthy_bf16_step_passes_with_its_limits_and_alarms_the_fixed_tolerances(benchmark: Benchmark) -> None:
    case = benchmark.cases["bf16"]
    assert statuses(case) == dict.fromkeys(JUDGES, "pass")
    assert case["plumbline"]["first_wrong_module"] is None
    limits = case["plumbline"]["verdicts"]["step.gradients"]["detection_limits"]
    assert 0.01 < limits["scale of all"] < 0.05
    assert 0.01 < case["largest_relative_error"] < 0.1
    assert cell(case, "assert_close fp32") == "false alarm"
    assert cell(case, "k·C^depth·ε bound") == "false alarm"
    assert cell(case, "Megatron (8.3 %)") == "ok"
    assert cell(case, "loss 5 %") == "ok"


def test_an_attention_scale_of_one_percent_is_traced_to_its_module(benchmark: Benchmark) -> None:
    case = benchmark.cases["scale-percent"]
    assert statuses(case) == {
        "step.settings": "fail",
        "step.loss": "fail",
        "step.denominator": "pass",
        "step.gradients": "fail",
    }
    assert case["plumbline"]["first_wrong_module"] == "model.layers.1.self_attn"
    assert cell(case, "k·C^depth·ε bound") == "hit, exact module"
    assert cell(case, "Megatron (8.3 %)") == "miss"
    assert cell(case, "loss 5 %") == "miss"
    alarms = case["rules"]["torchtitan (1e-8 of L1)"]["alarms"]
    assert not any("model.layers.0" in name for name in alarms if name.startswith("output"))


def test_labels_shifted_twice_leave_the_forward_right(benchmark: Benchmark) -> None:
    case = benchmark.cases["labels-twice"]
    verdicts = case["plumbline"]["verdicts"]
    assert verdicts["step.loss"]["status"] == "fail"
    assert verdicts["step.loss"]["sentence"].startswith("labels are shifted twice")
    assert case["plumbline"]["first_wrong_module"] is None
    compared = {name for rule in case["rules"].values() for name in rule["alarms"] if name.startswith("output")}
    assert compared == set()
    assert cell(case, "loss 5 %") == "miss"
