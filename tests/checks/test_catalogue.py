"""The catalogue that ships, its strict reader, and the exposure of installed releases."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from checks.catalogue import (
    PACKAGES,
    Exposure,
    Problem,
    ProblemStatus,
    Recurrence,
    Standing,
    assess,
    assess_all,
    load_problems,
    load_recurrences,
    read_problems,
    read_recurrences,
)
from checks.errors import BadRequest
from checks.verdict import Pattern

BY_SLUG = {problem.slug: problem for problem in load_problems()}

LINE: dict[str, Any] = {
    "slug": "hf-example",
    "title": "An example",
    "framework": "transformers",
    "component": "loss",
    "models": [],
    "pattern": "objective-scale",
    "stage": "loss",
    "silent": True,
    "symptom": "The loss is wrong.",
    "root_cause": "A mean of means.",
    "fix": None,
    "status": "fixed",
    "first_seen": "2024-10",
    "affected": None,
    "fixed_in": None,
    "url": "https://example.org/1",
    "related_urls": [],
    "caught_by": ["step"],
    "cpu_reproducible": "yes",
    "shows_in_release": None,
    "confidence": "high",
    "affected_spec": [{"package": "transformers", "specifier": ">=4.46,<4.46.2", "source": "code read"}],
}
RANGE: dict[str, Any] = LINE["affected_spec"][0]


def problem(tmp_path: Path, **changes: Any) -> Problem:
    file = tmp_path / "problems.jsonl"
    file.write_text(json.dumps(LINE | changes) + "\n")
    (found,) = read_problems(file)
    return found


def stand(found: Problem, packages: dict[str, str]) -> Standing:
    standing = assess(found, packages)
    assert standing is not None
    return standing


def test_the_catalogue_holds_the_415_problems_of_which_325_are_silent() -> None:
    assert len(load_problems()) == len(BY_SLUG) == 415
    assert sum(each.silent for each in load_problems()) == 325
    assert {each.pattern for each in load_problems()} == set(Pattern)
    assert len(load_recurrences()) == 30
    assert load_problems() is load_problems()
    assert list(BY_SLUG) == sorted(BY_SLUG)


def test_a_line_becomes_a_frozen_problem() -> None:
    found = BY_SLUG["trl-dpo-ga-scale"]
    assert (found.framework, found.pattern, found.status) == ("trl", Pattern.OBJECTIVE_SCALE, ProblemStatus.FIXED)
    assert found.url == "https://github.com/huggingface/trl/pull/2615"
    assert found.fixed_in == "PR #2615 (2025-01-23), first tag v0.14.0"
    (only,) = found.affected_spec
    assert only.package == "trl"
    assert {name: str(each) for name, each in only.needs.items()} == {"transformers": "!=4.48.0,<4.53.0,>=4.46.0"}
    with pytest.raises(AttributeError):
        found.slug = "another"  # type: ignore[misc]


def test_every_range_is_of_a_released_package_and_leaves_the_mended_release_out() -> None:
    ranges = [(each, found) for each in load_problems() for found in each.affected_spec]
    assert len(ranges) > 170
    for each, found in ranges:
        where = f"{each.slug}: {found.specifier}"
        assert found.package == canonicalize_name(found.package), where
        assert found.package == PACKAGES[each.framework] or found.package in ("mcore-bridge", "transformers"), where
        assert found.source.strip(), where
        ends = [bound.version for bound in found.specifier if bound.operator == "<"]
        assert len(ends) <= 1, where
        for end in ends:
            assert not found.specifier.contains(end, prereleases=True), where
        if each.status is ProblemStatus.FIXED:
            assert len(ends) == 1, f"{where}: a mended problem ends before the release that mends it"
        begins = [Version(bound.version) for bound in found.specifier if bound.operator == ">="]
        assert all(begin < Version(end) for begin in begins for end in ends), where


def test_the_first_tag_that_a_problem_states_is_never_affected() -> None:
    checked = 0
    for each in load_problems():
        tag = re.search(r"first tag (?:core_)?v([\d.]*\d)", each.fixed_in or "")
        if tag is None or not each.affected_spec:
            continue
        checked += 1
        assert not any(found.specifier.contains(tag[1]) for found in each.affected_spec), each.slug
    assert checked > 130


def test_releases_that_were_run_are_in_the_range() -> None:
    """`shows_in_release` begins with a release that was run or read, and shows the problem."""
    checked = 0
    for each in load_problems():
        shown = re.match(r"([a-z-]+)==([\d.]*\d)", each.shows_in_release or "")
        if shown is None or not each.affected_spec or "not run" in (each.shows_in_release or ""):
            continue
        checked += 1
        assert any(found.package == shown[1] and found.specifier.contains(shown[2]) for found in each.affected_spec), (
            each.slug
        )
    assert checked > 25


@pytest.mark.parametrize(
    ("slug", "package", "affected", "not_affected"),
    [
        ("hf-ga-mean-of-means", "transformers", ["4.30.0", "4.45.2"], ["4.46.0", "5.24.0"]),
        ("hf-ga-times-steps-non-kwarg-models", "transformers", ["4.46.1", "4.46.2", "4.47.1"], ["4.45.2", "4.48.0"]),
        ("hf-num-items-overcount", "transformers", ["4.46.2", "5.9.0"], ["4.46.1", "5.10.1", "5.24.0"]),
        ("trl-sft-eos-masked-as-pad", "trl", ["0.15.2", "0.16.0"], ["0.16.1", "1.16.0"]),
        ("trl-scale-rewards-swapped", "trl", ["0.22.0", "0.22.1"], ["0.21.0", "0.22.2"]),
        ("peft-rslora-scale-reset", "peft", ["0.8.0", "0.17.1"], ["0.7.1", "0.18.0"]),
        ("peft-negative-adapter-weight", "peft", ["0.18.0", "0.18.1"], ["0.17.1", "0.19.0"]),
        ("accelerate-skip-batches-resets-epoch", "accelerate", ["1.14.0"], ["1.15.0"]),
        ("mcore-reduce-noncontiguous", "megatron-core", ["0.16.1"], ["0.19.0"]),
        ("swift-teacher-kl-padding-overflow", "ms-swift", ["4.4.1"], ["4.3.0", "4.4.2"]),
    ],
)
def test_known_problems_affect_these_releases_and_not_those(
    slug: str, package: str, affected: list[str], not_affected: list[str]
) -> None:
    for version in affected:
        assert stand(BY_SLUG[slug], {package: version}).exposure is Exposure.AFFECTED, version
    for version in not_affected:
        assert stand(BY_SLUG[slug], {package: version}).exposure is Exposure.NOT_AFFECTED, version


def test_an_affected_release_comes_with_its_range_and_the_release_that_mends_it() -> None:
    standing = stand(BY_SLUG["hf-ga-mean-of-means"], {"transformers": "4.45.2", "trl": "0.15.2"})
    assert (standing.package, standing.version, standing.fixed_in) == ("transformers", "4.45.2", "4.46.0")
    assert standing.range is BY_SLUG["hf-ga-mean-of-means"].affected_spec[0]
    assert standing.why == "transformers 4.45.2 is in <4.46.0"
    mended = stand(BY_SLUG["hf-ga-mean-of-means"], {"transformers": "4.46.0"})
    assert (mended.exposure, mended.range, mended.fixed_in) == (Exposure.NOT_AFFECTED, None, None)


def test_the_mended_release_is_the_first_after_the_installed_one(tmp_path: Path) -> None:
    twice = problem(tmp_path, affected_spec=[RANGE, RANGE | {"specifier": ">=4.47,<4.48.1"}])
    assert stand(twice, {"transformers": "4.46.1"}).fixed_in == "4.46.2"
    assert stand(twice, {"transformers": "4.47.0"}).fixed_in == "4.48.1"
    assert stand(twice, {"transformers": "4.46.2"}).exposure is Exposure.NOT_AFFECTED
    joined = problem(tmp_path, affected_spec=[RANGE, RANGE | {"specifier": ">=4.46.2,<4.48.1"}])
    assert stand(joined, {"transformers": "4.46.1"}).fixed_in == "4.48.1"


def test_a_problem_without_a_range_is_unknown_never_not_affected(tmp_path: Path) -> None:
    unknown = problem(tmp_path, affected_spec=[])
    assert stand(unknown, {"transformers": "5.0.0"}).exposure is Exposure.UNKNOWN
    assert assess(unknown, {"trl": "1.0.0"}) is None
    assert assess(problem(tmp_path, affected_spec=[], framework="slime"), {"slime": "0.1"}) is None


def test_a_package_that_is_not_installed_has_no_standing(tmp_path: Path) -> None:
    found = problem(tmp_path)
    assert assess(found, {"trl": "1.0.0"}) is None
    assert assess_all([found, found], {"trl": "1.0.0"}) == ()
    assert len(assess_all([found, found], {"transformers": "4.46.0"})) == 2


def test_an_open_problem_is_unknown_after_the_last_release_that_is_known_to_have_it(tmp_path: Path) -> None:
    still_open = problem(tmp_path, status="open", affected_spec=[RANGE | {"specifier": ">=4.46,<=5.24.0"}])
    expected = {
        "5.24.0": Exposure.AFFECTED,
        "5.24.0+cpu": Exposure.AFFECTED,
        "5.25.0": Exposure.UNKNOWN,
        "4.45.0": Exposure.NOT_AFFECTED,
    }
    assert {version: stand(still_open, {"transformers": version}).exposure for version in expected} == expected
    assert stand(still_open, {"transformers": "5.24.0"}).fixed_in is None
    reported = problem(tmp_path, status="reported", affected_spec=[RANGE | {"specifier": "==4.54.1"}])
    expected = {"4.54.1": Exposure.AFFECTED, "4.54.0": Exposure.UNKNOWN, "4.55.0": Exposure.UNKNOWN}
    assert {version: stand(reported, {"transformers": version}).exposure for version in expected} == expected


@pytest.mark.parametrize("version", ["4.46.0.dev0", "4.46.2.dev0", "4.46.2rc1", "not-a-version", "git"])
def test_a_version_that_cannot_be_placed_is_unknown(tmp_path: Path, version: str) -> None:
    assert stand(problem(tmp_path), {"transformers": version}).exposure is Exposure.UNKNOWN


@pytest.mark.parametrize(
    ("version", "exposure"),
    [("4.46.1.dev0", "affected"), ("4.46.1+local.1", "affected"), ("4.47.0.dev0", "not affected")],
)
def test_a_version_that_is_no_final_release_is_placed_where_it_can_be(
    tmp_path: Path, version: str, exposure: str
) -> None:
    assert stand(problem(tmp_path), {"transformers": version}).exposure.value == exposure


def test_a_second_package_decides_where_the_problem_needs_one(tmp_path: Path) -> None:
    needs = problem(tmp_path, affected_spec=[RANGE | {"needs": {"peft": ">=0.18.1"}}])
    expected = {
        "0.18.1": Exposure.AFFECTED,
        "0.18.0": Exposure.NOT_AFFECTED,
        "0.18.1.dev0": Exposure.UNKNOWN,
        "none": Exposure.UNKNOWN,
    }
    assert {peft: stand(needs, {"transformers": "4.46.1", "peft": peft}).exposure for peft in expected} == expected
    alone = stand(needs, {"transformers": "4.46.1"})
    assert (alone.exposure, alone.fixed_in) == (Exposure.UNKNOWN, None)
    assert alone.why == "it takes peft>=0.18.1 too, and no version of peft is given"
    assert stand(needs, {"transformers": "4.46.2"}).exposure is Exposure.NOT_AFFECTED


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"status": "fixd"},
            "status: 'fixd' is none of its values; write fixed, open, reported, closed-not-fixed or up",
        ),
        ({"pattern": "loss"}, "pattern: 'loss' is none of its values; write loss-mask,"),
        ({"silent": "yes"}, "silent: is a text; write true or false."),
        ({"silent": 1}, "silent: is a number; write true or false."),
        ({"title": "  "}, "title: is a text; write a text that is not empty."),
        ({"title": None}, "title: is null; write a text that is not empty."),
        ({"fix": ""}, "fix: is an empty text; write a text that is not empty."),
        ({"slug": "HF_x"}, "slug: 'HF_x' is no slug; write small letters, digits and single hyphens."),
        (
            {"url": "http://example.org"},
            "url: 'http://example.org' is no address; write one that begins with https://.",
        ),
        ({"related_urls": ["javascript:x"]}, "related_urls: 'javascript:x' is no address"),
        ({"first_seen": "2024-13"}, "first_seen: '2024-13' is no date; write YYYY-MM or YYYY-MM-DD."),
        ({"models": "Gemma"}, "models: is a text, or not of texts; write a list of texts."),
        ({"caught_by": [1]}, "caught_by: is a list, or not of texts; write a list of texts."),
        ({"cpu_reproducible": "perhaps"}, "cpu_reproducible: 'perhaps' is none of its values; write yes, maybe or no."),
        ({"confidence": "low"}, "confidence: 'low' is none of its values; write high or medium."),
        ({"extra": 1}, "extra: there is no such field; leave it out."),
        ({"affected_spec": {}}, "affected_spec: is an object, or not of objects; write a list of objects."),
        ({"affected_spec": [RANGE | {"package": "Ms_Swift"}]}, "'Ms_Swift' is not normalised; write 'ms-swift'."),
        ({"affected_spec": [RANGE | {"specifier": "4.46"}]}, "'4.46' is no specifier of PEP 440; write one like"),
        ({"affected_spec": [RANGE | {"specifier": ","}]}, "affected_spec, specifier: holds no bound"),
        ({"affected_spec": [RANGE | {"source": ""}]}, "affected_spec, source: is an empty text"),
        ({"affected_spec": [RANGE | {"need": {}}]}, "affected_spec, need: there is no such field; leave it out."),
        ({"affected_spec": [RANGE | {"needs": {"trl": 1}}]}, "affected_spec, needs: is an object, or not of texts"),
        ({"affected_spec": [RANGE | {"needs": {"trl": "new"}}]}, "needs: 'new' is no specifier of PEP 440"),
        ({"affected_spec": [RANGE | {"needs": {"transformers": "<5"}}]}, "needs: names 'transformers' itself"),
    ],
)
def test_a_bad_line_is_one_sentence_with_line_and_field(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text(json.dumps(LINE) + "\n" + json.dumps(LINE | {"slug": "hf-other"} | changes) + "\n")
    with pytest.raises(BadRequest) as caught:
        read_problems(file)
    assert str(caught.value).startswith("problems.jsonl, line 2, ")
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", sorted(LINE))
def test_every_field_must_be_there(tmp_path: Path, name: str) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text(json.dumps({key: value for key, value in LINE.items() if key != name}))
    with pytest.raises(BadRequest, match=rf"^problems\.jsonl, line 1, {name}: is missing; add it\.$"):
        read_problems(file)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "problems.jsonl: holds no line; install Plumbline again."),
        (b"[]\n", "problems.jsonl, line 1: is a list; write one JSON object a line."),
        (b'{"slug"\n', "problems.jsonl, line 1: is not JSON"),
        (b"\xff\xfe", "problems.jsonl: cannot be read"),
        (json.dumps(LINE).encode() + b"\n\n" + json.dumps(LINE).encode(), "problems.jsonl, line 2: is not JSON"),
        (
            2 * (json.dumps(LINE).encode() + b"\n"),
            "problems.jsonl, line 2, slug: 'hf-example' stands in an earlier line",
        ),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_bytes(content)
    with pytest.raises(BadRequest) as caught:
        read_problems(file)
    assert str(caught.value).startswith(sentence)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"^problems\.jsonl: cannot be read \(.*\); install Plumbline again\.$"):
        read_problems(tmp_path / "problems.jsonl")


def test_recurrences_name_problems_of_the_catalogue(tmp_path: Path) -> None:
    assert all(slug in BY_SLUG for group in load_recurrences() for slug in group.slugs)
    file = tmp_path / "recurrences.jsonl"
    file.write_text('{"name": "again", "slugs": ["a", "b"], "frameworks": ["trl"]}\n')
    assert read_recurrences(file, known=frozenset("ab")) == (Recurrence("again", ("a", "b"), ("trl",)),)
    with pytest.raises(BadRequest, match=r"^recurrences\.jsonl, line 1, slugs: there is no problem 'b'; name problems"):
        read_recurrences(file, known=frozenset("a"))
