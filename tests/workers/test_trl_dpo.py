"""A whole validation of a preference run: TRL's DPOTrainer on a tiny model, recorded, referred to and judged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from checks.errors import BadRequest
from checks.models import resolve_model
from checks.samples import read_preferences, resolve_data
from checks.spec import RunSpec
from checks.verdict import Status, Verdict
from workers.frameworks import adapter
from workers.request import ValidationRequest, ValidationResult
from workers.settings import parse_settings
from workers.validate import validate

PREFERENCES = "preferences_sample"


@pytest.fixture
def make_spec(_shared_cache: None) -> Callable[..., RunSpec]:
    def make(framework: str = "trl", *, data: str = PREFERENCES, **changes: Any) -> RunSpec:
        given = {"objective": "dpo", **changes}
        return RunSpec(framework, resolve_model("tiny:qwen3").path, resolve_data(data), **given)

    return make


@pytest.fixture
def result(tmp_path: Path, _shared_cache: None) -> ValidationResult:
    request = ValidationRequest(
        framework="trl",
        model="tiny:qwen3",
        data=PREFERENCES,
        checks=None,
        settings=parse_settings(["objective=dpo", "beta=0.25"], defaults={}),
        inject=None,
        out=tmp_path / "out",
    )
    return validate(request, on_progress=lambda progress: None, cancelled=lambda: False)


def by_name(result: ValidationResult) -> Mapping[str, Verdict]:
    return {verdict.check: verdict for verdict in result.verdicts}


PASSING = {
    *("run.completes", "environment.known_problems", "environment.settings", "data.preference", "data.coverage"),
    *("step.precision", "step.settings", "step.rl_loss", "step.gradients", "step.update", "step.schedule"),
    *("step.frozen", "step.accumulation", "step.grad_norm", "model.definition"),
}


def test_a_healthy_run_passes_and_what_is_not_judged_says_why(result: ValidationResult) -> None:
    verdicts = by_name(result)
    assert {name for name, verdict in verdicts.items() if verdict.status is Status.PASS} == PASSING
    assert {v.status for name, v in verdicts.items() if name not in PASSING} == {Status.SKIPPED}
    assert all(v.sentence for v in verdicts.values() if v.status is Status.SKIPPED)
    assert verdicts["step.loss"].sentence == "its reference is that of supervised fine-tuning"
    assert verdicts["data.mask"].sentence == "data.preference judges the rows of preferences"
    assert verdicts["data.preference"].sentence.startswith("8 pairs are the data's, in order, with one prompt each")
    loss = verdicts["step.rl_loss"]
    assert loss.evidence["beta"] == 0.25
    assert loss.detection_limits["beta"] < 0.05
    pairs: Any = loss.evidence["pairs"]
    assert [row["step"] for row in pairs] == [1] * 4 + [3] * 4
    # The policy begins as its own reference.
    assert max(abs(row["margin"]) for row in pairs[:4]) < 1e-3 < max(abs(row["margin"]) for row in pairs[4:])


@pytest.mark.parametrize("framework", ["transformers", "plain"])
def test_other_frameworks_refuse_the_objective(framework: str, make_spec: Callable[..., RunSpec]) -> None:
    with pytest.raises(BadRequest, match=r"objective: .* has no dpo; set objective=sft or framework trl\."):
        adapter(framework).check(make_spec(framework))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"packing": True}, "packing: TRL does not pack preferences; set packing=false."),
    ({"assistant_only": True}, "assistant_only: true has no meaning for dpo, which scores the answers and nothing"),
    ({"data": "gsm8k_sample"}, "chosen is missing (columns found: answer, question); give prompt, chosen and rejected"),
    ({"objective": "sft"}, "it is a preference (columns found: chosen, id, prompt, rejected, source); set objective=d"),
    ({"objective": "sft", "data": "gsm8k_sample", "beta": 0.5}, "beta: 0.5 has no meaning for sft; set objective=dpo"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD, ids=[str(changes) for changes, _ in BAD])
def test_what_cannot_be_is_refused_in_one_sentence(
    changes: dict[str, Any], sentence: str, make_spec: Callable[..., RunSpec]
) -> None:
    with pytest.raises(BadRequest) as caught:
        adapter("trl").check(make_spec(**changes))
    assert sentence in str(caught.value)


def test_the_run_is_told_its_objective_and_gets_the_rows_as_they_were_given(
    make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    adapter("trl").prepare(make_spec(beta=0.3, seq_len=64), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["objective"] == "dpo"
    stated = {"beta": 0.3, "loss_type": ["sigmoid"], "max_length": 64, "truncation_mode": "keep_start"}
    assert {name: config["arguments"][name] for name in stated} == stated
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    given = [json.loads(line) for line in resolve_data(PREFERENCES).read_text().splitlines()]
    assert rows == [{name: row[name] for name in ("prompt", "chosen", "rejected")} for row in given]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "One", "chosen": " two", "rejected": " six"},
        {"chosen": "One two", "rejected": "One six"},
        {
            "chosen": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
            "rejected": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "No"}],
        },
    ],
)
def test_every_form_of_a_row_reaches_the_framework_unchanged(
    row: dict[str, Any], make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps(row) + "\n")
    assert len(read_preferences(file)) == 1
    adapter("trl").prepare(make_spec(data=str(file)), tmp_path / "scratch")
    assert json.loads((tmp_path / "scratch" / "rows.jsonl").read_text()) == row
