"""The class beside the plain model on a captured batch, with and without choices that a run made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.captures.blocks import WHOLE
from checks.captures.differences import project
from checks.references.definition import compare_definition
from checks.references.model import ModelSource, State, choose_source
from checks.references.plain import FAMILIES, load_plain
from checks.references.reference import Reference
from checks.references.routing import ChoiceError
from checks.references.step import run_step
from checks.spec import RunSpec
from tests.references.checkpoints import draw_batch, save_checkpoint
from tests.references.test_routing import one_micro_batch

NONE = State({}, {})


def compute_plain(source: ModelSource, **changes: Any) -> Reference:
    """A reference as `compute_reference` leaves it, of the plain model and without variants."""
    micro = one_micro_batch(draw_batch())
    model = load_plain(source.checkpoint, dtype=torch.float64, attention="eager")
    result = run_step(model, [micro], denominator=46)
    reference = Reference(
        source=source,
        step=1,
        micro_batches=(micro,),
        denominator=46,
        loss=result.loss,
        auxiliary=0.0,
        token_losses=result.token_losses,
        gradients={name: project(name, gradient, WHOLE) for name, gradient in result.gradients.items()},
        weights={},
        variants=(),
        choices=(),
        lifted_casts=(),
        notes=(),
        epsilon=2.0**-24,
    )
    return replace(reference, **changes)


def spec_of(checkpoint: Path) -> RunSpec:
    return RunSpec(framework="transformers", model=checkpoint, data=checkpoint, attention="eager")


def worst(errors: Mapping[str, float]) -> tuple[str, float]:
    return max(errors.items(), key=lambda item: item[1])


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "gpt_oss", "gemma3_text"])
def test_each_family_is_judged_by_its_plain_model(tmp_path: Path, family: str) -> None:
    source = choose_source(save_checkpoint(tmp_path, family))
    assert (source.plain, source.why, source.shared) == (True, "", ())
    definition = compare_definition(spec_of(tmp_path), compute_plain(source), NONE)
    assert worst(definition.errors)[1] < 1e-12
    assert definition.class_name.startswith("transformers' ")
    assert len(definition.lifted_casts) > 0


def test_a_family_without_a_plain_model_says_so(tmp_path: Path) -> None:
    source = choose_source(save_checkpoint(tmp_path, "glm4_moe"))
    assert not source.plain
    assert source.why == f"model_type 'glm4_moe' is none of {', '.join(FAMILIES)}"


def test_a_reference_that_replayed_choices_is_computed_again(tmp_path: Path) -> None:
    source = choose_source(save_checkpoint(tmp_path, "qwen3_moe"))
    replayed = compute_plain(source, loss=1.0, choices=(ChoiceError("model.layers.0.mlp.gate", 48, 1, 1e-9, 1e-7),))
    assert worst(compare_definition(spec_of(tmp_path), replayed, NONE).errors)[1] < 1e-12
    with_auxiliary = compute_plain(source, loss=1.0, auxiliary=0.01)
    assert worst(compare_definition(spec_of(tmp_path), with_auxiliary, NONE).errors)[1] < 1e-12


def test_a_reference_of_its_own_choices_is_taken_as_it_is(tmp_path: Path) -> None:
    source = choose_source(save_checkpoint(tmp_path, "gemma3_text"))
    right = compute_plain(source)
    errors = compare_definition(spec_of(tmp_path), replace(right, loss=right.loss * 1.5), NONE).errors
    name, error = worst(errors)
    assert name == "loss"
    assert error == pytest.approx(1 / 3, rel=1e-12)


def test_a_class_that_departs_from_the_definition_is_seen(tmp_path: Path) -> None:
    # The class does not apply the cap of the scores: see docs/references.md.
    source = choose_source(save_checkpoint(tmp_path, "gemma3_text", attn_logit_softcapping=2.0))
    assert worst(compare_definition(spec_of(tmp_path), compute_plain(source), NONE).errors)[1] > 1e-3
