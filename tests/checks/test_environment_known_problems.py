"""environment.known_problems: which known problems a run reaches, and the verdict on its package list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checks.catalogue import Problem, load_problems
from checks.catalogue.families import concerns
from checks.catalogue.reach import RULES, Reached, reaches
from checks.lifecycle import environment_known_problems
from checks.material import Material, RunOutcome
from checks.registry import CHECKS
from checks.roles import Role
from checks.spec import RunSpec
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor

BY_SLUG = {problem.slug: problem for problem in load_problems()}
SPEC = RunSpec("trl", Path("model"), Path("data"))
QWEN3 = "Qwen3ForCausalLM"

USED = {"hf-ga-mean-of-means", "hf-num-items-overcount", "hf-tie-overwrites-distinct-head"}
"""of all problems of the four packages, those that a plain run of TRL on Qwen3 comes near"""

OPEN = {"hf-ga-times-steps-non-kwarg-models", "trl-sft-eos-masked-as-pad", "trl-sft-no-eos-appended"}

RULE_OF = {
    "swift-aux-loss-not-scaled-with-items": "framework",
    "peft-rslora-scale-reset": "framework",
    "hf-resume-order-wrong-after-first-epoch": "stage",
    "peft-lora-bias-merge-scale": "framework",
    "trl-vllm-server-raw-logprobs": "stage",
    "trl-dpo-ga-scale": "trainer",
    "trl-grpo-temperature": "trainer",
    "trl-orpo-ga-scale": "trainer",
    "trl-ipo-sum-instead-of-mean": "trainer",
    "trl-gkd-liger-hard-loss": "trainer",
    "trl-entropy-threshold-counts-padding": "trainer",
    "trl-scale-rewards-swapped": "trainer",
    "hf-tokens-not-averaged-across-devices": "processes",
    "hf-dataparallel-loss-divided-by-ngpu": "processes",
    "hf-causal-loss-device-mismatch": "processes",
    "hf-deepspeed-double-rescale": "processes",
    "accelerate-shuffle-not-synced": "processes",
    "accelerate-fsdp-untied-after-init": "processes",
    "hf-collator-masks-eos-as-pad": "collator",
    "hf-flattening-positions-start": "collator",
    "trl-padding-free-boundary-label": "packing",
    "trl-bfd-packing-splits-long-samples": "packing",
    "hf-label-smoothing-ga": "feature",
    "accelerate-sync-each-batch-steps": "feature",
    "trl-completion-collator-first-turn": "feature",
    "hf-flash-sliding-window-off-by-one": "feature",
    "trl-completion-mask-includes-header": "assistant_only",
    "hf-rope-bf16-positions": "precision",
    "hf-sdpa-ignores-sliding-window": "models",
    "hf-encdec-double-shift": "models",
    "hf-gemma3-ga-loss": "models",
    "hf-t5-encoder-embedding-from-lm-head": "models",
    "hf-v5-reinit-after-load": "models",
    "hf-mixtral-balance-loss-constant": "models",
}
"""what a plain run of TRL on Qwen3 does not come near, by the rule that says so"""


def of_packages(*frameworks: str) -> list[Problem]:
    return [problem for problem in load_problems() if problem.framework in frameworks]


def test_a_plain_run_comes_near_these_problems_of_its_packages_and_no_others() -> None:
    answers: dict[Reached, set[str]] = {reached: set() for reached in Reached}
    for problem in of_packages("transformers", "trl", "accelerate", "peft"):
        answers[reaches(problem, SPEC, model_class=QWEN3).reached].add(problem.slug)
    assert answers[Reached.USED] == USED
    assert answers[Reached.OPEN] == OPEN
    assert len(answers[Reached.NOT_USED]) == 65 - len(USED) - len(OPEN)


@pytest.mark.parametrize(("slug", "rule"), RULE_OF.items())
def test_the_rule_that_leaves_a_problem_out_is_named(slug: str, rule: str) -> None:
    reach = reaches(BY_SLUG[slug], SPEC, model_class=QWEN3)
    assert (reach.reached, reach.rule) == (Reached.NOT_USED, rule)
    assert reach.why


@pytest.mark.parametrize(
    ("slug", "changes"),
    [
        ("trl-padding-free-boundary-label", {"packing": True}),
        ("trl-bfd-packing-splits-long-samples", {"packing": True, "assistant_only": True}),
        ("hf-rope-bf16-positions", {"precision": "bf16"}),
        ("hf-rope-bf16-positions", {"precision": "bf16_params"}),
        ("hf-sdpa-ignores-sliding-window", {}),
        ("hf-resume-order-wrong-after-first-epoch", {"resume_after": 2}),
        ("accelerate-skip-batches-resets-epoch", {"resume_after": 2}),
        ("peft-embedding-lora-ignores-scale", {"lora": True, "lora_targets": ("embed_tokens",)}),
        ("hf-mixtral-balance-loss-constant", {}),
    ],
)
def test_a_run_with_the_feature_comes_near(slug: str, changes: dict[str, Any]) -> None:
    classes = {"hf-mixtral-balance-loss-constant": "MixtralForCausalLM", "peft-embedding-lora-ignores-scale": "Gemma3"}
    model_class = classes.get(slug, "MistralForCausalLM")
    assert reaches(BY_SLUG[slug], replace(SPEC, **changes), model_class=model_class).reached is Reached.USED


@pytest.mark.parametrize(
    ("slug", "changes", "rule"),
    [
        ("hf-ga-mean-of-means", {"accumulation": 1}, "accumulation"),
        ("hf-sdpa-ignores-sliding-window", {"attention": "eager"}, "attention"),
        ("trl-padding-free-boundary-label", {"framework": "transformers"}, "framework"),
        ("peft-embedding-lora-ignores-scale", {"lora": True}, "lora"),
        ("peft-rslora-scale-reset", {"lora": True}, "feature"),
        ("peft-prefix-head-dim", {"lora": True}, "feature"),
        ("peft-lora-fa-layer-scaling", {"lora": True}, "feature"),
        ("peft-lora-bias-merge-scale", {"lora": True}, "stage"),
        ("trl-colocate-peft-hang", {"lora": True}, "stage"),
    ],
)
def test_a_run_without_the_feature_does_not(slug: str, changes: dict[str, Any], rule: str) -> None:
    reach = reaches(BY_SLUG[slug], replace(SPEC, **changes), model_class="MistralForCausalLM")
    assert (reach.reached, reach.rule) == (Reached.NOT_USED, rule)


def test_several_processes_come_near_what_one_does_not() -> None:
    problem = BY_SLUG["hf-tokens-not-averaged-across-devices"]
    assert reaches(problem, SPEC, model_class=QWEN3, processes=2).reached is Reached.USED
    assert reaches(problem, SPEC, model_class=QWEN3, processes=1).reached is Reached.NOT_USED


def test_what_the_settings_do_not_tell_is_left_open() -> None:
    header = BY_SLUG["trl-completion-mask-includes-header"]
    assert reaches(header, replace(SPEC, assistant_only=True)).reached is Reached.OPEN
    assert reaches(BY_SLUG["hf-mixtral-balance-loss-constant"], SPEC, model_class=None).reached is Reached.OPEN
    assert reaches(BY_SLUG["hf-ga-times-steps-non-kwarg-models"], SPEC, model_class="GPT2LMHeadModel").reached is (
        Reached.USED
    )


def test_an_unknown_framework_under_test_leaves_nothing_out_by_its_packages() -> None:
    other = replace(SPEC, framework="another")
    assert reaches(BY_SLUG["hf-num-items-overcount"], other, model_class=QWEN3).reached is Reached.USED
    assert reaches(BY_SLUG["swift-chord-weight-not-detached"], other, model_class=QWEN3).rule != "framework"


def test_every_rule_leaves_something_out() -> None:
    named = {reaches(problem, SPEC, model_class=QWEN3).rule for problem in load_problems()}
    named |= {
        reaches(problem, replace(SPEC, accumulation=1, attention="eager", lora=True)).rule
        for problem in load_problems()
    }
    named |= {reaches(BY_SLUG["hf-sdpa-ignores-sliding-window"], replace(SPEC, attention="eager")).rule}
    expected = {"framework", "stage", "trainer", "processes", "collator", "packing", "lora", "feature", "accumulation"}
    assert expected | {"precision", "attention", "assistant_only", "rows", "models"} <= named
    megatron = replace(SPEC, framework="megatron_swift")
    assert reaches(BY_SLUG["mcore-reduce-noncontiguous"], megatron, processes=2).rule == "views"
    assert len(RULES) == 16


@pytest.mark.parametrize(
    ("models", "model_class", "answer"),
    [
        (["Mistral", "Gemma 3"], "Gemma3ForCausalLM", True),
        (["Qwen3"], "Qwen3_5ForCausalLM", False),
        (["Qwen3"], "Qwen3MoeForCausalLM", True),
        (["Gemma"], "Gemma3ForCausalLM", False),
        (["Gemma 2", "Qwen2.5 small"], "Qwen2ForCausalLM", True),
        (["Qwen2-VL"], "Qwen2ForCausalLM", False),
        (["OPT"], "OPTForCausalLM", True),
        (["GPT-2", "other models without loss arguments"], "LlamaForCausalLM", None),
        (["GPT-2", "other models without loss arguments"], "GPT2LMHeadModel", True),
        (["MADLAD-400 / T5 without shared weight"], "T5ForConditionalGeneration", True),
        (["MADLAD-400 / T5 without shared weight"], "LlamaForCausalLM", False),
        (["custom model classes"], "LlamaForCausalLM", False),
        (["models without a pad token"], "LlamaForCausalLM", None),
    ],
)
def test_families_are_told_by_the_models_class(models: list[str], model_class: str, answer: bool | None) -> None:
    assert concerns(models, model_class) is answer


def judge(material: Material, edit: Editor, **packages: str) -> Verdict:
    editing = edit(material.capture)
    editing.manifest["environment"]["packages"] = {name.replace("_", "-"): each for name, each in packages.items()}
    outcome = replace(material.run, capture=editing.save())
    return environment_known_problems.judge(replace(material, run=outcome))


def test_the_installed_releases_have_no_silent_problem_that_a_healthy_run_uses(
    healthy: Material, packed: Material
) -> None:
    for material in (healthy, packed):
        verdict = environment_known_problems.judge(material)
        assert verdict.status is Status.PASS, verdict.sentence
        assert verdict.measurements[0].name == "silent known problems that the run uses"
        assert (verdict.measurements[0].value, verdict.measurements[0].threshold) == (0.0, 0.0)
        assert set(verdict.evidence["packages"]) >= {"accelerate", "peft", "transformers", "trl"}
        assert verdict.evidence["compared"] > 50
        for found in verdict.evidence["affecting"]:
            assert found["open_upstream"]
            assert found["run"].startswith("installed, not used by this run: ")


def test_a_silent_problem_that_the_run_uses_fails_with_link_and_remedy(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit, transformers="4.45.2", accelerate="1.15.0", trl="0.12.2")
    assert verdict.status is Status.FAIL
    assert verdict.sentence == (
        "transformers 4.45.2 has hf-ga-mean-of-means and the run uses that part: gradient accumulation averages "
        "per-micro-batch means; fixed in 4.46.0; https://github.com/huggingface/transformers/pull/34191"
    )
    assert (verdict.pattern, verdict.first_wrong) == (Pattern.OBJECTIVE_SCALE, "transformers 4.45.2")
    assert (verdict.measurements[0].value, verdict.measurements[0].holds) == (1.0, False)
    found = {each["slug"]: each for each in verdict.evidence["affecting"]}
    assert found["hf-ga-mean-of-means"]["run"] == "used by this run"
    assert found["hf-ga-mean-of-means"]["affected"] == "<4.46.0"
    assert found["hf-tokens-not-averaged-across-devices"]["run"] == (
        "installed, not used by this run: it is one process on one device"
    )
    assert found["trl-dpo-drops-last-column"]["run"].startswith("installed, not used by this run: its training step")


def test_several_silent_problems_are_all_named(healthy: Material, edit: Editor) -> None:
    known = [replace(BY_SLUG["hf-ga-mean-of-means"], slug=slug) for slug in ("hf-a", "hf-b", "hf-c")]
    editing = edit(healthy.capture)
    editing.manifest["environment"]["packages"] = {"transformers": "4.45.2"}
    material = replace(healthy, run=replace(healthy.run, capture=editing.save()))
    verdict = environment_known_problems.judge_with(material, known)
    assert verdict.measurements[0].value == 3.0
    assert "has hf-a and" in verdict.sentence
    assert verdict.sentence.endswith("; so do 2 more: hf-b, hf-c")
    loud = environment_known_problems.judge_with(material, [replace(each, silent=False) for each in known])
    assert (loud.status, len(loud.evidence["affecting"])) == (Status.PASS, 3)


def test_a_run_that_saves_and_resumes_uses_what_concerns_that(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    editing.manifest["environment"]["packages"] = {"transformers": "5.24.0", "accelerate": "1.14.0"}
    material = replace(healthy, run=replace(healthy.run, capture=editing.save()))
    assert environment_known_problems.judge(material).status is Status.PASS
    resumed = replace(material, others={Role.RESUMED: material.run})
    verdict = environment_known_problems.judge(resumed)
    assert verdict.status is Status.FAIL
    assert (verdict.first_wrong, verdict.pattern) == ("accelerate 1.14.0", Pattern.STATE_TRANSFER)


def test_what_hangs_on_more_than_the_settings_is_inconclusive(packed: Material, edit: Editor) -> None:
    verdict = judge(packed, edit, transformers="5.24.0", trl="0.15.2")
    assert verdict.status is Status.INCONCLUSIVE
    assert "trl-sft-eos-masked-as-pad: whether its model is one of these is not settled" in verdict.sentence
    assert "trl-sft-no-eos-appended: it concerns rows of plain text" in verdict.sentence
    assert verdict.sentence.endswith("; upgrade trl")


@pytest.mark.parametrize(
    ("packages", "sentence"),
    [
        ({}, "the capture names no packages; record it again with a current plumbline-capture"),
        ({"numpy": "2.4.6"}, "none of the 1 installed packages has a problem of the catalogue with known releases"),
        ({"sglang": "0.5.0"}, "none of the 1 installed packages has a problem of the catalogue with known releases"),
    ],
)
def test_where_nothing_can_be_compared_it_is_inconclusive(
    healthy: Material, edit: Editor, packages: dict[str, str], sentence: str
) -> None:
    verdict = judge(healthy, edit, **packages)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith(sentence)


def test_a_run_without_a_capture_is_inconclusive(healthy: Material) -> None:
    nothing = RunOutcome("completed", 0, 1.0, None, None, None)
    verdict = environment_known_problems.judge(replace(healthy, run=nothing))
    assert (verdict.status, verdict.sentence) == (
        Status.INCONCLUSIVE,
        "the run left no capture to judge; see run.completes",
    )


def test_unknown_releases_are_counted_apart_in_a_pass(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit, transformers="5.24.0")
    assert verdict.status is Status.PASS
    unknown = verdict.evidence["unknown"]
    assert "hf-fp16-scaler-not-restored" in unknown
    assert verdict.sentence.startswith(f"transformers 5.24.0: of {22 - len(unknown)} known problems whose affected")
    assert verdict.sentence.endswith(f"; of {len(unknown)} more the releases are not known")


def test_the_check_is_listed() -> None:
    check = CHECKS["environment.known_problems"]
    assert check.level == "environment"
    assert not check.reference
    for word in ("Reference:", "Catches:", "Cannot see:", "Cost:"):
        assert f"\n{word}" in check.description
