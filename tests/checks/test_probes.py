"""Which batches are asked about, and what the reference says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from plumbline_capture.probe_file import read_probes

from checks.captures.capture import open_capture
from checks.errors import BadRequest
from checks.material import Material
from checks.models import resolve_model
from checks.probes.answers import Answer, relative_limit
from checks.probes.choices import ambiguous_from, watch_choices
from checks.probes.plan import (
    CACHED,
    OTHER_FUTURE,
    PADDED_LEFT,
    PADDED_RIGHT,
    PAST,
    TOKENS,
    plan_lengths,
    plan_probes,
    read_text_config,
    write_probes,
)
from checks.roles import Role

CONFIG = {"vocab_size": 512, "max_position_embeddings": 100, "sliding_window": 32, "eos_token_id": [2, 3]}


def test_lengths_are_the_configs_boundaries_and_their_neighbours() -> None:
    plan = plan_lengths({**CONFIG, "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 50}})
    assert list(plan.lengths) == [2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 49, 50, 51, 63, 64, 65, 99, 100]
    assert plan.lengths[33] == "sliding_window"
    assert plan.lengths[51] == "original_max_position_embeddings"
    assert plan.lengths[99] == "max_position_embeddings"
    assert plan.lengths[65] == "a power of two"
    assert plan.left_out == {}


def test_what_is_too_long_to_ask_about_is_said() -> None:
    plan = plan_lengths({**CONFIG, "max_position_embeddings": 32_768, "sliding_window": 4096})
    assert sum(plan.lengths) <= TOKENS
    assert set(plan.left_out) == {2049, 4095, 4096, 4097, 32_767, 32_768}


def test_parameters_by_layer_type_are_read_too() -> None:
    nested = {"full_attention": {"original_max_position_embeddings": 40}, "sliding_attention": {"rope_theta": 1e4}}
    assert plan_lengths({**CONFIG, "rope_parameters": nested}).lengths[41] == "original_max_position_embeddings"


def test_probes_are_the_same_each_time_and_hold_no_special_token() -> None:
    model = resolve_model("tiny:qwen3").path
    probes = plan_probes(model)
    assert probes == plan_probes(model)
    assert len({probe.name for probe in probes}) == len(probes)
    tokens = {
        token for probe in probes if "padded" not in probe.name for row in probe.inputs["input_ids"] for token in row
    }
    config = read_text_config(model)
    assert not tokens & {config["eos_token_id"], config["pad_token_id"]}
    assert max(tokens) < 512


def test_two_futures_have_one_past(probed: Material) -> None:
    one, other = (probed.probes[name].input_ids[0] for name in (PAST, OTHER_FUTURE))
    assert torch.equal(one[:12], other[:12])
    assert not torch.equal(one[12:], other[12:])


def test_a_padded_row_has_its_positions(tmp_path: Path) -> None:
    probes = {probe.name: probe for probe in plan_probes(resolve_model("tiny:qwen3").path)}
    left = probes[PADDED_LEFT].inputs
    assert left["attention_mask"][0] == [0] * 19 + [1] * 5
    assert left["position_ids"][0][18:] == [0, 0, 1, 2, 3, 4]
    assert "position_ids" not in probes[PADDED_RIGHT].inputs
    write_probes(tuple(probes.values()), tmp_path / "probes.json")
    assert [probe["name"] for probe in read_probes(str(tmp_path / "probes.json"))] == list(probes)


@pytest.mark.parametrize("content", ["[1]", "{}", "not json", json.dumps([{"name": "a", "kind": "b", "inputs": {}}])])
def test_another_file_of_probes_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "probes.json").write_text(content)
    with pytest.raises(ValueError, match="--probes: "):
        read_probes(str(tmp_path / "probes.json"))


def test_a_model_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"config\.json"):
        plan_probes(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(BadRequest, match="is a JSON list"):
        read_text_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "text_config": CONFIG}))
    assert read_text_config(tmp_path) == CONFIG


def test_the_models_answers_are_those_of_the_reference(probed: Material) -> None:
    answers = probed.probes
    assert set(answers) == {probe.name for probe in plan_probes(probed.spec.model)}
    for answer in answers.values():
        assert answer.largest_error <= 8 * float(answer.floor.max())
        assert float(answer.floor.max()) < 1e-4
        assert bool((answer.exact.nan_to_num() <= 0.0).all())
    padded = answers[PADDED_LEFT]
    assert padded.exact[0].isnan().tolist() == [True] * 19 + [False] * 4
    assert padded.log_probs[0].isnan().tolist() == [True] * 19 + [False] * 4
    assert answers[CACHED].log_probs.shape == (1, 47)


def test_the_run_goes_on_as_if_it_had_not_been_asked(probed: Material) -> None:
    asked, plain = probed.capture_of(Role.PROBED), probed.capture
    assert asked is not None
    assert plain is not None
    name = "model.layers.0.self_attn.q_proj.weight"
    ours, theirs = (open_capture(c.path).tensors(1, "parameter_before")[name].read("full") for c in (asked, plain))
    assert ours is not None
    assert theirs is not None
    assert torch.equal(ours, theirs)
    assert asked.step(1).model.training
    assert [micro.index for micro in asked.step(1).micro_batches] == [0]


def test_scores_on_both_sides_of_a_cut_are_kept() -> None:
    scores = torch.tensor([[0.1, 0.5, 0.3, 0.2], [0.9, 0.1, 0.2, 0.3]])
    with watch_choices(2) as kept:
        torch.topk(scores, 2, dim=-1)
        scores.topk(4, dim=-1)  # all are taken: no choice
        torch.topk(scores.reshape(-1), 2)  # of another shape
    assert len(kept) == 1
    assert kept[0].tolist() == [[pytest.approx(0.3), pytest.approx(0.2)], [pytest.approx(0.3), pytest.approx(0.2)]]


def test_a_choice_is_undecided_where_its_margin_is_within_the_noise() -> None:
    exact = [torch.tensor([[0.5, 0.1], [0.5, 0.1], [0.3, 0.3 - 7e-6]], dtype=torch.float64)]
    own = [exact[0] + torch.tensor([[1e-6, 0.0], [1e-3, 0.0], [1e-6, 0.0]], dtype=torch.float64)]
    assert ambiguous_from(exact, own) == 2
    assert ambiguous_from(exact, [exact[0] + 1e-9]) == 3
    assert ambiguous_from([], []) > 10**6


def test_a_limit_is_beside_the_usual_size() -> None:
    answer = Answer(
        "x",
        torch.tensor([[1, 2, 3]]),
        torch.ones(1, 3).bool(),
        torch.zeros(1, 2),
        torch.tensor([[-4.0, -2.0]], dtype=torch.float64),
        torch.zeros(1),
    )
    assert relative_limit(0.3, [answer]) == pytest.approx(0.1)
    assert relative_limit(0.3, []) == float("inf")
