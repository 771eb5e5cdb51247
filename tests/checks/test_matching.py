"""Suggestions for a finding: in the right order, without what was rejected, with reasons that are true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from checks.catalogue.problem import AffectedRange, Problem, ProblemStatus, Recurrence, load_problems
from checks.matching.described import Decided, Described, describe_finding, list_candidates, list_used
from checks.matching.match import Basis, Matcher, suggest
from checks.matching.query import weigh_terms
from checks.matching.signature import Signature
from checks.matching.subjects import SUBJECTS, catching_checks, describe_check, join_subjects, subject_of
from checks.matching.vocabulary import STOPWORDS, SYNONYMS, list_terms, stem
from checks.matching.weights import DEFAULT
from checks.matching.words import WordIndex
from checks.registry import CHECKS
from checks.spec import RunSpec
from checks.verdict import Pattern

INSTALLED = {"trl": "1.16.0", "transformers": "5.24.0"}


def problem(slug: str = "trl-schedule", **fields: Any) -> Problem:
    """A problem of TRL's learning-rate schedule; `fields` differ."""
    return replace(
        Problem(
            slug=slug,
            title="Warm-up of the schedule is skipped",
            framework="trl",
            component="optimizer",
            models=(),
            pattern=Pattern.OBJECTIVE_SCALE,
            stage="optimizer",
            silent=True,
            symptom="The learning rate begins at its peak.",
            root_cause="The scheduler was built before the steps were known.",
            fix=None,
            status=ProblemStatus.FIXED,
            first_seen="2025-01",
            affected=None,
            fixed_in=None,
            url="https://example.org/1",
            related_urls=(),
            caught_by=("optimizer",),
            cpu_reproducible="yes",
            shows_in_release=None,
            confidence="high",
            affected_spec=(),
        ),
        **fields,
    )


def affecting(specifier: str) -> tuple[AffectedRange, ...]:
    return (AffectedRange("trl", SpecifierSet(specifier), {}, "wheels read"),)


def finding(**fields: Any) -> Described:
    """A failing `step.schedule` of a TRL run; `fields` differ."""
    sentence = "the learning rate of step 1 is 0.001, the schedule with its warm-up asks for 0"
    document = {
        "check": "step.schedule",
        "sentence": sentence,
        "pattern": "objective-scale",
        "first_wrong": "learning rate at step 1",
    }
    return replace(describe_finding(document, framework="trl"), **fields)


def slugs(found: Described, *problems: Problem, **options: Any) -> list[str]:
    return [each.slug for each in suggest(found, list_candidates(problems), **options)]


OTHER = problem("trl-mask", title="Answers are masked", component="data/collator", stage="data", symptom="Loss is low.")
ELSEWHERE = problem("ds-schedule", framework="deepspeed")


def test_a_decided_finding_of_the_same_signature_comes_first_whatever_the_words_say() -> None:
    decided = [Decided(finding().signature.key, "trl-mask", "F-12"), Decided("1:another", "ds-schedule", "F-13")]
    first, second, *_ = suggest(finding(), list_candidates([problem(), OTHER, ELSEWHERE]), decided=decided)
    assert (first.slug, first.basis) == ("trl-mask", Basis.SIGNATURE)
    assert first.reasons[0] == "the same signature as F-12, decided to be it"
    assert (second.slug, second.basis) == ("trl-schedule", Basis.SOFTWARE)
    assert not any("signature" in reason for reason in second.reasons)


def test_of_two_problems_with_the_signature_the_one_decided_more_often_is_ahead() -> None:
    key = finding().signature.key
    decided = [Decided(key, "ds-schedule", f"F-{number}") for number in range(1, 6)] + [Decided(key, "trl-mask", "F-9")]
    first, second, *_ = suggest(finding(), list_candidates([problem(), OTHER, ELSEWHERE]), decided=decided)
    assert first.reasons[0] == "the same signature as F-1, F-2, F-3 and 2 more, decided to be it"
    assert (first.slug, second.slug) == ("ds-schedule", "trl-mask")


def test_a_rejected_problem_is_left_out_even_with_the_signature() -> None:
    decided = [Decided(finding().signature.key, "trl-schedule", "F-12")]
    assert slugs(finding(), problem(), OTHER, decided=decided, rejected={"trl-schedule", "not-there"}) == ["trl-mask"]
    assert slugs(finding(), problem(), rejected={"trl-schedule"}) == []


def test_an_affected_release_is_ahead_of_an_unknown_one_and_that_of_a_mended_one() -> None:
    problems = [
        problem("mended", affected_spec=affecting("<1.10")),
        problem("unknown"),
        problem("affected", affected_spec=affecting(">=1.10")),
    ]
    found = suggest(finding(packages=INSTALLED), list_candidates(problems))
    assert [each.slug for each in found] == ["affected", "unknown", "mended"]
    assert found[0].reasons[0] == "an affected release is installed: trl 1.16.0 is in >=1.10 (wheels read)"
    assert found[2].reasons[0] == "no affected release is installed (trl 1.16.0 is not in <1.10): it would be back"
    assert not any("release" in reason for reason in found[1].reasons)


def test_a_like_fault_of_another_framework_is_behind_one_of_the_framework_itself() -> None:
    groups = [Recurrence("Learning-rate schedule", ("ds-schedule",), ("deepspeed", "trl"))]
    found = suggest(finding(), list_candidates([ELSEWHERE, problem()], groups))
    assert [(each.slug, each.basis) for each in found] == [
        ("trl-schedule", Basis.SOFTWARE),
        ("ds-schedule", Basis.KIND),
    ]
    assert found[0].reasons[0] == "it sits in trl, which the run uses"
    assert found[1].reasons[:2] == (
        "it is known of deepspeed, not of trl or transformers or accelerate: the same kind of fault",
        "that kind of fault is known of trl too: Learning-rate schedule",
    )


def test_a_group_that_names_the_framework_is_worth_more_than_none() -> None:
    groups = [Recurrence("Rates", ("b-known-here",), ("deepspeed", "trl"))]
    candidates = list_candidates(
        [replace(ELSEWHERE, slug="a-elsewhere"), replace(ELSEWHERE, slug="b-known-here")], groups
    )
    assert [each.slug for each in suggest(finding(), candidates)] == ["b-known-here", "a-elsewhere"]


def test_without_a_framework_nothing_is_said_of_one() -> None:
    found = suggest(finding(framework=""), list_candidates([problem(), ELSEWHERE]))
    assert {each.basis for each in found} == {Basis.KIND}
    assert not any("known of" in reason or "sits in" in reason for each in found for reason in each.reasons)


def test_what_the_check_judges_and_its_pattern_count_and_are_said() -> None:
    same = {"title": "Something", "symptom": "Nothing to see.", "root_cause": "Unknown."}
    near = problem("z-near", **same)
    far = problem("a-far", **same, component="attention", stage="forward", pattern=Pattern.PRECISION)
    found = suggest(finding(), list_candidates([far, near]))
    assert [each.slug for each in found] == ["z-near", "a-far"]
    assert "component optimizer, which step.schedule judges" in found[0].reasons
    assert "pattern objective-scale, as the verdict says" in found[0].reasons
    assert not any("pattern" in reason or "judges" in reason for reason in found[1].reasons)


def test_what_else_failed_counts_too_but_less() -> None:
    same = {"title": "Something", "symptom": "Nothing to see.", "root_cause": "Unknown.", "pattern": Pattern.PRECISION}
    masked = problem("b-masked", **same, component="tokenizer/chat-template", stage="tokenization")
    attention = problem("a-attention", **same, component="attention", stage="forward")
    alone = finding()
    both = describe_finding(
        {"check": "step.schedule", "sentence": alone.sentence},
        others=[{"check": "step.schedule", "sentence": "itself"}, {"check": "data.mask", "sentence": "masked"}],
    )
    assert [each.check for each in both.also] == ["data.mask"]
    scores = {each.slug: each.score for each in suggest(both, list_candidates([masked, attention]))}
    due = DEFAULT.company * (DEFAULT.stage + DEFAULT.component)
    assert scores["b-masked"] - scores["a-attention"] == pytest.approx(due, abs=0.5)


def test_shared_words_are_those_of_the_problem_and_rank_it() -> None:
    found = suggest(finding(), list_candidates([OTHER, problem()]))
    assert found[0].slug == "trl-schedule"
    said = next(reason for reason in found[0].reasons if reason.startswith("shared words: "))
    assert set(said.removeprefix("shared words: ").split(", ")) == {"warm up", "schedule", "learning rate"}


def test_a_model_that_is_named_is_ahead_and_another_behind() -> None:
    named = [problem(f"{models[0]}-one", models=models) for models in (("Llama",), ("Qwen3",))]
    found = suggest(finding(model_class="Qwen3ForCausalLM"), list_candidates([*named, problem("unnamed")]))
    assert [each.slug for each in found] == ["Qwen3-one", "unnamed", "Llama-one"]
    assert "it concerns Qwen3, and the model is Qwen3ForCausalLM" in found[0].reasons


def test_a_verdict_that_says_nothing_is_matched_by_its_check_alone() -> None:
    found = suggest(Described(Signature("step.schedule"), sentence=""), list_candidates([OTHER, problem()]))
    assert [each.slug for each in found] == ["trl-schedule", "trl-mask"]
    unknown = suggest(Described(Signature("no.such"), sentence=""), list_candidates([problem()]))
    assert [(each.score, each.reasons) for each in unknown] == [(0.0, ())]


def test_without_problems_there_is_no_suggestion() -> None:
    assert suggest(finding(), ()) == ()


def test_five_are_suggested_and_more_when_asked() -> None:
    problems = [problem(f"p-{number}") for number in range(9)]
    assert slugs(finding(), *problems) == [f"p-{number}" for number in range(5)]
    assert len(slugs(finding(), *problems, most=7)) == 7


def test_every_reason_that_a_check_names_a_problem_is_in_its_description() -> None:
    matcher = Matcher(list_candidates(load_problems()))
    for check in CHECKS:
        for each in matcher.suggest(Described(Signature(check), sentence="")):
            named = f"{check} names it among what it catches" in each.reasons
            assert named == (f"`{each.slug}`" in CHECKS[check].description), (check, each.slug)


def test_the_reasons_hold_of_the_shipped_problems() -> None:
    known = {each.slug: each for each in load_problems()}
    found = Matcher(list_candidates(load_problems())).suggest(finding(packages=INSTALLED), most=50)
    assert len(found) == 50
    for each in found:
        ours = known[each.slug].framework in ("trl", "transformers", "accelerate")
        assert (each.basis is Basis.SOFTWARE) == ours
        assert any(reason.startswith("it sits in") for reason in each.reasons) == ours
        pattern = known[each.slug].pattern is Pattern.OBJECTIVE_SCALE
        assert ("pattern objective-scale, as the verdict says" in each.reasons) == pattern
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


def test_every_check_has_a_subject_in_the_catalogue_s_words() -> None:
    assert set(SUBJECTS) == {name for name in CHECKS if name != "environment.known_problems"}
    stages = {each.stage for each in load_problems()}
    components = {each.component for each in load_problems()}
    for check, subject in SUBJECTS.items():
        assert subject.stages <= stages, check
        assert subject.components <= components, check
    assert (
        join_subjects(["step.update", "data.mask"]).stages
        == SUBJECTS["step.update"].stages | SUBJECTS["data.mask"].stages
    )
    assert not join_subjects([]).stages | subject_of("no.such").components


def test_a_check_is_described_without_the_slugs_that_it_names() -> None:
    slugs_of = [slug for slug, checks in catching_checks().items() if "data.mask" in checks]
    assert slugs_of
    assert not any(slug in describe_check("data.mask") for slug in slugs_of)
    assert describe_check("data.mask").startswith(CHECKS["data.mask"].claim)
    assert describe_check("no.such") == ""


def test_the_field_s_words_are_one_term_and_stand_once() -> None:
    phrases = [phrase.strip() for each in SYNONYMS.values() for phrase in each.split(",")]
    assert len(phrases) == len(set(phrases))
    assert not set(SYNONYMS) & STOPWORDS
    assert list_terms("log-probabilities, logprobs") == ("logprob", "logprob")
    assert list_terms("the end token, <|im_end|>, EOS") == ("endtoken",) * 3
    assert list_terms("micro_batch") == list_terms("micro-batch") == ("microbatch",)
    assert list_terms("") == ()
    assert [stem(word) for word in ("resets", "gathered", "bias", "ties")] == ["reset", "gather", "bias", "ties"]


def test_words_of_a_title_count_more_and_rare_ones_most() -> None:
    candidates = list_candidates(
        [
            problem("in-title", title="A quokka", symptom="", root_cause=""),
            problem("in-cause", title="A horse", symptom="", root_cause="quokka"),
            problem("without", title="A horse", symptom="", root_cause=""),
        ]
    )
    index = WordIndex(candidates)
    title, cause, nothing = index.score({"quokka": 1.0})
    assert title > cause > nothing == 0.0
    assert index.score({"hors": 1.0})[0] == 0.0
    assert index.explain({"quokka": 2.0, "absent": 1.0}, 1) == {"quokka": pytest.approx(2.0 * cause)}
    assert index.score({"optimizer": 1.0})[2] < index.score({"quokka": 1.0})[1]


def test_a_query_weighs_its_sources() -> None:
    found = finding(sentence="quokka", signature=Signature("no.such", statement="wombat"), used=("numbat",))
    assert weigh_terms(found) == {"wombat": DEFAULT.statement, "quokka": DEFAULT.sentence, "numbat": DEFAULT.used}


def test_a_run_s_features_are_named(tmp_path: Any) -> None:
    spec = RunSpec("trl", tmp_path, tmp_path, objective="dpo", lora=True, dp_size=2, sharding="fsdp2", resume_after=2)
    assert list_used(spec) == ("dpo", "lora", "data parallel", "fsdp2", "resume")
    assert list_used(RunSpec("trl", tmp_path, tmp_path)) == list_used({}) == ()
    assert finding(used=("lora",)).software == ("trl", "transformers", "accelerate", "peft")
    assert finding(framework="megatron-core").software == finding(framework="megatron_core").software
    assert finding(framework="new_one").software == ("new-one",)
