"""ORPO, KTO and GRPO: a whole validation of each of TRL's trainers, and what they are asked and told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checks.errors import BadRequest
from checks.models import resolve_model
from checks.references.objectives import VARIANTS
from checks.samples import read_preferences, read_prompts, resolve_data
from checks.spec import RunSpec
from checks.verdict import Status, Verdict
from workers.frameworks import adapter
from workers.frameworks.trl.train import share_characters
from workers.request import ValidationRequest
from workers.settings import parse_settings
from workers.validate import validate

PREFERENCES = "preferences_sample"


@pytest.fixture
def make_spec(_shared_cache: None) -> Callable[..., RunSpec]:
    def make(objective: str, *, data: str = PREFERENCES, framework: str = "trl", **changes: Any) -> RunSpec:
        given: dict[str, Any] = {"objective": objective, **changes}
        return RunSpec(framework, resolve_model("tiny:qwen3").path, resolve_data(data), **given)

    return make


def judge(out: Path, *settings: str, checks: tuple[str, ...], data: str = PREFERENCES) -> Mapping[str, Verdict]:
    request = ValidationRequest(
        framework="trl",
        model="tiny:qwen3",
        data=data,
        checks=checks,
        settings=parse_settings(settings, defaults={}),
        inject=None,
        out=out / "out",
    )
    result = validate(request, on_progress=lambda progress: None, cancelled=lambda: False)
    return {verdict.check: verdict for verdict in result.verdicts}


def write_text(directory: Path) -> str:
    """The sample's preferences as plain text."""
    file = directory / "text.jsonl"
    rows = [
        {
            "prompt": f"Q: {one.chosen.messages[0][1]}\nA:",
            "chosen": f" {one.chosen.messages[-1][1]}",
            "rejected": f" {one.rejected.messages[-1][1]}",
        }
        for one in read_preferences(PREFERENCES)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.mark.usefixtures("_shared_cache")
def test_orpo_passes_on_text(tmp_path: Path) -> None:
    checks = ("data.preference", "data.coverage", "step.rl_loss", "step.gradients", "step.accumulation")
    verdicts = judge(tmp_path, "objective=orpo", "beta=0.3", checks=checks, data=write_text(tmp_path))
    assert {name for name, one in verdicts.items() if one.status is Status.PASS} == set(checks[:4])
    assert verdicts["step.accumulation"].status is Status.SKIPPED
    assert verdicts["step.accumulation"].sentence.startswith("ORPO's likelihood is a mean over each micro-batch's")
    loss = verdicts["step.rl_loss"]
    assert loss.evidence["beta"] == 0.3
    assert loss.detection_limits["beta"] < 0.01


@pytest.mark.usefixtures("_shared_cache")
def test_kto_passes_with_a_reference_point_of_its_own_in_each_micro_batch(tmp_path: Path) -> None:
    checks = ("data.template", "data.mask", "data.coverage", "step.rl_loss", "step.gradients")
    verdicts = judge(tmp_path, "objective=kto", "lr=0.01", checks=checks)
    assert {one.status for one in verdicts.values()} == {Status.PASS}
    loss = verdicts["step.rl_loss"]
    rows: Any = loss.evidence["rows"]
    assert [row["label"] for row in rows] == ["desirable", "undesirable"] * 4
    # The policy begins as its own reference.
    assert max(row["reference point"] for row in rows[:4]) < 1e-4
    assert loss.detection_limits["beta"] < 0.05


@pytest.mark.usefixtures("_shared_cache")
def test_a_reward_model_passes_with_the_head_that_the_run_drew(tmp_path: Path) -> None:
    checks = ("data.template", "data.coverage", "step.settings", "step.rl_loss", "step.gradients", "step.update")
    verdicts = judge(tmp_path, "objective=reward", checks=checks)
    assert {one.status for one in verdicts.values()} == {Status.PASS}
    assert set(verdicts["step.rl_loss"].detection_limits) == {"margins", "beta"}
    assert max(verdicts["step.rl_loss"].detection_limits.values()) < 1e-3


@pytest.mark.usefixtures("_shared_cache")
def test_grpo_passes_with_ratios_penalty_and_temperature(tmp_path: Path) -> None:
    checks = ("data.coverage", "step.rl_loss", "step.advantages", "step.rl_logprobs", "step.gradients")
    verdicts = judge(tmp_path, "objective=grpo", "num_iterations=3", "temperature=0.8", checks=checks)
    assert {name for name, one in verdicts.items() if one.status is Status.PASS} == set(checks[1:])
    assert verdicts["data.coverage"].sentence == "the rows are the model's own completions, not those of the data"
    loss = verdicts["step.rl_loss"]
    assert {"advantages", "beta", "ratios"} == set(loss.detection_limits)
    assert max(loss.detection_limits.values()) < 0.01
    rows: Any = loss.evidence["rows"]
    assert max(abs(row["largest ratio"] - 1.0) for row in rows[:4]) < 1e-4
    assert max(row["largest ratio"] for row in rows[4:]) > 1.2
    assert len({row["tokens"] for row in rows}) > 1
    assert set(verdicts["step.rl_logprobs"].detection_limits) == {"policy", "old policy", "reference model"}


@pytest.mark.parametrize("framework", ["transformers", "plain"])
@pytest.mark.parametrize("objective", ["orpo", "kto", "reward", "grpo"])
def test_other_frameworks_refuse_the_objectives(
    framework: str, objective: str, make_spec: Callable[..., RunSpec]
) -> None:
    with pytest.raises(BadRequest, match=rf"objective: .* has no {objective}; set objective=sft or framework trl\."):
        adapter(framework).check(make_spec(objective, framework=framework))


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("orpo", {"packing": True}, "packing: TRL does not pack preferences; set packing=false."),
    ("grpo", {"packing": True}, "packing: TRL does not pack completions; set packing=false."),
    ("kto", {"assistant_only": True}, "assistant_only: true has no meaning for kto, which scores the answers"),
    ("kto", {"batch": 1}, "batch: 1 leaves no other row to estimate KTO's reference point on"),
    ("kto", {"data": "gsm8k_sample"}, "chosen is missing (columns found: answer, question)"),
    ("grpo", {"num_generations": 3}, "num_generations: 3 does not divide the 4 rows of a step into whole groups"),
    ("grpo", {"max_completion_length": 128}, "max_completion_length: 128 leaves no room for a prompt within seq_len"),
    ("reward", {"lora": True}, "lora: true is not run with reward: adapters leave the head that scores untrained"),
    ("dpo", {"temperature": 0.5}, "temperature: 0.5 has no meaning for dpo; set objective=grpo too."),
]


@pytest.mark.parametrize(("objective", "changes", "sentence"), BAD, ids=[f"{o}, {c}" for o, c, _ in BAD])
def test_what_cannot_be_is_refused_in_one_sentence(
    objective: str, changes: dict[str, Any], sentence: str, make_spec: Callable[..., RunSpec]
) -> None:
    with pytest.raises(BadRequest) as caught:
        adapter("trl").check(make_spec(objective, **changes))
    assert sentence in str(caught.value)


def test_a_family_whose_scores_are_not_defined_here_is_refused(make_spec: Callable[..., RunSpec]) -> None:
    spec = replace(make_spec("reward"), model=resolve_model("tiny:gemma3").path)
    with pytest.raises(BadRequest, match=r"objective: gemma3_text has no head for scores .* give a model of llama, "):
        adapter("trl").check(spec)


def test_plain_text_has_no_prompt_to_answer(tmp_path: Path) -> None:
    file = tmp_path / "text.jsonl"
    file.write_text('{"text": "One two three"}\n')
    with pytest.raises(BadRequest, match="line 1: holds plain text, which has no prompt to answer"):
        read_prompts(file)


def prepare(spec: RunSpec, scratch: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    adapter("trl").prepare(spec, scratch)
    rows = [json.loads(line) for line in (scratch / "rows.jsonl").read_text().splitlines()]
    config: dict[str, Any] = json.loads((scratch / "config.json").read_text())
    return config, rows


def test_kto_gets_the_pairs_taken_apart_and_no_pair_in_one_micro_batch(
    make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    config, rows = prepare(make_spec("kto", beta=0.3), tmp_path)
    pairs = read_preferences(PREFERENCES)
    assert len(rows) == 2 * len(pairs)
    assert [row["label"] for row in rows[:4]] == [True, False, True, False]
    answers = [row["completion"][0]["content"] for row in rows[:4]]
    expected = [pairs[0].chosen, pairs[1].rejected, pairs[1].chosen, pairs[2].rejected]
    assert answers == [side.messages[-1][1] for side in expected]
    stated = {"beta": 0.3, "loss_type": "kto", "train_sampling_strategy": "sequential", "max_length": 128}
    assert {name: config["arguments"][name] for name in stated} == stated


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_grpo_is_told_its_variant_and_gets_prompts_with_what_is_known(
    variant: str, make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    config, rows = prepare(make_spec("grpo", grpo_loss=variant, num_iterations=2, accumulation=4), tmp_path)
    asked, arguments = VARIANTS[variant], config["arguments"]
    assert (arguments["epsilon"], arguments["epsilon_high"]) == (asked.low, asked.high)
    assert arguments["importance_sampling_level"] == asked.level
    assert arguments["loss_type"] == {"gspo": "grpo"}.get(variant, variant)
    assert arguments["scale_rewards"] == ("group" if asked.scaled else "none")
    assert (arguments["steps_per_generation"], arguments["num_iterations"]) == (4, 2)
    assert arguments["use_bias_correction_kl"] is False
    assert set(rows[0]) == {"prompt", "known"}


def test_the_reward_is_the_share_of_characters_in_common() -> None:
    completions = ["abba", [{"role": "assistant", "content": "xyz"}], ""]
    assert share_characters(completions, ["abc", "abc", "abc"]) == [pytest.approx(4.0 / 7.0), 0.0, 0.0]
