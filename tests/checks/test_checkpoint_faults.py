"""Each fault of saving and resuming, injected into a real run, is in force and seen by its check, which names it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from checks.assemble import assemble
from checks.captures.capture import open_capture
from checks.faults import FAULTS, fault, was_in_force
from checks.lifecycle import checkpoint_resume, checkpoint_roundtrip
from checks.material import Material, RunOutcome
from checks.roles import Role
from checks.verdict import Pattern, Status, Verdict
from tests.checks import resuming

O_PROJ = "model.layers.0.self_attn.o_proj.weight"
JUDGES = {"checkpoint.resume": checkpoint_resume.judge, "checkpoint.roundtrip": checkpoint_roundtrip.judge}


@dataclass(frozen=True)
class Expected:
    """What the fault's check names first, words of its sentence, and whether the other check fails too."""

    first_wrong: str
    words: tuple[str, ...]
    other: Status


EXPECTED = {
    "optimizer-not-restored": Expected(
        "optimizer state",
        ("first in its optimizer state: the optimizer holds no state for 25 of 25 parameters",),
        Status.PASS,
    ),
    "schedule-restarts": Expected(
        "learning rate",
        (
            "first in its learning rate: the learning rate is 0.001, 0.000333333333 in the uninterrupted run: "
            "it is that of step 1, the schedule starts over; after it also in update",
        ),
        Status.PASS,
    ),
    "data-restart": Expected(
        "data order",
        (
            "first in its batch: its rows are those of step 1: the order of the data starts over; "
            "after it also in loss, gradients and update",
        ),
        Status.PASS,
    ),
    "dropout-restarts": Expected(
        "random state",
        (
            "first in its random state: the random state of torch is another; "
            "after it also in loss, gradients and update",
        ),
        Status.PASS,
    ),
    "loaded-at-random": Expected(
        O_PROJ, (f"{O_PROJ} is 1.01 of its norm off in the resumed run, although it loaded",), Status.FAIL
    ),
    "saved-transposed": Expected(
        O_PROJ, (f"{O_PROJ} is saved with its numbers in another order: transposed or permuted",), Status.FAIL
    ),
    "saved-in-bf16": Expected(
        "model.embed_tokens.weight",
        ("model.embed_tokens.weight is saved in bfloat16, held in float32", "(and 22 more)"),
        Status.FAIL,
    ),
    "tied-head-stale": Expected(
        "lm_head.weight",
        (
            "lm_head.weight is tied to model.embed_tokens.weight and saved apart, and differs from it by ",
            "model.embed_tokens.weight was not loaded: the resumed run holds it as before step 1, not as saved",
        ),
        Status.FAIL,
    ),
    "adapter-alpha-saved": Expected(
        "lora_alpha",
        ("adapter_config.json scales the adapters by 4 (lora_alpha 16), they were trained with 2",),
        Status.PASS,
    ),
}


def read(directory: Path, slug: str) -> Material:
    name = resuming.FAULTS[slug]
    outcomes = {
        role: RunOutcome("completed", 0, 1.0, None, open_capture(directory / case / "capture"), None)
        for role, case in ((Role.RUN, name), (Role.RESUMED, slug))
    }
    return assemble(resuming.RUNS[name].spec(directory), outcomes, references=False, definition=False)


def judge(material: Material) -> dict[str, Verdict]:
    return {name: judge_one(material) for name, judge_one in JUDGES.items()}


def test_every_fault_of_these_checks_is_a_case() -> None:
    assert set(EXPECTED) == set(resuming.FAULTS) == {each.slug for each in FAULTS if each.check in JUDGES}


@pytest.mark.parametrize("slug", EXPECTED)
def test_the_fault_is_seen_by_its_check_which_names_it(resumptions: Path, slug: str) -> None:
    assert was_in_force(fault(slug), log=resumptions / slug / "log")
    expected = EXPECTED[slug]
    verdicts = judge(read(resumptions, slug))
    own = verdicts.pop(fault(slug).check)
    assert (own.status, own.pattern) == (Status.FAIL, Pattern.STATE_TRANSFER)
    assert own.first_wrong == expected.first_wrong
    assert all(words in own.sentence for words in expected.words), own.sentence
    (other,) = verdicts.values()
    assert other.status is expected.other, other.sentence


@pytest.mark.parametrize("name", resuming.RUNS)
def test_a_run_without_a_fault_says_that_none_is_in_force(resumptions: Path, name: str) -> None:
    assert not any(was_in_force(fault(slug), log=resumptions / name / "log") for slug in resuming.FAULTS)


def test_a_run_that_is_saved_and_resumed_with_adapters_passes(resumptions: Path, tmp_path: Path) -> None:
    """The fault changes one number of a file; with that number put right the rest is a healthy run."""
    slug = "adapter-alpha-saved"
    material = read(resumptions, slug)
    verdict = checkpoint_resume.judge(material)
    assert verdict.status is Status.PASS
    assert "33 weights" in verdict.sentence
    directory = tmp_path / "capture"
    directory.mkdir()
    for file in (resumptions / slug / "capture").iterdir():
        (directory / file.name).hardlink_to(file)
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["checkpoints"][0]["adapter_config"]["lora_alpha"] == 16.0
    manifest["checkpoints"][0]["adapter_config"]["lora_alpha"] = 8.0
    (directory / "manifest.json").unlink()
    (directory / "manifest.json").write_text(json.dumps(manifest))
    outcome = RunOutcome("completed", 0, 1.0, None, open_capture(directory), None)
    mended = Material(
        spec=material.spec,
        run=material.run,
        others={Role.RESUMED: outcome},
        asked_config=material.asked_config,
    )
    verdict = checkpoint_roundtrip.judge(mended)
    assert verdict.status is Status.PASS
    assert verdict.sentence == (
        "8 parameters and 24 optimizer states are saved as the run held them, and 8 parameters are loaded as saved"
    )
