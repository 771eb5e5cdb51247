"""A finding's signature: the same for the same fault again, another one for another fault."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.matching.positions import read_positions
from checks.matching.scale import classify
from checks.matching.signature import DIGEST, VERSION, Signature, read_signature
from checks.matching.wording import generalise_module, generalise_place, generalise_sentence

WEIGHTS = ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "lm_head.weight")


def gradients(scale: float, *, noise: float = 0.0, cosine: float = 1.0, layer: int = 0) -> dict[str, Any]:
    """The document of `step.gradients` where every gradient is the same multiple of its reference."""
    names = [name.replace("layers.0", f"layers.{layer}") for name in WEIGHTS]
    return {
        "check": "step.gradients",
        "status": "fail",
        "sentence": f"every gradient is {scale:.4g}× the reference, cosine 1.000 from embedding to head: the loss is "
        "normalised by the wrong count",
        "pattern": "objective-scale",
        "first_wrong": None,
        "measurements": [{"name": name, "holds": False, "value": abs(scale - 1), "threshold": 1e-5} for name in names],
        "evidence": {
            "scale": scale,
            "scales": dict.fromkeys(names, scale + noise),
            "cosines": dict.fromkeys(names, cosine),
        },
    }


def module_fault(layer: int, module: str = "self_attn.q_proj", error: float = 0.183) -> dict[str, Any]:
    path = f"model.layers.{layer}.{module}"
    sentence = (
        f"the forward first differs in {path} (Linear): on its own inputs its output is off by {error:.3g}, allowed "
        f"1.6e-06; 8 of 8 gradients differ in direction (worst {path}.weight: error {error:.3g} of its norm)"
    )
    return {"check": "step.gradients", "sentence": sentence, "first_wrong": path, "measurements": [], "evidence": {}}


def ended(said: str, *, ending: str = "failed", exit_code: int = 1) -> dict[str, Any]:
    sentence = f"the framework's run ended with exit code {exit_code} after 3 s ({said})"
    evidence = {"ending": ending, "exit_code": exit_code, "last_output": ""}
    return {"check": "run.completes", "sentence": sentence, "evidence": evidence, "measurements": []}


def test_a_key_is_short_and_says_its_version() -> None:
    version, digest = read_signature(gradients(0.5)).key.split(":")
    assert (version, len(digest)) == (str(VERSION), DIGEST)


@given(st.floats(-1e-5, 1e-5), st.integers(0, 80))
def test_the_next_seed_and_another_layer_have_the_same_key(noise: float, layer: int) -> None:
    assert read_signature(gradients(0.5, noise=noise, layer=layer)).key == read_signature(gradients(0.5)).key


@given(st.integers(0, 200), st.floats(1e-4, 10.0))
def test_a_module_is_the_same_in_every_layer_and_by_whatever_it_is_off(layer: int, error: float) -> None:
    assert read_signature(module_fault(layer, error=error)).key == read_signature(module_fault(3)).key


@pytest.mark.parametrize("scale", [2.0, 4.0, 0.25, 8.0, 1.384, 0.994, -0.5])
def test_another_factor_is_another_signature(scale: float) -> None:
    assert read_signature(gradients(scale)).key != read_signature(gradients(0.5)).key


def test_another_module_and_another_check_are_other_signatures() -> None:
    ours = read_signature(module_fault(0))
    assert read_signature(module_fault(0, "mlp.up_proj")).key != ours.key
    assert read_signature({**module_fault(0), "check": "step.activations"}).key != ours.key


def test_a_signature_is_told_in_a_line() -> None:
    assert read_signature(gradients(0.5)).describe() == (
        "step.gradients · every gradient is #× the reference, cosine # from embedding to head: the loss is normalised "
        "by the wrong count · ×1/2"
    )


def test_a_factor_that_differs_between_tensors_is_none() -> None:
    document = gradients(0.5)
    document["evidence"]["scales"]["lm_head.weight"] = 2.0
    assert read_signature(document).scale == ""
    assert read_signature(gradients(0.5, cosine=0.9)).scale == ""


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (0.5, "×1/2"),
        (0.50002, "×1/2"),
        (3.0, "×3"),
        (2.0 / 3.0, "×2/3"),
        (65536.0, "×65536"),
        (1.0 / 1024.0, "×1/1024"),
        (-1.0, "×-1"),
        (0.0, "×0"),
        (1.0005, ""),
        (0.9738, "× an odd factor near 1"),
        (1.0074, "× an odd factor near 1"),
        (1.384, "× an odd factor above 1"),
        (0.37, "× an odd factor below 1"),
        (float("nan"), "× no finite factor"),
        (float("inf"), "× no finite factor"),
    ],
)
def test_a_factor_is_a_simple_ratio_or_an_odd_one(factor: float, said: str) -> None:
    assert classify(factor) == said


def test_a_denominator_a_lone_objective_and_a_loaded_weight_show_a_factor_too() -> None:
    denominator = {"check": "step.denominator", "evidence": {"total": 335, "in_force": 670.0}}
    objective = {
        "check": "step.loss",
        "measurements": [{"name": "objective", "holds": False}],
        "evidence": {"loss": {"framework": 54.56, "reference": 6.82}},
    }
    pooled = {
        "check": "step.gradients",
        "measurements": [{"name": "pooled scale", "holds": False}],
        "evidence": {"scale": 2.0, "scales": {}, "cosines": {}},
    }
    halved = {
        "check": "step.settings",
        "evidence": {"weights_off": {"lm_head.weight": {"relative": 0.5, "scale": 0.5}}},
    }
    drawn = {
        "check": "step.settings",
        "evidence": {"weights_off": {"lm_head.weight": {"relative": 1.41, "scale": 0.1}}},
    }
    found = [read_signature(each).scale for each in (denominator, objective, pooled, halved, drawn)]
    assert found == ["×1/2", "×8", "×2", "×1/2", "other numbers"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({0: range(8)}, "every token"),
        ({0: range(4, 8)}, "tokens behind a document's boundary"),
        ({0: [0, 4]}, "the first token of documents"),
        ({0: [3, 7]}, "the last token of documents"),
        ({0: [2, 3, 6, 7]}, "tokens from a position on"),
        ({0: [1, 6]}, "some tokens"),
        ({}, "no token"),
    ],
)
def test_the_wrong_tokens_are_a_class(wrong: dict[int, list[int]], said: str) -> None:
    reference = [[2.0] * 8]
    framework = [[2.5 if position in wrong.get(0, ()) else 2.0 for position in range(8)]]
    micro = {
        "reference": reference,
        "framework": framework,
        "counted": [[True] * 8],
        "documents": [[0, 0, 4], [0, 4, 8]],
    }
    assert read_positions({"tokens": [micro]}, threshold=0.1) == said
    assert read_positions({"tokens": [{**micro, "reference": None}]}, threshold=0.1) == ""
    assert read_positions({"tokens": [micro]}, threshold=None) == ""


def test_tokens_that_do_not_count_or_are_no_number_are_not_looked_at() -> None:
    micro = {
        "reference": [[2.0, 2.0, 2.0]],
        "framework": [["nan", 9.0, 2.0]],
        "counted": [[True, False, True]],
        "documents": [[0, 0, 3]],
    }
    assert read_positions({"tokens": [micro]}, threshold=0.1) == "no token"


def ranks(wrong: set[int], *, count: int = 4, named: list[int] | None = None) -> str:
    measured = [{"name": f"token losses of rank {rank}", "holds": rank not in wrong} for rank in range(count)]
    document = {"check": "parallel.gradients", "measurements": measured, "evidence": {"ranks": named or []}}
    return read_signature(document).ranks


def test_the_ranks_are_a_class() -> None:
    assert [ranks(each) for each in ({0, 1, 2, 3}, {1, 2, 3}, {0}, {2}, {1, 2}, set())] == [
        "every rank",
        "every rank but the first",
        "the first rank",
        "one rank",
        "some ranks",
        "",
    ]
    assert ranks(set(), named=[1]) == ranks(set(), named=[3]) == "one rank"


def test_a_crash_is_its_exception_and_innermost_frame_without_line_and_message() -> None:
    one = read_signature(ended("KeyError: 'labels' (transformers/trainer.py:2103, in compute_loss)"))
    assert (one.exception, one.frame) == ("KeyError", "transformers/trainer.py, compute_loss")
    assert read_signature(ended("KeyError: 'x' (transformers/trainer.py:2107, in compute_loss)")).key == one.key
    assert read_signature(ended("KeyError: 'labels' (trl/trainer.py:2103, in compute_loss)")).key != one.key
    assert read_signature(ended("ValueError: 'labels' (transformers/trainer.py:2103, in compute_loss)")).key != one.key
    nested = read_signature(ended("RuntimeError: size (2) is not (3): see (a) (torch/nn/modules.py:9, in <module>)"))
    assert (nested.exception, nested.frame) == ("RuntimeError", "torch/nn/modules.py, <module>")


@pytest.mark.parametrize("part", ["(", "()", "(E: x (f:1, in ", " (a:1, in b", "model.", "'", "1,", ", worst "])
def test_a_sentence_of_any_length_is_read_in_one_go(part: str) -> None:
    sentence = part * 5_000
    begin = time.process_time()
    read_signature({"check": "step.loss", "sentence": sentence, "first_wrong": sentence})
    read_signature(ended(sentence))
    assert time.process_time() - begin < 2.0


def test_a_run_that_is_stopped_is_how_it_ended() -> None:
    stopped = [
        read_signature(ended("it printed nothing", ending="timed_out", exit_code=124)),
        read_signature(ended("last output: step 2", ending="failed", exit_code=139)),
        read_signature(ended("last output: step 2", ending="out_of_memory", exit_code=137)),
    ]
    assert [each.describe() for each in stopped] == [
        "run.completes · timed out",
        "run.completes · failed · signal 11",
        "run.completes · out of memory · signal 9",
    ]


def test_a_number_that_is_not_finite_is_named_without_its_layer_and_step() -> None:
    document: dict[str, Any] = {
        "check": "run.completes",
        "sentence": "3 recorded values are not finite, first gradient model.layers.1.mlp.up_proj.weight, step 2",
        "first_wrong": "gradient model.layers.1.mlp.up_proj.weight, step 2",
        "evidence": {"ending": "completed", "exit_code": 0},
    }
    found = read_signature(document)
    assert found.module == "gradient mlp.up_proj.weight, step #"
    assert read_signature({**document, "first_wrong": document["first_wrong"].replace("1", "0")}).module == found.module


def test_a_verdict_that_says_nothing_has_the_signature_of_its_check() -> None:
    assert read_signature({"check": "step.loss"}) == Signature("step.loss")
    empty: dict[str, Any] = {
        "check": "step.loss",
        "sentence": "",
        "first_wrong": None,
        "measurements": [],
        "evidence": None,
    }
    assert read_signature(empty) == Signature("step.loss")
    with pytest.raises(KeyError, match="check"):
        read_signature({"sentence": "something differs"})


@pytest.mark.parametrize(
    ("sentence", "statement"),
    [
        ("lm_head.weight is saved in bfloat16 (and 20 more)", "lm_head.weight is saved in bfloat16"),
        ("the loss is divided by 670, and 335 tokens count", "the loss is divided by #, and # tokens count"),
        ("the loss is divided by 41.875, and 1,335 tokens count", "the loss is divided by #, and # tokens count"),
        ("whole answers are not trained (57 tokens), in 2 of 8 documents; first at 1", "whole answers are not trained"),
        ("inv_freq of model.rotary_emb is [1, 0.2, …], asked [1, 0.3, …]", "inv_freq of rotary_emb is …, asked …"),
        ("63 updates of step 1 differ, worst model.norm.weight (step 1): off by 1", "# updates of step # differ"),
        ("'<|im_end|>' must be trained and is not", "… must be trained and is not"),
    ],
)
def test_a_sentence_is_its_first_statement_without_numbers(sentence: str, statement: str) -> None:
    assert generalise_sentence(sentence) == statement


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("model.layers.3.self_attn.q_proj.weight", "self_attn.q_proj.weight"),
        ("model.layers.3.mlp.experts.7.down_proj.weight", "mlp.experts.down_proj.weight"),
        ("model.layers.3", "layer"),
        ("model.norm.weight", "norm.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("model", "model"),
    ],
)
def test_a_module_is_its_kind(path: str, kind: str) -> None:
    assert generalise_module(path) == kind


def test_a_place_has_no_numbers() -> None:
    assert generalise_place("rank 1, 3: model.layers.1.mlp.up_proj.weight") == "rank #, #: mlp.up_proj.weight"
    assert generalise_place("exported weight behind position 19") == "exported weight behind position #"
    assert generalise_place("") == ""
