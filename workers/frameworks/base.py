"""What every framework's adapter does: say what it cannot express, and turn a run spec into a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from checks.captures.log import LogRecord
from checks.spec import RunSpec


@dataclass(frozen=True)
class Launch:
    """A framework execution that is ready to start."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    """variables the framework needs beside the sandbox's own"""
    full_parameters: str | None
    """regular expression of parameters that no checkpoint holds, so that the recorder keeps them whole"""
    output: Path
    """directory into which the framework writes trainer_state.json"""
    directory: Path | None = None
    """where the command is run; `scratch` unless given"""
    reads: tuple[Path, ...] = ()
    """what the run reads of this machine beside its own files: model, data, weights of an engine"""
    names: Path | None = None
    """file of what each parameter is called in the checkpoint, where the framework has names of its own"""
    hooks: tuple[Path, ...] = ()
    """files that hook a framework's own loop, which the recorder runs in the framework's process"""
    probes: Path | None = None
    """file of batches to ask the prepared model about"""
    checkpoints: tuple[Path, ...] = ()
    """directories that the run saves its state into, to be read once it has ended"""
    export: Path | None = None
    """directory that the run exports its model into after its last step, to be asked `probes` once it has ended"""


class Adapter(Protocol):
    """One framework: stateless, so that one instance serves every run."""

    @property
    def name(self) -> str:
        """The framework's name on the command line."""

    def check(self, spec: RunSpec) -> None:
        """Raise BadRequest, naming the setting, for what the framework or the model cannot do."""

    def prepare(self, spec: RunSpec, scratch: Path) -> Launch:
        """Check `spec`, write the framework's configuration and data into `scratch`, and return the command."""

    def read_log(self, output: Path, log: Path) -> tuple[LogRecord, ...]:
        """What the framework logged a step: from the files in `output`, else from what it printed into `log`."""
