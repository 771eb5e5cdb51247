"""The recorder around a plain torch loop: what is recorded, and what is not."""

from __future__ import annotations

import sys

import pytest
import torch
from plumbline_capture.sketch import row_norms, sample_positions, sketch

from tests.capture.plain_lm import POSITIONS, ROWS, PlainLM, tokens_of
from tests.capture.running import PLAIN_LM, Recorded, run_plain, run_recorded
from workers.frameworks.interpreter import framework_python


@pytest.fixture(scope="module")
def everyday(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    out = tmp_path_factory.mktemp("everyday") / "capture"
    options = ("--modules", r"blocks\.[01]", "--full-parameters", r"blocks\.0\.up\.weight")
    return run_recorded(out, framework_python(), str(PLAIN_LM), "everyday", options=options)


@pytest.fixture(scope="module")
def clipping_early(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    out = tmp_path_factory.mktemp("early") / "capture"
    return run_recorded(out, framework_python(), str(PLAIN_LM), "clipping-early", options=("--full", "--steps", "2"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    out = tmp_path_factory.mktemp("compiled") / "capture"
    return run_recorded(out, sys.executable, str(PLAIN_LM), "compiled", options=("--steps", "1"))


def test_the_runs_end_as_they_do_without_the_recorder(
    everyday: Recorded, clipping_early: Recorded, compiled: Recorded
) -> None:
    plain = run_plain(sys.executable, str(PLAIN_LM), "everyday", "clipping-early", "compiled")
    assert plain.stdout == everyday.stdout + clipping_early.stdout + compiled.stdout
    assert [len(line) for line in plain.stdout.split()] == [64, 64, 64]
    assert (plain.returncode, everyday.code, clipping_early.code, compiled.code) == (0, 0, 0, 0)


def test_nothing_is_missing_and_only_the_asked_steps_are_there(everyday: Recorded) -> None:
    manifest = everyday.manifest
    assert manifest["missing"] == []
    assert [record["step"] for record in manifest["ranks"][0]["steps"]] == [1, 3]
    names = sorted(path.name for path in everyday.out.iterdir())
    assert names == ["manifest.json", "step00001-rank00000.safetensors", "step00003-rank00000.safetensors"]
    assert [file["bytes"] for file in manifest["files"]] == [(everyday.out / name).stat().st_size for name in names[1:]]


def test_positional_arguments_take_their_names_from_the_forward(everyday: Recorded) -> None:
    names = {entry["name"] for entry in everyday.entries(kind="batch", step=1, micro_batch=0)}
    assert names == {"tokens", "mask"}
    generator = torch.Generator().manual_seed(1)
    tokens_of(generator)  # went to the evaluation
    expected = tokens_of(generator)
    expected[0, -3:] = 5
    assert torch.equal(everyday.tensor("full", kind="batch", name="tokens", step=1, micro_batch=0), expected)


def test_evaluation_metrics_copies_and_recomputation_are_not_recorded(everyday: Recorded) -> None:
    record = everyday.step(1)
    assert len(record["micro_batches"]) == 2
    assert [len(micro["cross_entropy"]) for micro in record["micro_batches"]] == [1, 1]
    assert len(everyday.entries(kind="module_output", step=1, name="blocks.0", micro_batch=0)) == 1
    assert record["model"]["gradient_checkpointing"] is True


def test_the_target_is_as_the_loss_sees_it_with_ignored_labels_at_minus_100(everyday: Recorded) -> None:
    tokens = everyday.tensor("full", kind="batch", name="tokens", step=3, micro_batch=1)
    target = everyday.tensor("full", kind="target", step=3, micro_batch=1)
    assert torch.equal(target, torch.where(tokens == 5, -100, tokens)[:, 1:])
    cross_entropy = everyday.step(3)["micro_batches"][1]["cross_entropy"][0]
    assert cross_entropy["counted"] == int((target != -100).sum())
    assert (cross_entropy["ignore_index"], cross_entropy["reduction"]) == (-7, "mean")


def test_token_losses_average_to_the_scalar_that_is_back_propagated(everyday: Recorded) -> None:
    losses = everyday.tensor("full", kind="token_loss", step=1, micro_batch=0)
    target = everyday.tensor("full", kind="target", step=1, micro_batch=0)
    assert losses.dtype == torch.float64
    assert losses.shape == (ROWS, POSITIONS - 1)
    assert bool((losses[target == -100] == 0).all())
    backward = everyday.step(1)["micro_batches"][0]["backward"]
    assert backward == pytest.approx(float(losses.sum() / (target != -100).sum()) / 2, rel=1e-6)


def test_the_clip_factor_is_that_of_the_norm_and_was_applied(everyday: Recorded) -> None:
    (clip,) = everyday.step(1)["clips"]
    assert (clip["after_backward"], clip["max_norm"], clip["norm_type"]) == (2, 0.05, 2.0)
    assert clip["factor"] == pytest.approx(0.05 / (clip["total_norm"] + 1e-6), rel=1e-12)
    assert 0.0 <= clip["factor_error"] < 1e-6
    norms = [entry["stats"]["norm"] for entry in everyday.entries(kind="gradient", step=1)]
    assert clip["total_norm"] == pytest.approx(sum(norm * norm for norm in norms) ** 0.5, rel=1e-6)


def test_the_gradient_is_the_one_before_clipping(everyday: Recorded) -> None:
    factor = everyday.step(1)["clips"][0]["factor"]
    wanted = {"step": 1, "name": "head.weight"}
    before = everyday.tensor("sample", kind="gradient", **wanted)
    after = everyday.tensor("sample", kind="gradient_clipped", **wanted)
    torch.testing.assert_close(after, before * factor, rtol=1e-6, atol=0)


def test_representations_are_those_of_the_full_tensor(everyday: Recorded) -> None:
    wanted = {"kind": "parameter_before", "step": 1, "name": "blocks.0.up.weight"}
    full = everyday.tensor("full", **wanted)
    assert full.numel() > 4096
    assert torch.equal(everyday.tensor("sketch", **wanted), sketch(full, wanted["name"]))
    positions = sample_positions(str(wanted["name"]), full.numel())
    assert torch.equal(everyday.tensor("sample", **wanted), full.reshape(-1)[positions])
    assert torch.equal(everyday.tensor("row_norms", **wanted), row_norms(full))
    torch.manual_seed(0)
    assert torch.equal(full, PlainLM().blocks[0].up.weight)


def test_large_tensors_are_whole_only_where_asked(everyday: Recorded) -> None:
    (large,) = everyday.entries(kind="gradient", step=1, name="blocks.0.down.weight")
    assert sorted(large["representations"]) == ["row_norms", "sample", "sketch"]
    (small,) = everyday.entries(kind="gradient", step=1, name="blocks.0.norm.weight")
    assert sorted(small["representations"]) == ["full", "sample", "sketch"]


def test_adamw_replayed_in_float64_gives_the_recorded_parameters(everyday: Recorded) -> None:
    name, lr = "blocks.1.down.weight", 1e-2
    before, after, gradient = (
        everyday.tensor("sample", kind=kind, step=1, name=name).double()
        for kind in ("parameter_before", "parameter_after", "gradient_clipped")
    )
    (group,) = [g for g in everyday.step(1)["optimizer"]["groups"] if name in g["parameters"]]
    assert (group["settings"]["weight_decay"], group["settings"]["lr"]) == (0.0, lr)
    torch.testing.assert_close(after, before - lr * gradient / (gradient.abs() + 1e-8), rtol=0, atol=2e-8)
    assert everyday.entries(kind="optimizer_state_before", step=1) == []
    assert float(everyday.tensor("full", kind="optimizer_state", step=3, name=name, field="step")) == 3.0


def test_settings_in_force_are_recorded(everyday: Recorded) -> None:
    record = everyday.step(1)
    assert record["scalars"]["blocks.0.norm"]["eps"] == 3e-6
    assert record["scalars"][""]["cap"] == 30.0
    assert record["scalars"][""]["frequencies"] == torch.tensor([1.0, 0.1, 0.01]).double().tolist()
    assert record["model"]["class"] == "PlainLM"
    assert record["model"]["parameter_dtypes"] == {"torch.float32": 14}
    assert record["optimizer"]["class"] == "torch.optim.adamw.AdamW"
    assert len(record["trainable"]) == 14
    assert record["frozen"] == []


def test_the_environment_names_packages_and_hardware(everyday: Recorded) -> None:
    environment = everyday.manifest["environment"]
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["torch"] == {
        "version": torch.__version__,
        "threads": 1,
        "deterministic": False,
        "matmul_precision": "highest",
    }
    assert environment["hardware"]["memory_bytes"] > 1 << 28
    assert all(len(everyday.step(1)["rng"][key]) == 64 for key in ("python", "torch"))


def test_module_gradients_come_under_both_kinds_of_checkpointing(everyday: Recorded) -> None:
    for name in ("blocks.0", "blocks.1"):
        for micro_batch in (0, 1):
            wanted = {"name": name, "step": 1, "micro_batch": micro_batch}
            gradient = everyday.tensor("full", kind="module_output_gradient", **wanted)
            assert gradient.shape == everyday.tensor("full", kind="module_output", **wanted).shape
            assert float(gradient.abs().max()) > 0
    first = everyday.tensor("full", kind="module_output", name="blocks.0", step=1, micro_batch=0)
    second = everyday.tensor("full", kind="module_input", name="blocks.1", step=1, micro_batch=0)
    assert torch.equal(first, second)


def test_a_clip_before_the_end_of_accumulation_is_listed_as_such(clipping_early: Recorded) -> None:
    clips = clipping_early.step(2)["clips"]
    assert [clip["after_backward"] for clip in clips] == [1, 2]
    assert all(clip["factor"] < 1 for clip in clips)
    norms = [entry["stats"]["norm"] for entry in clipping_early.entries(kind="gradient", step=2)]
    assert clips[1]["total_norm"] == pytest.approx(sum(norm * norm for norm in norms) ** 0.5, rel=1e-6)


def test_full_keeps_every_tensor_whole_and_momentum_is_state(clipping_early: Recorded) -> None:
    whole = [e for e in clipping_early.manifest["tensors"] if "full" not in e["representations"]]
    assert whole == []
    wanted = {"step": 2, "name": "blocks.1.up.weight"}
    momentum = clipping_early.tensor("full", kind="optimizer_state", field="momentum_buffer", **wanted)
    before = clipping_early.tensor("full", kind="optimizer_state_before", field="momentum_buffer", **wanted)
    gradient = clipping_early.tensor("full", kind="gradient_clipped", **wanted)
    torch.testing.assert_close(momentum, 0.9 * before + gradient, rtol=1e-6, atol=1e-9)
    assert clipping_early.manifest["recorder"]["mode"] == "full"


def test_a_loss_that_cannot_be_seen_is_said_to_be_missing(clipping_early: Recorded) -> None:
    whats = [(note["rank"], note["step"], note["what"]) for note in clipping_early.manifest["missing"]]
    assert whats == [(0, 2, "target of micro-batch 0"), (0, 2, "target of micro-batch 1")]
    assert clipping_early.step(2)["micro_batches"][0]["loss_source"] is None


def test_a_compiled_model_is_recorded_at_its_wrapper(compiled: Recorded) -> None:
    assert compiled.manifest["missing"] == []
    assert compiled.step(1)["model"]["class"] == "PlainLM"
    assert [entry["name"] for entry in compiled.entries(kind="batch")] == ["tokens"]
    assert compiled.tensor("full", kind="token_loss").shape == (ROWS, POSITIONS - 1)
    (head,) = compiled.entries(kind="gradient", name="head.weight")
    assert head["source_name"] == "_orig_mod.head.weight"
