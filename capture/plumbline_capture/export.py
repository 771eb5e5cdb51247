"""Ask an exported model what the trainer's was asked: `python -m plumbline_capture.export SETTINGS`, after the command.

A process of its own with plain transformers and nothing of the trainer: the directory is loaded as whoever serves it
would, in the dtype of the run. Adapters are merged into their base by PEFT.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import torch
from safetensors.torch import save_file

from plumbline_capture.format import FORMAT, VERSION, Missing, export_file_name, file_sha256, temporary_path, write_json
from plumbline_capture.probe import answer_again
from plumbline_capture.settings import Settings, parse_settings
from plumbline_capture.state import Recorder

ADAPTER = "adapter_config.json"


def main(arguments: List[str]) -> int:
    """Load the directory that the settings name and write what it answers; what goes wrong is noted."""
    settings = parse_settings(arguments[0])
    assert settings.export is not None
    recorder = Recorder(settings)
    recorder.step = 0  # an export belongs to no step
    directory = Path(settings.export)
    described: Dict[str, Any] = {"directory": str(directory)}
    missing: List[Missing] = []
    try:
        dtype, autocast = find_precision(Path(settings.out))
        model, described["merged"] = load(directory, dtype)
        described["class"] = type(model).__name__
        described["parameter_dtypes"] = dict(Counter(str(parameter.dtype) for parameter in model.parameters()))
        with torch.no_grad(), torch.autocast("cpu", autocast, enabled=autocast is not None):
            answer_again(recorder, model, kind="export")
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).split("\n")[0]
        missing.append(Missing(rank=None, step=None, what="export", why=f"{type(error).__name__}: {first}"))
        sys.stderr.write(f"plumbline-capture: {directory} could not be asked: {first}\n")
    missing += [dataclasses.replace(note, rank=None, step=None) for note in recorder.missing]
    _write(settings, recorder, described, missing)
    return 0


def find_precision(out: Path) -> Tuple[torch.dtype, Optional[torch.dtype]]:
    """Return the dtype of most parameters in the command's first recorded step, and that of its autocast, if any."""
    for path in sorted(out.glob("rank*.json")):
        try:
            steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
        except ValueError:  # claimed, and nothing was written
            continue
        if steps and steps[0]["model"]:
            counts = steps[0]["model"]["parameter_dtypes"]
            held, autocast = max(counts, key=lambda name: int(counts[name])), steps[0]["model"]["autocast"]
            return _to_dtype(held), None if autocast is None else _to_dtype(autocast)
    raise ValueError("the command's model was not recorded, so that its dtype is not known")


def _to_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.rpartition(".")[2])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is no dtype")
    return dtype


def load(directory: Path, dtype: torch.dtype) -> Tuple[Any, bool]:
    """Return the model of a directory in evaluation mode, and whether adapters were merged into it."""
    from transformers import AutoModelForCausalLM

    if not directory.is_dir():
        raise ValueError(f"there is no directory {directory}; the command has not exported its model")
    if not (directory / ADAPTER).is_file():
        return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval(), False
    from peft import PeftModel

    base = json.loads((directory / ADAPTER).read_text(encoding="utf-8"))["base_model_name_or_path"]
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=dtype), str(directory))
    return adapted.merge_and_unload().eval(), True


def _write(settings: Settings, recorder: Recorder, described: Dict[str, Any], missing: List[Missing]) -> None:
    path = Path(settings.out) / export_file_name()
    files: List[Dict[str, Any]] = []
    if recorder.now.tensors:
        temporary = temporary_path(path)
        try:
            temporary.touch()
            mode = temporary.stat().st_mode  # as the umask has it; safetensors makes files for their owner only
            save_file(recorder.now.tensors, str(temporary), metadata={"format": FORMAT, "version": str(VERSION)})
            temporary.chmod(mode)
            digest = file_sha256(temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        files = [{"path": path.name, "rank": 0, "step": None, "bytes": path.stat().st_size, "sha256": digest}]
    content = {
        "export": described,
        "tensors": [vars(entry) | {"rank": 0, "file": path.name} for entry in recorder.now.entries.values()],
        "files": files,
        "missing": [dataclasses.asdict(note) for note in missing],
    }
    write_json(path.with_suffix(".json"), content)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
