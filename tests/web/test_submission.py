"""What a form or the API sends, read field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from plumbline_web.validations.submission import FIELDS, InvalidSubmission, check_roots, read_submission

GOOD: dict[str, Any] = {"framework": "trl", "model": "tiny:qwen3", "data": "tulu3_sample"}


def errors_of(**changes: Any) -> dict[str, str]:
    with pytest.raises(InvalidSubmission) as caught:
        read_submission({**GOOD, **changes})
    return caught.value.errors


def test_texts_of_a_form_and_values_of_the_api_read_the_same() -> None:
    settings = {"batch": "3", "packing": "true", "lora_targets": "q_proj,v_proj", "lr": "", "eps": None}
    form = {**GOOD, "checks": "step.loss, run.completes", "settings": settings, "full": "on", "time_limit_s": "90"}
    typed = {"batch": 3, "packing": True, "lora_targets": ["q_proj", "v_proj"]}
    api = {**GOOD, "checks": ["step.loss", "run.completes"], "settings": typed, "full": True, "time_limit_s": 90}
    read = read_submission(form)
    assert read == read_submission(api)
    assert read.checks == ("step.loss", "run.completes")
    assert read.settings == {"batch": 3, "packing": True, "lora_targets": ("q_proj", "v_proj")}
    assert (read.full, read.fresh, read.queue, read.time_limit_s) == (True, False, "cpu", 90.0)


def test_every_wrong_field_is_named_at_once() -> None:
    errors = errors_of(
        framework="",
        model=7,
        checks="",
        settings={"batch": "0", "sede": "1"},
        queue="tpu",
        time_limit_s="-1",
        full="maybe",
    )
    assert errors == {
        "framework": "is missing; name a framework: transformers or trl",
        "model": "7 is not a text; give a text",
        "settings.batch": "0 is out of bounds; set it to 1 or more and at most 2147483647",
        "settings.sede": "there is no setting 'sede'; did you mean seed",
        "queue": "'tpu' is none of its values; use cpu or gpu",
        "time_limit_s": "'-1' is out of bounds; give a number above 0 and at most 86400",
        "full": "'maybe' is neither true nor false; use true or false",
    }


@pytest.mark.parametrize(
    ("changes", "field", "sentence"),
    [
        ({"model": "x" * 501}, "model", "has 501 characters; give at most 500"),
        ({"settings": {"eps": "9" * 10_000_000}}, "settings.eps", "has 10,000,000 characters; give at most 500"),
        ({"data": "a\0b"}, "data", "holds a null character; remove it"),
        ({"settings": [1]}, "settings", "[1] is not an object; give name: value pairs"),
        ({"checks": 5}, "checks", "5 is not a list of names; give names of checks, or none for all"),
        ({"checks": ["a"] * 501}, "checks", "has 501 names; give each check once"),
        ({"time_limit_s": True}, "time_limit_s", "True is out of bounds; give a number above 0 and at most 86400"),
        (
            {"memory_limit_gb": "nan"},
            "memory_limit_gb",
            "'nan' is out of bounds; give a number above 0 and at most 1e+06",
        ),
        ({"memory_limit": "1"}, "memory_limit", f"there is no such field; the fields are {', '.join(FIELDS)}"),
    ],
)
def test_a_wrong_field_says_what_was_found_and_what_to_do(changes: dict[str, Any], field: str, sentence: str) -> None:
    assert errors_of(**changes) == {field: sentence}


def test_a_memory_limit_is_given_in_gigabytes() -> None:
    assert read_submission({**GOOD, "memory_limit_gb": "1.5"}).memory_limit_bytes == 1_500_000_000


def test_a_path_must_lie_under_an_allowed_root(tmp_path: Path, settings: Settings) -> None:
    root, other = tmp_path / "models", tmp_path / "other"
    (root / "good").mkdir(parents=True)
    other.mkdir()
    (root / "link").symlink_to(other)
    settings.ROOTS = [root]

    def refused(model: str, data: str = "tulu3_sample") -> dict[str, str]:
        try:
            check_roots(read_submission({**GOOD, "model": model, "data": data}))
        except InvalidSubmission as error:
            return error.errors
        return {}

    assert refused(str(root / "good")) == {}
    assert refused("tiny:qwen3", str(root / "good")) == {}
    assert refused(f"shrunk:{root / 'good'}") == {}
    for wrong in (str(other), str(root / "link"), str(root / ".." / "other"), f"../{other}", "shrunk:/etc"):
        assert list(refused(f"shrunk:{wrong}")) == ["model"]
    for wrong in (str(other), str(root / "link"), str(root / ".." / "other"), "good", "/etc/passwd", str(root) + "x"):
        assert refused(wrong) == {"model": f"{wrong} is not under an allowed directory; move it under one of: {root}"}
        assert list(refused("tiny:qwen3", wrong)) == ["data"]
    synced = {**GOOD, "settings": {"synced": str(root / "good")}}
    check_roots(read_submission(synced))
    with pytest.raises(InvalidSubmission) as caught:
        check_roots(read_submission({**GOOD, "settings": {"synced": str(other)}}))
    assert list(caught.value.errors) == ["settings.synced"]
    settings.ROOTS = []
    assert "an administrator allows one with `plumbline up --root DIR`" in refused(str(root / "good"))["model"]
