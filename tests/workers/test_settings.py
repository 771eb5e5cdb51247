"""Texts of --set become typed fields, or one sentence that says what to do."""

from __future__ import annotations

import contextlib
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.errors import BadRequest
from checks.spec import RunSpec
from workers.settings import BOUNDS, COUNT_LIMIT, parse_settings, setting_names


def test_values_take_the_types_of_the_run_spec() -> None:
    texts = ["seq_len=256", "lr=1e-4", "packing=true", "optimizer=sgd", "lora_targets=q_proj,k_proj"]
    assert parse_settings(texts, defaults={}) == {
        "seq_len": 256,
        "lr": 1e-4,
        "packing": True,
        "optimizer": "sgd",
        "lora_targets": ("q_proj", "k_proj"),
    }


def test_what_is_given_goes_over_the_defaults() -> None:
    assert parse_settings(["batch=4"], defaults={"batch": 1, "steps": 2}) == {"batch": 4, "steps": 2}


def test_spaces_around_name_and_value_do_not_matter() -> None:
    assert parse_settings([" lora_targets = a , b "], defaults={}) == {"lora_targets": ("a", "b")}


@pytest.mark.parametrize("text", ["true", "1", "yes", "True", "YES"])
def test_a_boolean_is_true_in_three_spellings(text: str) -> None:
    assert parse_settings([f"packing={text}"], defaults={}) == {"packing": True}


@pytest.mark.parametrize("text", ["false", "0", "no", "False"])
def test_a_boolean_is_false_in_three_spellings(text: str) -> None:
    assert parse_settings([f"packing={text}"], defaults={}) == {"packing": False}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("batch", "set: 'batch' has no =; write it as name=value, for example batch=2."),
        ("seqlen=1", "set: there is no setting 'seqlen'; did you mean seq_len."),
        ("batch=0", "batch: 0 is out of bounds; set it to 1 or more and at most 2147483647."),
        ("batch=1.5", "batch: '1.5' is not a whole number; give a whole number, 1 or more and at most 2147483647."),
        ("batch=", "batch: '' is not a whole number; give a whole number, 1 or more and at most 2147483647."),
        ("lr=x", "lr: 'x' is not a number; give a number, 0 or more."),
        ("lr=nan", "lr: nan is not finite; set it to 0 or more."),
        ("lr=1e999", "lr: 1e999 is not finite; set it to 0 or more."),
        ("beta2=1", "beta2: 1 is out of bounds; set it to 0 or more and less than 1."),
        ("lora_alpha=0", "lora_alpha: 0 is out of bounds; set it to more than 0."),
        ("packing=maybe", "packing: 'maybe' is neither true nor false; use true or false."),
        ("precision=fp8", "precision: 'fp8' is none of its values; use float32 or bf16 or bf16_params or fp16."),
        ("lora_targets=a,,b", "lora_targets: 'a,,b' has an empty item; separate the items by single commas."),
        ("lora_targets=a,a", "lora_targets: 'a,a' names an item twice; name each once."),
    ],
)
def test_a_wrong_setting_is_one_sentence_with_its_remedy(text: str, sentence: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_settings([text], defaults={})
    assert str(caught.value) == sentence


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"^batch: is set twice"):
        parse_settings(["batch=1", "batch=2"], defaults={})


def test_an_unknown_name_like_no_other_lists_all_settings() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_settings(["zzzz=1"], defaults={})
    assert caught.value.remedy == f"the settings are {', '.join(setting_names())}"


@pytest.mark.parametrize("name", ["framework", "model", "data", "fault"])
def test_what_has_an_option_of_its_own_is_no_setting(name: str) -> None:
    with pytest.raises(BadRequest, match="there is no setting"):
        parse_settings([f"{name}=x"], defaults={})


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("steps", 1),
        ("batch", 1),
        ("accumulation", 1),
        ("seq_len", 2),
        ("lora_r", 1),
        ("lr", 0),
        ("beta1", 0),
        ("beta2", 0),
        ("eps", 0),
        ("weight_decay", 0),
        ("momentum", 0),
        ("max_grad_norm", 0),
        ("warmup_steps", 0),
        ("seed", 0),
    ],
)
def test_the_least_value_is_taken_and_one_less_is_not(name: str, least: int) -> None:
    assert parse_settings([f"{name}={least}"], defaults={}) == {name: least}
    with pytest.raises(BadRequest, match=f"^{name}: .*out of bounds"):
        parse_settings([f"{name}={least - 1}"], defaults={})


@pytest.mark.parametrize(("name", "most"), [("seed", 2**32 - 1), ("batch", COUNT_LIMIT), ("seq_len", COUNT_LIMIT)])
def test_the_largest_value_is_taken_and_one_more_is_not(name: str, most: int) -> None:
    assert parse_settings([f"{name}={most}"], defaults={}) == {name: most}
    with pytest.raises(BadRequest, match=f"^{name}: .*out of bounds"):
        parse_settings([f"{name}={most + 1}"], defaults={})


def test_every_number_has_bounds_and_every_bound_a_setting() -> None:
    numbers = {field.name for field in fields(RunSpec) if field.type in ("int", "float")}
    assert set(BOUNDS) == numbers


def test_every_default_of_the_run_spec_lies_within_its_bounds() -> None:
    for field in fields(RunSpec):
        if field.name in BOUNDS:
            assert BOUNDS[field.name].admit(float(field.default)), field.name  # type: ignore[arg-type]


@given(st.text(max_size=40))
def test_any_text_is_either_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(BadRequest):
        assert len(parse_settings([text], defaults={})) == 1


@given(st.sampled_from(sorted(BOUNDS)), st.one_of(st.integers(), st.floats(), st.text("0123456789", min_size=1)))
def test_a_number_that_is_taken_lies_within_the_bounds(name: str, value: object) -> None:
    try:
        parsed = parse_settings([f"{name}={value}"], defaults={})
    except BadRequest:
        return
    assert BOUNDS[name].admit(parsed[name])  # type: ignore[arg-type]
