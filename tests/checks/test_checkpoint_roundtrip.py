"""checkpoint.roundtrip: what a file can hold that the run did not, and what a load can make of it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from checks.captures.saved import flatten, read_saved
from checks.errors import CaptureError
from checks.lifecycle import checkpoint_roundtrip
from checks.material import Material
from checks.repeats.configs import compare_adapter_config
from checks.roles import Role
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, capture_of
from tests.checks.test_checkpoint_resume import bump, put, taken_up

QUERY = "model.layers.0.self_attn.q_proj.weight"
OUTPUT = "model.layers.0.self_attn.o_proj.weight"
NORM = "model.norm.weight"
EMBEDDING = "model.embed_tokens.weight"


def judge(material: Material, **edits: Edit) -> Verdict:
    return checkpoint_roundtrip.judge(put(material, **edits))


def saved(editing: Edit) -> dict[str, Any]:
    """The manifest's description of the checkpoint, to be changed in place."""
    described: dict[str, Any] = editing.manifest["checkpoints"][0]
    return described


def change(material: Material, edit: Editor, name: str, function: Any) -> Edit:
    """Let the file hold another value of a parameter, and the resumed run load what it holds."""
    editing = edit(taken_up(material)).change("checkpoint", name, function, step=0)
    return editing.change("parameter_before", name, lambda w: function(w).to(torch.float32))


def test_a_healthy_checkpoint_is_what_the_run_held_and_what_is_loaded(resumed: Material) -> None:
    verdict = checkpoint_roundtrip.judge(resumed)
    assert verdict.status is Status.PASS
    assert verdict.sentence == (
        "25 parameters and 75 optimizer states are saved as the run held them, and 25 parameters are loaded as saved"
    )
    assert len(verdict.measurements) == 25 + 4
    assert all((m.value, m.holds) == (0.0, True) for m in verdict.measurements)
    assert {m.threshold for m in verdict.measurements[:27]} == {1e-13}
    assert verdict.detection_limits == {"saved weights": 2e-13}
    assert verdict.evidence["compared"] == {"saved": 25, "loaded": 25, "states": 75}
    assert verdict.evidence["directory"] == "checkpoint-2"


def test_what_the_capture_says_of_the_file(resumed: Material) -> None:
    (checkpoint,) = read_saved(taken_up(resumed))
    assert checkpoint.global_step == 2
    assert checkpoint.config is not None
    assert (checkpoint.config["model_type"], checkpoint.config["vocab_size"]) == ("qwen3", 512)
    assert checkpoint.config["rope_parameters.rope_type"] == "default"
    assert (checkpoint.adapter_config, checkpoint.contradictions, checkpoint.unread) == (None, (), ())
    assert {field for _, field in checkpoint.states} == {"exp_avg", "exp_avg_sq", "step"}
    assert read_saved(capture_of(resumed)) == ()


def test_a_parameter_that_no_file_holds_is_named(resumed: Material, edit: Editor) -> None:
    verdict = judge(resumed, resumed=edit(taken_up(resumed)).drop("checkpoint", OUTPUT, step=0))
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.STATE_TRANSFER)
    assert (verdict.sentence, verdict.first_wrong) == (f"{OUTPUT} is not in the saved files", OUTPUT)
    assert verdict.evidence["lost"] == [OUTPUT]
    renamed = edit(taken_up(resumed)).rename("checkpoint", NORM, "norm.weight", step=0)
    assert judge(resumed, resumed=renamed).sentence == (
        f"{NORM} is not in the saved files; norm.weight is in the saved files and is no parameter of the model"
    )


def test_a_buffer_is_no_unknown_tensor(resumed: Material, edit: Editor) -> None:
    editing = edit(taken_up(resumed)).rename("checkpoint", NORM, "model.rotary_emb.inv_freq", step=0)
    verdict = judge(resumed, resumed=editing)
    assert verdict.evidence["buffers"] == ["model.rotary_emb.inv_freq"]
    assert verdict.evidence["unknown"] == []


@pytest.mark.parametrize(
    ("name", "function", "sentence"),
    [
        (NORM, torch.zeros_like, f"{NORM} is saved as zeros"),
        (OUTPUT, lambda w: w.t().contiguous(), "with its numbers in another order: transposed or permuted"),
        (QUERY, lambda w: 1.5 * w, f"{QUERY} is saved as 1.5× what the run held"),
        (QUERY, lambda w: w.to(torch.bfloat16), f"{QUERY} is saved in bfloat16, held in float32"),
        (QUERY, lambda w: w[:, :32], f"{QUERY} is saved in another shape: (64, 32), (64, 64) in the run"),
        (QUERY, lambda w: 1.001 * w, f"{QUERY} is saved as 1.001× what the run held"),
        (QUERY, lambda w: torch.cat([1.5 * w[:48], w[48:]]), "of its norm off"),
        (QUERY, bump, "of its norm off"),
        (OUTPUT, lambda w: -w.t().contiguous(), "of its norm off"),
        (QUERY, lambda w: w * torch.nan, f"{QUERY} is saved nan of its norm off"),
    ],
)
def test_a_value_that_the_run_did_not_hold_is_described(
    resumed: Material, edit: Editor, name: str, function: Any, sentence: str
) -> None:
    verdict = judge(resumed, resumed=change(resumed, edit, name, function))
    assert verdict.status is Status.FAIL
    assert sentence in verdict.sentence
    assert verdict.first_wrong == name
    assert next(m.name for m in verdict.measurements if not m.holds) == name


def test_equal_numbers_in_a_lower_precision_are_another_dtype(resumed: Material, edit: Editor) -> None:
    ones = torch.ones(64)
    run = edit(capture_of(resumed)).put("parameter_before", NORM, ones, step=3)
    again = edit(taken_up(resumed)).put("checkpoint", NORM, ones.to(torch.bfloat16), step=0)
    verdict = judge(resumed, run=run, resumed=again.put("parameter_before", NORM, ones))
    assert verdict.sentence == f"{NORM} is saved in bfloat16, held in float32"


def test_the_same_numbers_but_one_are_no_permutation(resumed: Material, edit: Editor) -> None:
    def swap_and_halve(weight: torch.Tensor) -> torch.Tensor:
        changed = weight.t().contiguous()
        changed.view(-1)[int(weight.abs().argmin())] *= 2.0
        return changed

    verdict = judge(resumed, resumed=change(resumed, edit, OUTPUT, swap_and_halve))
    assert "of its norm off" in verdict.sentence


def test_a_stale_weight_is_that_of_before_step_1(resumed: Material, edit: Editor) -> None:
    run = Edit(capture_of(resumed), edit(capture_of(resumed)).out / "unused")
    first = run.tensor("parameter_before", QUERY, step=1)
    verdict = judge(resumed, resumed=change(resumed, edit, QUERY, lambda w: first))
    assert verdict.sentence == f"{QUERY} is saved as it was before step 1, not as it was when it was saved"


def test_a_load_that_changes_or_leaves_a_weight_is_told_from_a_wrong_file(resumed: Material, edit: Editor) -> None:
    run = Edit(capture_of(resumed), edit(capture_of(resumed)).out / "unused")
    first = run.tensor("parameter_before", QUERY, step=1)
    left = edit(taken_up(resumed)).put("parameter_before", QUERY, first)
    assert judge(resumed, resumed=left).sentence == (
        f"{QUERY} was not loaded: the resumed run holds it as before step 1, not as saved"
    )
    random = edit(taken_up(resumed)).change("parameter_before", QUERY, bump)
    verdict = judge(resumed, resumed=random)
    assert verdict.sentence.startswith(f"{QUERY} is ")
    assert verdict.sentence.endswith(" of its norm off in the resumed run, although it loaded without an error")
    assert verdict.measurements[25].holds is False
    bent = edit(taken_up(resumed)).change("parameter_before", QUERY, lambda w: w.reshape(-1))
    assert "was loaded in another shape" in judge(resumed, resumed=bent).sentence
    wider = edit(taken_up(resumed)).change("parameter_before", QUERY, lambda w: w.double())
    assert judge(resumed, resumed=wider).sentence == (
        f"{QUERY} is held in float64 by the resumed run, saved in float32"
    )
    lost = edit(taken_up(resumed)).change("parameter_before", QUERY, lambda w: w * torch.nan)
    assert f"{QUERY} is not a number in the resumed run" in judge(resumed, resumed=lost).sentence


def test_a_copy_of_a_tied_embedding_must_be_its_equal(resumed: Material, edit: Editor) -> None:
    def with_copy(value: Any) -> Edit:
        editing = edit(taken_up(resumed))
        entry = copy.deepcopy(editing.entry("checkpoint", EMBEDDING, step=0))
        editing.manifest["tensors"].append(entry | {"field": "lm_head.weight"})
        return editing.change("checkpoint", EMBEDDING, value, step=0, field="lm_head.weight")

    same = judge(resumed, resumed=with_copy(lambda w: w))
    assert (same.status, same.evidence["tied_copies"]) == (Status.PASS, ["lm_head.weight"])
    verdict = judge(resumed, resumed=with_copy(lambda w: 0.5 * w))
    assert verdict.sentence == (
        f"lm_head.weight is tied to {EMBEDDING} and saved apart, and differs from it by 0.5 of its norm"
    )
    assert verdict.first_wrong == "lm_head.weight"
    # Saved under the head's name alone, it is the embedding.
    alone = judge(resumed, resumed=with_copy(lambda w: w).drop("checkpoint", EMBEDDING, step=0, field=None))
    assert alone.evidence["lost"] == []
    assert alone.status is Status.PASS


def test_optimizer_states_are_held_to_the_runs(resumed: Material, edit: Editor) -> None:
    editing = edit(taken_up(resumed)).change("checkpoint_state", QUERY, bump, step=0, field="exp_avg")
    verdict = judge(resumed, resumed=editing)
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith(f"exp_avg of {QUERY} is saved wrong: differs from the run's by ")
    assert verdict.measurements[26].holds is False
    lost = edit(taken_up(resumed)).drop("checkpoint_state", QUERY, step=0, field="step")
    assert judge(resumed, resumed=lost).sentence == f"step of {QUERY} is not in the saved optimizer state"


def test_a_config_that_is_not_the_one_in_force_is_named(resumed: Material, edit: Editor) -> None:
    editing = edit(taken_up(resumed))
    saved(editing)["config"]["vocab_size"] = 513
    verdict = judge(resumed, resumed=editing)
    assert (verdict.status, verdict.sentence) == (Status.FAIL, "config.json says vocab_size 513, in force 512")
    assert verdict.first_wrong == "config.vocab_size"
    editing = edit(taken_up(resumed))
    saved(editing)["config"]["rope_parameters"]["rope_theta"] *= 2.0
    saved(editing)["config"]["tie_word_embeddings"] = True
    saved(editing)["config"]["transformers_version"] = "0.1"
    saved(editing)["config"]["layer_types"] = ["full_attention"]
    verdict = judge(resumed, resumed=editing)
    assert [name for name, _ in verdict.evidence["wrong"]] == [
        "config.layer_types",
        "config.rope_parameters.rope_theta",
        "config.tie_word_embeddings",
    ]
    assert verdict.measurements[-1].value == 3.0


def test_a_config_in_force_that_was_not_asked_for_is_named(resumed: Material) -> None:
    asked = {**resumed.asked_config, "rms_norm_eps": 1e-5, "use_cache": "whatever"}
    verdict = checkpoint_roundtrip.judge(replace(resumed, asked_config=asked))
    assert verdict.sentence == "config.json says rms_norm_eps 1e-06, asked 1e-05"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}, None),
        ({"r": 4, "lora_alpha": 8, "use_rslora": True}, "scales the adapters by 4 (lora_alpha 8), they were trained"),
        ({"r": 4, "lora_alpha": 7.9}, "scales the adapters by 1.975 (lora_alpha 7.9), they were trained with 2"),
        ({"r": 4, "lora_alpha": 7, "alpha_pattern": {"q_proj": 8}}, None),
        ({"r": 8, "lora_alpha": 16}, "adapter_config.json says r 8, asked 4"),
        ({"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}, "targets q_proj, asked q_proj, v_proj"),
        (None, "adapters are saved without adapter_config.json"),
    ],
)
def test_adapters_are_saved_with_what_trained_them(
    resumed: Material, config: dict[str, Any] | None, sentence: str | None
) -> None:
    (checkpoint,) = read_saved(taken_up(resumed))
    record = capture_of(resumed).step(3)
    found = list(compare_adapter_config(replace(checkpoint, adapter_config=config), resumed.spec, record))
    assert len(found) == (sentence is not None)
    assert sentence is None or sentence in found[0].sentence
    in_force = replace(record, scalars={"model.layers.0.self_attn.q_proj": {"scaling.default": 4.0}})
    if config == {"r": 4, "lora_alpha": 8, "use_rslora": True}:
        assert not list(compare_adapter_config(replace(checkpoint, adapter_config=config), resumed.spec, in_force))


def test_with_adapters_the_file_need_not_hold_the_frozen_base(resumed: Material, edit: Editor) -> None:
    run = edit(capture_of(resumed))
    record = run.step(3)
    record["trainable"], record["frozen"] = [QUERY], [n for n in record["trainable"] if n != QUERY]
    again = edit(taken_up(resumed))
    for name in again.names("checkpoint", step=0):
        if name != QUERY:
            again.drop("checkpoint", name, step=0)
    saved(again)["adapter_config"] = {"r": 4, "lora_alpha": 8.0}
    lora = replace(resumed, spec=replace(resumed.spec, lora=True))
    verdict = judge(lora, run=run, resumed=again)
    assert verdict.status is Status.PASS, verdict.sentence
    assert verdict.evidence["compared"] == {"saved": 1, "loaded": 1, "states": 75}


def test_a_state_of_another_step_and_a_contradicting_index_are_named(resumed: Material, edit: Editor) -> None:
    editing = edit(taken_up(resumed))
    saved(editing)["global_step"] = 1
    assert judge(resumed, resumed=editing).sentence == "the state is that after step 1, asked 2"
    editing = edit(taken_up(resumed))
    saved(editing)["index_errors"] = ["model.safetensors.index.json names x, which no file holds"]
    assert "names x, which no file holds" in judge(resumed, resumed=editing).sentence


def test_what_could_not_be_read_leaves_it_open(resumed: Material, edit: Editor) -> None:
    editing = edit(taken_up(resumed))
    note = {"rank": None, "step": None, "what": "checkpoint checkpoint-2, optimizer.pt", "why": "UnpicklingError: x"}
    editing.manifest["missing"].append(note)
    for key in [e for e in editing.manifest["tensors"] if e["kind"] == "checkpoint_state"]:
        editing.manifest["tensors"].remove(key)
    verdict = judge(resumed, resumed=editing)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == (
        "a part of the checkpoint could not be read (checkpoint checkpoint-2, optimizer.pt: UnpicklingError: x)"
    )
    bare = edit(taken_up(resumed))
    for name in bare.names("checkpoint", step=0):
        bare.drop("checkpoint", name, step=0)
    assert judge(resumed, resumed=bare).sentence.startswith("no weight of the checkpoint was read (")
    unasked = edit(taken_up(resumed))
    del unasked.manifest["checkpoints"]
    assert judge(resumed, resumed=unasked).sentence == (
        "the capture names no checkpoint; record it with --checkpoint DIR"
    )


def test_runs_that_are_not_there_leave_it_open(resumed: Material, edit: Editor) -> None:
    assert checkpoint_roundtrip.judge(replace(resumed, others={})).status is Status.INCONCLUSIVE
    crashed = replace(resumed, run=replace(resumed.run, capture=None))
    assert checkpoint_roundtrip.judge(crashed).sentence == "the run left no capture to judge; see run.completes"
    assert judge(resumed, run=edit(capture_of(resumed)).drop_step(3)).sentence == (
        "step 3 of the run was not recorded; record its last step"
    )
    unseen = edit(taken_up(resumed))
    for name in unseen.names("parameter_before"):
        unseen.drop("parameter_before", name)
    assert judge(resumed, resumed=unseen).sentence == "no parameter of the file was recorded in both runs"


def test_on_other_hardware_only_the_load_is_held_to_the_last_bit(
    resumed: Material, healthy: Material, edit: Editor
) -> None:
    elsewhere = change(resumed, edit, QUERY, bump)
    elsewhere.manifest["environment"]["hardware"]["cpu"] = "another kind"
    noisy = replace(resumed, references=healthy.references)
    assert judge(noisy, resumed=elsewhere).status is Status.PASS
    loaded = edit(taken_up(resumed)).change("parameter_before", QUERY, bump)
    loaded.manifest["environment"]["hardware"]["cpu"] = "another kind"
    assert judge(noisy, resumed=loaded).status is Status.FAIL
    alone = edit(taken_up(resumed))
    alone.manifest["environment"]["hardware"]["cpu"] = "another kind"
    assert judge(resumed, resumed=alone).sentence == (
        "the runs were on different CPUs, and there is no noise floor: no reference was computed"
    )


def test_a_manifest_with_other_checkpoints_is_refused(resumed: Material, edit: Editor) -> None:
    editing = edit(taken_up(resumed))
    editing.manifest["checkpoints"] = ["x"]
    with pytest.raises(CaptureError, match="has checkpoints that are no list of objects; record the capture again"):
        read_saved(editing.save())


def test_nested_settings_are_read_by_dotted_keys() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": [2]}, "e": None}) == {"a.b.c": 1, "a.d": [2], "e": None}
    assert flatten(None) is None
    assert flatten([1]) is None


def test_a_run_of_one_step_is_skipped(resumed: Material) -> None:
    assert checkpoint_roundtrip.CHECK.applies(replace(resumed.spec, steps=1)) is not None
    assert checkpoint_roundtrip.CHECK.roles == (Role.RUN, Role.RESUMED)
