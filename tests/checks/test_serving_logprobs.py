"""serving.logprobs: what the trainer's model answers after its last step against what the exported one answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plumbline_capture import export
from plumbline_capture.cli import main as run_command_line
from plumbline_capture.manifest import write_manifest
from plumbline_capture.settings import Settings

from checks.captures.capture import Capture
from checks.lifecycle import serving_logprobs
from checks.material import Material
from checks.models import resolve_model
from checks.probes.plan import PADDED_RIGHT
from checks.roles import Role
from checks.spec import RunSpec
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.data_runs import make_spec
from tests.checks.editing import Edit
from workers.frameworks import adapter
from workers.recorder_command import build_command

ROWS = [[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]]
PROBES = [
    {"name": "short", "kind": "forward", "inputs": {"input_ids": ROWS}},
    {"name": "trained", "kind": "training", "inputs": {"input_ids": ROWS}},
    {"name": "long", "kind": "forward", "inputs": {"input_ids": [[5] * 257]}},
    {"name": "impossible", "kind": "forward", "inputs": {"input_ids": [[10**6, 1, 2]]}},
]


def judge(material: Material, editing: Edit) -> Verdict:
    return serving_logprobs.judge(with_probed(material, editing.save()))


def with_probed(material: Material, capture: Capture) -> Material:
    outcome = replace(material.others[Role.PROBED], capture=capture)
    return replace(material, others={**material.others, Role.PROBED: outcome})


@pytest.fixture
def editing(probed: Material, edit: Editor) -> Edit:
    return edit(probed.capture_of(Role.PROBED))


def test_the_exported_model_answers_as_the_trained_one(probed: Material) -> None:
    verdict = serving_logprobs.judge(probed)
    assert verdict.status is Status.PASS, verdict.sentence
    (measurement,) = verdict.measurements
    assert measurement.value == 0.0  # the same code on the same weights
    assert 0.0 < measurement.threshold < 1e-4
    assert measurement.threshold == 8.0 * (measurement.floor or 0.0)
    assert verdict.evidence["importance_ratio"]["mean"] == 1.0
    assert verdict.evidence["importance_ratio"]["tokens"] > 1000
    assert verdict.evidence["export"] == {
        "directory": "export",
        "class": "Qwen3ForCausalLM",
        "parameter_dtypes": {"torch.float32": 25},
        "merged_adapters": False,
    }
    json.dumps(verdict.evidence, allow_nan=False)


def test_the_answers_are_those_after_the_last_step(probed: Material) -> None:
    capture = probed.capture_of(Role.PROBED)
    assert capture is not None
    before = capture.tensors(1, "probe", field="log_probs")["length 17"].read("full")
    after = capture.tensors(1, "probe_after", field="log_probs")["length 17"].read("full")
    assert before is not None
    assert after is not None
    assert float((after - before).abs().max()) > 0.01
    assert set(capture.tensors(0, "export", field="log_probs")) == set(capture.tensors(1, "probe_after"))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_token_that_departs_fails_and_is_named(probed: Material, editing: Edit, sign: float) -> None:
    def move(log_probs: torch.Tensor) -> torch.Tensor:
        moved = log_probs.clone()
        moved[0, 11] += sign * 0.25
        return moved

    editing.change("export", "length 17", move, step=0, field="log_probs")
    verdict = judge(probed, editing)
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.STATE_TRANSFER)
    assert verdict.first_wrong == "exported weight behind position 11"
    assert "first at position 11 of 'length 17', by up to 0.25 nats" in verdict.sentence
    assert "in 1 of " in verdict.sentence
    ratio = verdict.evidence["importance_ratio"]
    assert ratio["largest"] == pytest.approx(1.284025, rel=1e-5)
    assert ratio["mean"] == pytest.approx(1.0, abs=1e-3)


def test_the_threshold_is_the_noise_of_the_noisiest_row(probed: Material, editing: Edit) -> None:
    threshold = serving_logprobs.judge(probed).measurements[0].threshold
    for name, share in (("length 2", 0.9), ("length 3", 1.1)):
        editing.change("export", name, lambda t, by=share: t + by * threshold, step=0, field="log_probs")  # type: ignore[misc]
    verdict = judge(probed, editing)
    assert (verdict.status, verdict.measurements[0].holds) == (Status.FAIL, False)
    assert "of 'length 3'" in verdict.sentence
    assert "in 2 of " in verdict.sentence


def test_answers_that_are_no_numbers_fail(probed: Material, editing: Edit) -> None:
    editing.change("export", "length 5", lambda t: t * torch.nan, step=0, field="log_probs")
    verdict = judge(probed, editing)
    assert verdict.status is Status.FAIL
    assert "of 'length 5'" in verdict.sentence
    json.dumps(verdict.evidence, allow_nan=False)


def test_what_stands_at_padding_is_not_judged(probed: Material, editing: Edit) -> None:
    def spoil(log_probs: torch.Tensor) -> torch.Tensor:
        spoiled = log_probs.clone()
        spoiled[0, 5:] += 1.0
        return spoiled

    editing.change("export", PADDED_RIGHT, spoil, step=0, field="log_probs")
    assert judge(probed, editing).status is Status.PASS


def test_what_was_not_exported_is_left_open_with_the_reason(probed: Material, editing: Edit, edit: Editor) -> None:
    for name in editing.names("export", step=0):
        editing.drop("export", name, step=0, field="log_probs")
    editing.manifest["missing"].append({"rank": None, "step": None, "what": "export", "why": "ValueError: no such"})
    capture = editing.save()
    assert serving_logprobs.judge(with_probed(probed, capture)).sentence == "ValueError: no such"
    other = edit(capture)
    other.manifest["missing"] = []
    assert judge(probed, other).sentence == "no model was exported; transformers may not export one"
    unknown = serving_logprobs.judge(replace(probed, probes={}, no_probes="the budget"))
    assert (unknown.status, unknown.sentence) == (Status.INCONCLUSIVE, "the budget")
    vague = {name: replace(answer, floor=answer.floor + 1.0) for name, answer in probed.probes.items()}
    assert "would not be seen in this precision" in serving_logprobs.judge(replace(probed, probes=vague)).sentence


def start_recording(out: Path, model: dict[str, Any]) -> Settings:
    """A directory in which a command has recorded one step of a model, and what an export of it is asked."""
    out.mkdir()
    probes = out.parent / "probes.json"
    probes.write_text(json.dumps(PROBES))
    part = {"rank": 0, "local_rank": 0, "pid": 1, "mesh": None, "rows": [], "scaling": []}
    part |= {"tensors": [], "files": [], "missing": []}
    record = {"step": 1, "model": {"parameter_dtypes": {"torch.float32": 25}, "autocast": None, **model}}
    (out / "rank00000.json").write_text(json.dumps({**part, "steps": [record], "environment": None}))
    return Settings(out=str(out), steps=(1,), probes=str(probes), export=str(out.parent / "exported"))


def ask(settings: Settings) -> dict[str, Any]:
    """Ask the export and return the manifest."""
    assert export.main([settings.to_environment()]) == 0
    out = Path(settings.out)
    write_manifest(out, settings=settings, command=["x"], exit_code=0, started="2026-01-01T00:00:00+00:00")
    assert not (out / "export.json").exists()
    manifest: dict[str, Any] = json.loads((out / "manifest.json").read_text())
    return manifest


def test_an_export_is_asked_the_short_forwards_and_notes_what_it_cannot_answer(tmp_path: Path) -> None:
    settings = start_recording(tmp_path / "capture", {})
    (tmp_path / "exported").symlink_to(resolve_model("tiny:qwen3").path)
    manifest = ask(settings)
    assert [(e["name"], e["step"], e["field"]) for e in manifest["tensors"]] == [("short", 0, "log_probs")]
    assert manifest["exports"][0]["parameter_dtypes"] == {"torch.float32": 25}
    assert [note["what"] for note in manifest["missing"]] == ["export impossible"]
    assert [file["path"] for file in manifest["files"]] == ["export.safetensors"]


def test_it_is_loaded_in_the_dtype_of_the_run(tmp_path: Path) -> None:
    settings = start_recording(tmp_path / "capture", {"parameter_dtypes": {"torch.bfloat16": 24, "torch.float32": 1}})
    (tmp_path / "exported").symlink_to(resolve_model("tiny:qwen3").path)
    assert ask(settings)["exports"][0]["parameter_dtypes"] == {"torch.bfloat16": 25}
    mixed = start_recording(tmp_path / "mixed", {"autocast": "torch.bfloat16"})
    assert export.find_precision(Path(mixed.out)) == (torch.float32, torch.bfloat16)


def test_a_directory_that_is_no_model_is_a_note_and_not_an_end(tmp_path: Path) -> None:
    settings = start_recording(tmp_path / "capture", {})
    manifest = ask(settings)
    (note,) = manifest["missing"]
    assert note["what"] == "export"
    assert "the command has not exported its model" in note["why"]
    assert manifest["tensors"] == manifest["files"] == []


def test_an_export_that_nobody_asked_is_noted(tmp_path: Path) -> None:
    settings = start_recording(tmp_path / "capture", {})
    out = Path(settings.out)
    write_manifest(out, settings=settings, command=["x"], exit_code=0, started="2026-01-01T00:00:00+00:00")
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["exports"] == []
    assert [note["what"] for note in manifest["missing"]] == ["export"]


def test_an_export_without_questions_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command_line(["run", "--out", str(tmp_path / "new"), "--export", "x", "--", "true"])
    assert ended.value.code == 3
    assert "give --probes too" in capsys.readouterr().err


@pytest.mark.parametrize(("framework", "exports"), [("transformers", True), ("trl", True), ("plain", False)])
def test_a_probed_run_exports_where_the_framework_can(tmp_path: Path, framework: str, exports: bool) -> None:
    spec: RunSpec = replace(make_spec("gsm8k_sample"), framework=framework)
    launch = adapter(framework).prepare(replace(spec, probed=True), tmp_path / "probed")
    assert launch.export == (tmp_path / "probed" / "export" if exports else None)
    command = build_command(launch, out=tmp_path / "out", steps=(1,))
    assert ("--export" in command) is exports
    assert adapter(framework).prepare(spec, tmp_path / "run").export is None
