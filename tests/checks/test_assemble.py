"""What is read and computed of the captures before anything is judged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from checks import assemble as assembling
from checks.assemble import assemble
from checks.captures.capture import Capture
from checks.diagnosis.repetition import same_gradients
from checks.material import Material, RunOutcome
from checks.references.auxiliary import AuxiliaryLoss
from checks.references.balance import load_balancing_loss
from checks.references.budget import OverBudget, check_memory, count_parameters, reference_memory
from checks.references.captured_state import captured_state
from checks.references.corpus import render_corpus
from checks.references.model import NoReference
from checks.references.reference import refuse_dropout
from checks.references.step import ForwardBatch, count_targets, lay_out, positions
from checks.roles import Role
from tests.checks.conftest import Editor
from tests.checks.editing import capture_of, first_reference

NORM = "model.norm.weight"
CRASHED = RunOutcome("failed", 1, 1.0, None, None, None)


def test_everything_that_the_judges_need_is_there(healthy: Material) -> None:
    assert set(healthy.references) == set(healthy.batches) == {1, 3}
    assert healthy.no_reference == {}
    assert (healthy.total_steps, healthy.expected_adapters) == (3, ())
    assert NORM not in healthy.weight_decay_names
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= healthy.weight_decay_names
    assert len(healthy.weight_decay_names) == 25 - 9
    assert healthy.definition is not None
    assert "model.rotary_emb" in healthy.expected_scalars
    reference = first_reference(healthy)
    assert (reference.step, reference.denominator, reference.auxiliary) == (1, 335, 0.0)
    assert (reference.notes, reference.epsilon) == ((), 2.0**-24)
    assert healthy.references[3].notes == ("this step starts from captured weights",)
    forms = [variant.name for variant in reference.variants]
    assert len(forms) == len(set(forms)) == 9


def test_a_later_step_starts_from_the_captured_weights(healthy: Material) -> None:
    state = captured_state(healthy.spec, capture_of(healthy), 3)
    assert (len(state.parameters), state.adapters) == (25, {})
    assert captured_state(healthy.spec, capture_of(healthy), 1).parameters == {}
    before = capture_of(healthy).tensors(3, "parameter_before")[NORM].read("full")
    assert before is not None
    assert torch.equal(state.parameters[NORM], before)
    weight = healthy.references[3].weights[NORM].full
    assert weight is not None
    assert torch.equal(weight, before.double())


def test_state_that_was_recorded_as_sketches_gives_no_reference(healthy: Material, edit: Editor) -> None:
    sketched = edit(healthy.capture).keep_sketches().save()
    with pytest.raises(NoReference, match="step 3 starts from captured weights, and they were recorded as sketches"):
        captured_state(healthy.spec, sketched, 3)
    adapter = "model.q_proj.lora_A.weight"
    capture = edit(healthy.capture).rename("parameter_before", NORM, adapter).save()
    assert list(captured_state(healthy.spec, capture, 1).adapters) == [adapter]
    bare = edit(capture).keep_sketches().save()
    with pytest.raises(
        NoReference, match=r"lora_A\.weight was not recorded in full; record with --full-parameters lora_"
    ):
        captured_state(healthy.spec, bare, 1)


def test_a_run_that_trains_parameters_of_other_names_has_no_reference(healthy: Material, edit: Editor) -> None:
    editor = edit(healthy.capture)
    editor.step(1)["trainable"] = [f"language_model.{name}" for name in healthy.capture.step(1).trainable]
    renamed = replace(healthy.run, capture=editor.save())
    material = assemble(healthy.spec, {Role.RUN: renamed}, references=True, definition=False)
    assert 1 not in material.references
    assert material.no_reference[1].startswith(
        "none of the 25 parameters that the run trains (language_model.lm_head.weight"
    )
    assert "no name map says which" in material.no_reference[1]


def test_a_run_without_a_capture_or_a_step_has_nothing_to_refer_to(healthy: Material, edit: Editor) -> None:
    crashed = assemble(healthy.spec, {Role.RUN: CRASHED}, references=True, definition=True)
    assert (crashed.batches, crashed.references) == ({}, {})
    assert crashed.why_not() == "the run left no capture to judge; see run.completes"
    stepless = replace(healthy.run, capture=edit(healthy.capture).drop_step(1).drop_step(3).save())
    empty = assemble(healthy.spec, {Role.RUN: stepless}, references=True, definition=True)
    assert (empty.batches, empty.references) == ({}, {})


def test_references_are_computed_only_when_asked(healthy: Material) -> None:
    bare = assemble(healthy.spec, {Role.RUN: healthy.run}, references=False, definition=False)
    assert (bare.references, bare.definition, set(bare.batches)) == ({}, None, {1, 3})
    assert bare.first_reference() is None
    assert bare.why_not(1) == "no reference was computed"


def test_a_batch_that_cannot_be_read_is_the_reason_for_no_reference(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture).drop_step(3).drop("batch", "input_ids", micro_batch=0)
    material = assemble(
        healthy.spec, {Role.RUN: replace(healthy.run, capture=editing.save())}, references=True, definition=True
    )
    reason = "micro-batch 0 of step 1 holds no input_ids"
    assert material.no_reference == {1: reason}
    assert (material.why_not(1), material.why_not(), material.why_not(3)) == (reason, reason, reason)
    assert material.no_definition == reason


def test_dropout_refuses_a_reference_and_names_the_module(healthy: Material, edit: Editor) -> None:
    refuse_dropout(capture_of(healthy), 1)
    editing = edit(healthy.capture)
    attention = editing.step()["scalars"]["model.layers.0.self_attn"]
    attention["attention_dropout"] = 0.1
    with pytest.raises(NoReference, match=r"dropout is on \(model\.layers\.0\.self_attn\.attention_dropout = 0\.1\)"):
        refuse_dropout(editing.save(), 1)


def test_two_passes_are_the_same_step_up_to_the_rounding_of_their_sketches(healthy: Material, edit: Editor) -> None:
    capture = capture_of(healthy)
    assert same_gradients(capture, capture, 1)
    norm = capture.tensors(1, "gradient")[NORM].norm
    assert norm < 1.0  # so the rounding is that of one

    def moved(amount: float) -> Capture:
        def change(gradient: torch.Tensor) -> torch.Tensor:
            changed = gradient.double()
            changed[0] += amount
            return changed

        return edit(capture).change("gradient", NORM, change).save()

    assert same_gradients(capture, moved(0.9e-12), 1)
    assert not same_gradients(capture, moved(1.1e-12), 1)
    assert not same_gradients(capture, edit(capture).drop("gradient", NORM).save(), 1)
    bare = edit(capture)
    del bare.entry("gradient", NORM)["representations"]["sketch"]
    assert not same_gradients(capture, bare.save(), 1)


def test_large_gradients_may_move_with_their_size(healthy: Material, edit: Editor) -> None:
    capture = capture_of(healthy)
    big = edit(capture).change("gradient", NORM, lambda g: 1e3 * g.double() / g.double().norm()).save()

    def moved(amount: float) -> Capture:
        def change(gradient: torch.Tensor) -> torch.Tensor:
            changed = gradient.clone()
            changed[0] += amount
            return changed

        return edit(big).change("gradient", NORM, change).save()

    assert same_gradients(big, moved(0.9e-9), 1)
    assert not same_gradients(big, moved(1.1e-9), 1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(4, 4)
        self.v_proj = nn.Linear(4, 4)
        self.q_norm = nn.LayerNorm(4)


def test_adapters_are_both_factors_of_every_target(healthy: Material) -> None:
    model = nn.ModuleDict({"a": Attention(), "q_proj": nn.Identity()})
    spec = replace(healthy.spec, lora=True, lora_targets=("q_proj",))
    assert assembling._expected_adapters(model, spec) == ("a.q_proj.lora_A.weight", "a.q_proj.lora_B.weight")
    assert assembling._decaying(model) == {"a.q_proj.weight", "a.v_proj.weight"}
    assert assembling._decaying(nn.Linear(2, 2)) == {"weight"}


def test_the_corpus_is_every_sample_rendered(healthy: Material) -> None:
    corpus = render_corpus(healthy.spec)
    assert corpus is not None
    assert (len(corpus.documents), corpus.seq_len, corpus.pad_token_id) == (64, 128, 0)
    micro = healthy.batches[1][0]
    document = micro.documents[0]
    assert tuple(micro.input_ids[0, document.start : document.stop].tolist()) in corpus.documents
    assert render_corpus(replace(healthy.spec, model=healthy.spec.data.parent)) is None


def test_a_reference_that_would_not_fit_is_refused_beforehand(
    healthy: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = sum(g.full.numel() for g in first_reference(healthy).gradients.values() if g.full is not None)
    assert count_parameters(healthy.spec.model) == count
    assert reference_memory(healthy.spec.model) == 32 * count
    assert reference_memory(healthy.spec.model, objective="dpo") == 44 * count  # and the model that it began as
    check_memory(healthy.spec.model)

    class Memory:
        available = 40 * count - 10  # 32 · count is 0.8 of 40 · count

    monkeypatch.setattr("checks.references.budget.psutil.virtual_memory", lambda: Memory)
    with pytest.raises(OverBudget, match=r"the float64 reference needs about 0\.0 GB, and 0\.0 GB are free"):
        check_memory(healthy.spec.model)
    Memory.available = 40 * count + 10
    check_memory(healthy.spec.model)


def test_documents_are_laid_out_alone_padded_on_either_side_or_all_at_once(packed: Material) -> None:
    batches = packed.batches[1]
    assert count_targets(batches) == 451
    alone = lay_out(batches, "documents")
    assert [len(group) for group in alone] == [3, 4]
    assert all(batch.attention_mask is None for group in alone for batch in group)
    assert all(positions(batch) is None for group in alone for batch in group)
    right, left = lay_out(batches, "right")[0][0], lay_out(batches, "left")[0][0]
    assert right.input_ids.shape == left.input_ids.shape == (3, 82)
    document = batches[0].documents[0]
    tokens = batches[0].input_ids[0, : document.stop]
    assert torch.equal(right.input_ids[0, :74], tokens)
    assert torch.equal(left.input_ids[0, 8:], tokens)
    assert left.attention_mask is not None
    assert left.attention_mask[0].tolist() == [0] * 8 + [1] * 74
    found = positions(left)
    assert found is not None
    assert found[0].tolist() == [0] * 8 + list(range(74))
    assert positions(right) is None
    assert int((left.targets != -100).sum()) == 199
    (merged,) = lay_out(batches, "merged")
    assert merged[0].input_ids.shape == (7, 82)
    assert int((merged[0].targets != -100).sum()) == 451


def test_an_auxiliary_loss_is_one_only_where_the_config_asks_for_it(healthy: Material) -> None:
    batches = healthy.batches[1]
    asked = {"output_router_logits": True, "router_aux_loss_coef": 0.25, "num_experts_per_tok": 2}
    found = AuxiliaryLoss.of(asked, batches)
    assert found is not None
    assert (found.coefficient, found.top_k, found.micro_batches) == (0.25, 2, 2)
    for key, value in (("output_router_logits", False), ("router_aux_loss_coef", 0.0), ("num_experts_per_tok", None)):
        assert AuxiliaryLoss.of({**asked, key: value}, batches) is None


class TinyRouter(nn.Linear):
    pass


def test_the_auxiliary_term_is_the_mean_over_micro_batches_of_real_tokens(healthy: Material) -> None:
    model = nn.Sequential(TinyRouter(4, 3), nn.Linear(3, 4), TinyRouter(4, 3)).double()
    auxiliary = AuxiliaryLoss(0.25, 2, 2)
    term = auxiliary.hook(model)
    assert auxiliary.hook(model) is not None  # hooked once, however often it is asked
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    ids = torch.zeros(2, 3, dtype=torch.int64)
    seen = [model[0](x), model[2](model[1](model[0](x)))]
    auxiliary._logits.clear()
    model(x)
    value = term([ForwardBatch(ids, ids, mask, ())])
    assert value is not None
    real = mask.reshape(-1).bool()
    expected = 0.25 * load_balancing_loss([logits[real] for logits in seen], top_k=2) / 2
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    assert auxiliary.last_total == float(value.detach())
    assert term([ForwardBatch(ids, ids, None, ())]) is None
    model(x)
    again = term([ForwardBatch(ids, ids, None, ())])
    assert again is not None
    assert auxiliary.last_total == pytest.approx(float(value.detach()) + float(again.detach()))
