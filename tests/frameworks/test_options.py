"""A framework's own options: read by kind, and refused with what there is instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.errors import BadRequest
from checks.spec import LISTS, RunSpec
from workers.frameworks.options import Option, read_options
from workers.jobs.documents import read_spec
from workers.report.as_json import to_plain
from workers.settings import parse_settings

KNOWN = {
    "perform_initialization": Option(bool, "initialise weights before they are loaded"),
    "sequence_parallel_size": Option(int, "processes that share a row"),
    "router_scale": Option(float, "what the router's loss is multiplied by"),
    "loss_scale": Option(("default", "all"), "which tokens count"),
}


def spec(*options: str) -> RunSpec:
    return RunSpec(framework="some", model=Path("m"), data=Path("d"), options=options)


def test_each_option_is_read_as_its_kind() -> None:
    given = spec("perform_initialization=True", "sequence_parallel_size=2", "router_scale = 0.5", "loss_scale=all")
    assert read_options(given, KNOWN) == {
        "perform_initialization": True,
        "sequence_parallel_size": 2,
        "router_scale": 0.5,
        "loss_scale": "all",
    }


def test_options_are_settings_separated_by_commas() -> None:
    read = parse_settings(["options=perform_initialization=true,loss_scale=all"], defaults={})
    assert read == {"options": ("perform_initialization=true", "loss_scale=all")}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("loss_scale",), "options: 'loss_scale' is not name=value; write it so, several separated by commas."),
        (("loss_scale=",), "options: 'loss_scale=' is not name=value; write it so, several separated by commas."),
        (("loss_scale=all", "loss_scale=all"), "options: loss_scale is given twice; give it once."),
        (("los_scale=all",), "options: some is run with no option 'los_scale'; use loss_scale."),
        (("loss_scale=some",), "options: loss_scale cannot be 'some'; set it to default or all."),
        (("router_scale=high",), "options: router_scale cannot be 'high'; give it a number."),
        (("sequence_parallel_size=2.5",), "options: sequence_parallel_size cannot be '2.5'; give it a whole number."),
        (
            ("perform_initialization=perhaps",),
            "options: perform_initialization cannot be 'perhaps'; set it to true or false.",
        ),
    ],
)
def test_an_option_that_cannot_be_is_refused(options: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        read_options(spec(*options), KNOWN)
    assert str(refusal.value).startswith(sentence.rstrip("."))


def test_a_framework_without_options_says_so() -> None:
    with pytest.raises(BadRequest, match="this framework has no options of its own here"):
        read_options(spec("a=b"), {})


def test_fields_of_several_values_come_back_as_they_were() -> None:
    assert LISTS == ("lora_targets", "options", "command", "unstated")
    given = spec("loss_scale=all")
    assert read_spec(to_plain(given)) == given
