"""Opening captures: what they hold, and one sentence for each way of being unreadable."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.captures.capture import Capture, open_capture
from checks.captures.records import Missing
from checks.errors import CaptureError, NotRecorded
from checks.material import Material
from tests.checks.conftest import Editor, Recording
from tests.checks.editing import Edit

NORM = "model.norm.weight"
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def copy(recordings: dict[str, Recording], edit: Editor) -> Edit:
    return edit(open_capture(recordings["merged"].capture))


def refused(path: Path) -> CaptureError:
    with pytest.raises(CaptureError) as caught:
        open_capture(path)
    return caught.value


def rewrite(path: Path, change: Change) -> Path:
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def test_a_capture_lists_steps_ranks_records_and_tensors(healthy: Material) -> None:
    capture = healthy.capture
    assert capture is not None
    assert (capture.steps, capture.ranks, capture.missing) == ((1, 3), (0,), ())
    assert capture.packages["transformers"]
    record = capture.step(1)
    assert (record.step, record.model.name, record.model.training) == (1, "Qwen3ForCausalLM", True)
    assert (record.model.attention, record.model.autocast, record.model.compute_dtype) == (
        "sdpa",
        None,
        "torch.float32",
    )
    assert (len(record.trainable), record.frozen) == (25, ())
    assert [m.index for m in capture.micro_batches(1)] == [0, 1]
    assert record.micro_batches[0].cross_entropy[0].counted == 234
    assert record.micro_batches[0].num_items_in_batch == 335.0
    clip = record.clips[0]
    assert (clip.after_backward, clip.max_norm, clip.norm_type) == (2, 1.0, 2.0)
    assert clip.factor == pytest.approx(1.0 / (clip.total_norm + 1e-6))
    assert record.optimizer.name == "torch.optim.adamw.AdamW"
    group = record.optimizer.group_of(NORM)
    assert group is not None
    assert group.settings["weight_decay"] == 0.0
    assert record.optimizer.group_of("model.absent") is None


def test_tensors_are_found_by_kind_field_and_micro_batch(healthy: Material) -> None:
    capture = healthy.capture
    assert capture is not None
    gradients = capture.tensors(1, "gradient")
    assert len(gradients) == 25
    record = gradients[NORM]
    full = record.read("full")
    assert full is not None
    assert (record.global_shape, record.dtype, full.dtype) == ((64,), "torch.float32", torch.float32)
    assert record.norm == pytest.approx(float(full.double().norm()), rel=1e-12)
    assert (record.nonfinite, record.read("row_norms")) == (0, None)
    assert set(capture.tensors(1, "optimizer_state", field="exp_avg")) == set(gradients)
    assert len(capture.all_tensors(1, "optimizer_state")) == 75
    assert capture.tensors(1, "gradient", rank=1) == {}
    assert capture.all_tensors(2, "gradient") == ()
    batch = capture.micro_batch_tensors(1, "batch", 1)
    assert {"input_ids", "labels", "attention_mask"} <= set(batch)
    assert batch["input_ids"].global_shape == (2, 53)


def test_a_field_is_part_of_a_micro_batch_tensors_key(copy: Edit) -> None:
    copy.entry("batch", "labels", micro_batch=0)["field"] = "indices"
    assert "labels/indices" in copy.save().micro_batch_tensors(1, "batch", 0)


def test_a_step_that_was_not_captured_is_named(healthy: Material) -> None:
    assert healthy.capture is not None
    for step, rank in ((2, 0), (1, 1)):
        with pytest.raises(CaptureError) as caught:
            healthy.capture.step(step, rank=rank)
        assert caught.value.found == f"holds no step {step} of rank {rank}"
        assert caught.value.file == str(healthy.capture.path)


def test_numbers_that_are_not_finite_are_read_from_strict_json(copy: Edit) -> None:
    micro = copy.step()["micro_batches"][0]
    micro |= {"backward": "nan", "model_loss": "-inf", "num_items_in_batch": "inf"}
    copy.step()["clips"][0] |= {"total_norm": "nan", "factor": "nan", "factor_error": "nan"}
    record = copy.save().step(1)
    assert record.micro_batches[0].backward is not None
    assert math.isnan(record.micro_batches[0].backward)
    assert record.micro_batches[0].model_loss == -math.inf
    assert record.micro_batches[0].num_items_in_batch == math.inf
    assert math.isnan(record.clips[0].factor)
    assert record.clips[0].factor_error is not None
    assert math.isnan(record.clips[0].factor_error)


def test_the_norm_of_a_tensor_without_finite_values_is_no_number(copy: Edit) -> None:
    record = copy.put("gradient", NORM, torch.full((64,), math.nan)).save().tensors(1, "gradient")[NORM]
    assert math.isnan(record.norm)
    assert record.nonfinite == 64


def test_a_run_that_took_no_step_leaves_a_capture_that_can_be_read(copy: Edit) -> None:
    copy.drop_step(1)
    note = {"rank": None, "step": None, "what": "step", "why": "no optimizer step of a torch model was seen"}
    copy.manifest |= {"ranks": [], "environment": None, "missing": [note]}
    capture = copy.save()
    assert (capture.steps, capture.ranks, capture.packages) == ((), (), {})
    assert capture.missing == (Missing(None, None, "step", "no optimizer step of a torch model was seen"),)


def test_optional_parts_of_a_record_may_be_absent(copy: Edit) -> None:
    for key in ("attention", "autocast", "compute_dtype", "gradient_checkpointing"):
        del copy.step()["model"][key]
    copy.step()["clips"][0]["factor_error"] = None
    micro = copy.step()["micro_batches"][0]
    for key in [key for key in micro if key != "index"]:
        del micro[key]
    del copy.manifest["missing"]
    capture = copy.save()
    assert capture.missing == ()
    model = capture.step(1).model
    assert (model.attention, model.autocast, model.gradient_checkpointing) == (None, None, False)
    assert capture.step(1).clips[0].factor_error is None
    assert capture.micro_batches(1)[0].cross_entropy == ()
    assert capture.micro_batches(1)[0].backward is None


def test_a_model_or_optimizer_that_could_not_be_recorded_is_null_and_says_why_when_it_is_asked_for(copy: Edit) -> None:
    copy.step().update(model=None, optimizer=None, rng=None)
    note = {"rank": 0, "step": 1, "what": "optimizer", "why": "TypeError: no such group (optimizer.py:3)"}
    copy.manifest["missing"] = [note, {"rank": 1, "step": 1, "what": "model", "why": "of another rank"}]
    record = copy.save().step(1)
    assert (record.recorded_model, record.recorded_optimizer, record.rng) == (None, None, {})
    with pytest.raises(
        NotRecorded, match=r"the model of step 1 was not recorded \(the manifest does not say why\); rec"
    ):
        _ = record.model
    with pytest.raises(NotRecorded, match=r"the optimizer of step 1 was not recorded \(TypeError: no such group"):
        _ = record.optimizer


def test_a_directory_without_a_manifest_is_no_capture(tmp_path: Path) -> None:
    error = refused(tmp_path)
    assert str(error) == (
        f"{tmp_path}: holds no manifest.json, so it is not a capture; "
        "record the capture again with `plumbline-capture run`."
    )
    assert refused(tmp_path / "absent").file == str(tmp_path / "absent")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is not a Plumbline manifest"),
        ('{"format": "another", "version": 1}', "is not a Plumbline manifest"),
        ('{"version": 1}', "is not a Plumbline manifest"),
        ('{"format": "plumbline-capture", "version": 2}', "has format version 2, newer than 1"),
        ('{"format": "plumbline-capture", "version": "1"}', "has format version 1, newer than 1"),
        ('{"format": "plumbline-capture"}', "has format version None, newer than 1"),
        ('{"format": "plumbline-capture", "version": 1}', "lacks or misstates the field 'ranks'"),
    ],
)
def test_a_manifest_that_is_foreign_or_newer_is_refused(tmp_path: Path, content: str, found: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    error = refused(tmp_path)
    assert (error.file, error.found) == (str(tmp_path / "manifest.json"), found)


def test_a_newer_format_asks_for_an_upgrade(copy: Edit) -> None:
    path = rewrite(copy.write(), lambda manifest: manifest.update(version=2))
    assert refused(path).remedy == "upgrade Plumbline to read it"


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.pop("ranks"),
        lambda m: m.pop("tensors"),
        lambda m: m.pop("files"),
        lambda m: m.update(ranks=3),
        lambda m: m.update(tensors=[3]),
        lambda m: m["ranks"][0].pop("rank"),
        lambda m: m["ranks"][0].pop("steps"),
        lambda m: m["ranks"][0]["steps"][0].pop("step"),
        lambda m: m["files"][0].pop("bytes"),
        lambda m: m["files"][0].pop("path"),
        *(
            lambda m, key=key: m["tensors"][0].pop(key)
            for key in ("step", "rank", "kind", "name", "dtype", "global_shape", "stats", "file", "representations")
        ),
    ],
)
def test_a_manifest_without_a_field_is_refused_with_its_name(copy: Edit, change: Change) -> None:
    path = rewrite(copy.write(), change)
    error = refused(path)
    assert error.file == str(path / "manifest.json")
    assert error.found.startswith("lacks or misstates the field ")


@pytest.mark.parametrize(
    "change",
    [
        *(
            lambda s, key=key: s.pop(key)
            for key in ("model", "scalars", "trainable", "frozen", "micro_batches", "clips", "optimizer")
        ),
        lambda s: s.update(model=[]),
        lambda s: s.update(optimizer=[]),
        lambda s: s["model"].pop("training"),
        lambda s: s["clips"][0].pop("max_norm"),
        lambda s: s["clips"][0].update(max_norm="much"),
        lambda s: s["micro_batches"][0].pop("index"),
        lambda s: s["micro_batches"][0].update(backward="much"),
        lambda s: s["optimizer"].pop("groups"),
        lambda s: s["optimizer"]["groups"][0].pop("parameters"),
    ],
)
def test_a_step_record_without_a_field_is_refused(copy: Edit, change: Change) -> None:
    path = rewrite(copy.write(), lambda manifest: change(manifest["ranks"][0]["steps"][0]))
    error = refused(path)
    assert error.file == str(path)
    assert error.found.startswith("has a step record without a valid ")


def test_a_file_of_another_size_is_named(copy: Edit) -> None:
    path = rewrite(copy.write(), lambda manifest: manifest["files"][0].update(bytes=5))
    name = copy.manifest["files"][0]["path"]
    size = (path / name).stat().st_size
    error = refused(path)
    assert (error.file, error.found) == (str(path / name), f"has {size} bytes where the manifest says 5")


def test_a_file_that_is_gone_or_cut_is_named(copy: Edit) -> None:
    path = copy.write()
    file = path / copy.manifest["files"][0]["path"]
    content = file.read_bytes()
    file.unlink()
    assert (refused(path).file, refused(path).found) == (str(file), "cannot be read (No such file or directory)")
    file.write_bytes(content[:-10])
    assert refused(path).file == str(file)
    assert "is truncated" in refused(path).found
    file.write_bytes(content[:100])
    assert refused(path).file == str(file)


@pytest.mark.parametrize("name", ["../step.safetensors", "/etc/hostname", "a/b.safetensors"])
def test_a_manifest_that_names_a_file_outside_itself_is_refused(copy: Edit, name: str) -> None:
    path = rewrite(copy.write(), lambda manifest: manifest["tensors"][0].update(file=name))
    assert refused(path).found == f"names a file outside itself ({name!r})"


def test_a_listed_file_outside_the_capture_is_refused(copy: Edit) -> None:
    path = rewrite(copy.write(), lambda manifest: manifest["files"][0].update(path="../manifest.json"))
    assert refused(path).found == "names a file outside itself ('../manifest.json')"


def test_a_tensor_that_its_file_does_not_hold_is_named(copy: Edit) -> None:
    path = rewrite(
        copy.write(), lambda manifest: manifest["tensors"][0]["representations"].update(full="batch/9/none/full")
    )
    error = refused(path)
    assert error.file == str(path / copy.manifest["tensors"][0]["file"])
    assert error.found == "has no tensor 'batch/9/none/full' that the manifest names"


def test_an_unreadable_file_is_named(copy: Edit) -> None:
    path = copy.write()
    file = path / copy.manifest["files"][0]["path"]
    file.unlink()
    os.mkdir(file)
    assert refused(path).file == str(file)


def test_opening_reads_no_tensor(healthy: Material) -> None:
    assert healthy.capture is not None
    again = open_capture(healthy.capture.path)
    assert isinstance(again, Capture)
    assert again.steps == healthy.capture.steps
