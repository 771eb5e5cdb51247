"""Read saved checkpoints into a capture: `python -m plumbline_capture.checkpoint SETTINGS`, once the command has ended.

A process of its own, because the launcher loads no torch. Weights are read from safetensors alone, one parameter at a
time; optimizer and scheduler by `torch.load(weights_only=True)`, which executes nothing, or from shards that
torch.distributed.checkpoint has saved (`saved_shards.py`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from plumbline_capture.bootstrap import load_file
from plumbline_capture.format import (
    FORMAT,
    VERSION,
    Missing,
    canonical_name,
    checkpoint_file_name,
    file_sha256,
    temporary_path,
    write_json,
)
from plumbline_capture.mapped import keep_named, note_unfilled
from plumbline_capture.name_map import read_name_map
from plumbline_capture.represent import keep_tensor
from plumbline_capture.roots import Name, rename
from plumbline_capture.saved_megatron import find_iteration, read_states
from plumbline_capture.saved_names import Shape, Target, match_names
from plumbline_capture.saved_shards import UnreadShards, find_shards, read_shards
from plumbline_capture.saved_state import read_optimizer, read_scheduler
from plumbline_capture.settings import Settings, parse_settings
from plumbline_capture.state import Recorder

CONFIGS = {"config": "config.json", "adapter_config": "adapter_config.json"}
"""key of the manifest → file whose content it holds"""


def main(arguments: List[str]) -> int:
    """Read every checkpoint that the settings name; what cannot be read is noted."""
    settings = parse_settings(arguments[0])
    recorded = _Recorded.read(Path(settings.out))
    for index in range(len(settings.checkpoints)):
        Reading(settings, index, recorded).run()
    return 0


@dataclasses.dataclass(frozen=True)
class _Recorded:
    """What the command's processes have recorded of the model: shapes by canonical name, and the optimizer's order."""

    shapes: Mapping[str, Shape]
    groups: Tuple[Tuple[str, ...], ...]

    @classmethod
    def read(cls, out: Path) -> "_Recorded":
        shapes: Dict[str, Shape] = {}
        groups: Tuple[Tuple[str, ...], ...] = ()
        for path in sorted(out.glob("rank*.json")):
            try:
                part = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:  # claimed, and nothing was written
                continue
            for entry in part["tensors"]:
                if entry["kind"] == "parameter_before":
                    shapes.setdefault(entry["name"], tuple(entry["global_shape"]))
            if not groups and part["steps"] and part["steps"][0]["optimizer"]:
                optimizer = part["steps"][0]["optimizer"]
                groups = tuple(tuple(group["parameters"]) for group in optimizer["groups"])
        return cls(shapes, groups)


class Reading:
    """One checkpoint on its way into the capture."""

    def __init__(self, settings: Settings, index: int, recorded: _Recorded) -> None:
        self.settings = settings
        self.index = index
        self.directory = Path(settings.checkpoints[index])
        self.recorded = recorded
        self.recorder = Recorder(settings)
        self.recorder.step = index  # a checkpoint belongs to no step: its tensors bear its place in the list
        self.missing: List[Missing] = []
        self.index_errors: List[str] = []
        self.described: Dict[str, Any] = {"directory": str(self.directory)}

    def run(self) -> None:
        """Read the directory, and write its tensors and its part of the manifest."""
        if not self.directory.is_dir():
            self.note("", "there is no such directory; the command has not saved it")
        else:
            for key, name in CONFIGS.items():
                self.described.update(self._read_config(key, self.directory / name))
            self._read_weights()
            with self.guarded("optimizer.pt"):
                for name, field, value in read_optimizer(self.directory, self.recorded.groups):
                    keep_tensor(self.recorder, value, kind="checkpoint_state", name=name, field=field)
            with self.guarded("optimizer shards"):
                self._read_shards()
            with self.guarded("optimizer of Megatron-core"):
                self._read_megatron()
            with self.guarded("scheduler.pt"):
                self.described["scheduler"] = read_scheduler(self.directory)
            with self.guarded("trainer_state.json"):
                self.described["global_step"] = _read_global_step(self.directory / "trainer_state.json")
        self.described["index_errors"] = self.index_errors
        self._write()

    def note(self, what: str, why: str) -> None:
        """State that something of the checkpoint could not be read."""
        named = f"checkpoint {self.directory.name}" + (f", {what}" if what else "")
        self.missing.append(Missing(rank=None, step=None, what=named, why=why))
        sys.stderr.write(f"plumbline-capture: {named} not read: {why}\n")

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Turn what goes wrong into a note: the rest of the checkpoint is read all the same."""
        try:
            with torch.no_grad():
                yield
        except UnreadShards as error:
            self.note(what, str(error))
        except Exception as error:
            first = str(error).strip().split("\n")[0]
            self.note(what, f"{type(error).__name__}: {first}")

    def _read_config(self, key: str, path: Path) -> Dict[str, Any]:
        found: Dict[str, Any] = {key: None, f"{key}_sha256": None}
        if path.is_file():
            with self.guarded(path.name):
                found = {f"{key}_sha256": file_sha256(path), key: json.loads(path.read_text(encoding="utf-8"))}
        return found

    def _read_weights(self) -> None:
        config = self.described["config"]
        tied = isinstance(config, dict) and bool(config.get("tie_word_embeddings"))
        with ExitStack() as stack:
            opened: Dict[str, Any] = {}
            shapes: Dict[str, Shape] = {}
            for path in self._list_files():
                with self.guarded(path.name):
                    file: Any = stack.enter_context(safe_open(str(path), framework="pt", device="cpu"))
                    for name in file.keys():  # noqa: SIM118 (no mapping)
                        if name in opened:
                            self.index_errors.append(f"{name} is in two files, the second is {path.name}")
                        opened[name] = file
                        shapes[name] = tuple(file.get_slice(name).get_shape())
            self.index_errors += _check_index(self.directory, set(opened))
            for target in match_names(shapes, self.recorded.shapes, tied=tied):
                with self.guarded(target.source):
                    self._keep(target, opened)

    def _list_files(self) -> List[Path]:
        files = sorted(self.directory.glob("*.safetensors"))
        self.described["files"] = [{"path": path.name, "bytes": path.stat().st_size} for path in files]
        if not files:
            self.note("weights", "the directory holds no *.safetensors file; save the weights as safetensors")
        return files

    def _keep(self, target: Target, opened: Mapping[str, Any]) -> None:
        parts = [[opened[name].get_tensor(name) for name in names] for names in target.sources]
        whole = torch.stack([torch.cat(rows) for rows in parts]) if target.stacked else parts[0][0]
        keep_tensor(
            self.recorder, whole, kind="checkpoint", name=target.name, source_name=target.source, field=target.tied_as
        )

    def _read_shards(self) -> None:
        """Read an optimizer that was saved in shards, under the names that the framework's hooks give parameters."""
        folder = find_shards(self.directory)
        if folder is None:
            return
        for position, path in enumerate(self.settings.hooks):
            load_file(path, name=f"plumbline_hooks_{position}").install(self.recorder)
        for source, field, value in read_shards(folder):
            name, order = rename(canonical_name(source), self.recorder.transposed)
            ordered = value if order is None or value.dim() != len(order) else value.permute(order).contiguous()
            keep_tensor(self.recorder, ordered, kind="checkpoint_state", name=name, source_name=source, field=field)

    def _read_megatron(self) -> None:
        """Read an optimizer that Megatron-core has saved, by the name map of the run."""
        folder = find_iteration(self.directory)
        if folder is None or self.settings.names is None:
            return
        self.recorder.names = read_name_map(Path(self.settings.names), rank=0)
        for source, field, value in read_states(folder):
            keep_named(self.recorder, value, kind="checkpoint_state", name=Name(source, source), field=field)
        note_unfilled(self.recorder)
        self.missing += self.recorder.missing

    def _write(self) -> None:
        out = Path(self.settings.out)
        name = checkpoint_file_name(self.index)
        files: List[Dict[str, Any]] = []
        tensors = self.recorder.now.tensors
        if tensors:
            path, temporary = out / name, temporary_path(out / name)
            try:
                temporary.touch()
                mode = temporary.stat().st_mode  # as the umask has it; safetensors makes files for their owner only
                save_file(tensors, str(temporary), metadata={"format": FORMAT, "version": str(VERSION)})
                temporary.chmod(mode)
                digest = file_sha256(temporary)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            size = path.stat().st_size
            files = [{"path": name, "rank": 0, "step": None, "bytes": size, "sha256": digest}]
        entries = [vars(entry) | {"rank": 0, "file": name} for entry in self.recorder.now.entries.values()]
        content = {
            "checkpoint": self.described,
            "tensors": entries,
            "files": files,
            "missing": [dataclasses.asdict(note) for note in self.missing],
        }
        write_json(out / f"{Path(name).stem}.json", content)


def _check_index(directory: Path, held: "set[str]") -> List[str]:
    """Return where the index of a sharded checkpoint and its files differ."""
    path = directory / "model.safetensors.index.json"
    if not path.is_file():
        return []
    try:
        named = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"])
    except (ValueError, KeyError, TypeError):
        return [f"{path.name} has no weight_map"]
    lost = [f"{path.name} names {name}, which no file holds" for name in sorted(named - held)]
    return lost + [f"{name} is in a file and not in {path.name}" for name in sorted(held - named)]


def _read_global_step(path: Path) -> Optional[int]:
    if not path.is_file():
        return None
    step = json.loads(path.read_text(encoding="utf-8")).get("global_step")
    return step if isinstance(step, int) else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
