"""What the launcher asks of the recorder; it travels to every process in one environment variable."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Dict, Optional, Tuple

VARIABLE = "PLUMBLINE_CAPTURE"
"""environment variable that holds the settings as JSON; without it a process is not recorded"""


@dataclasses.dataclass(frozen=True)
class Settings:
    """One recording as it was asked for."""

    out: str
    """directory of the capture, absolute"""
    steps: Tuple[int, ...] = (1, 3)
    """optimizer steps to record, counted from 1; without any the process is not recorded, only preloaded"""
    full: bool = False
    """keep gradients, parameters and states whole beside their sketches"""
    modules: Optional[str] = None
    """regular expression, full match: modules whose inputs, outputs and output gradients are kept"""
    full_parameters: Optional[str] = None
    """regular expression, full match: parameters that are kept whole"""
    names: Optional[str] = None
    """JSON file of what each parameter is called in the checkpoint (`name_map.py`), absolute"""
    hooks: Tuple[str, ...] = ()
    """Python files to execute once the recorder is installed; each has an `install(recorder)`"""
    preload: Tuple[str, ...] = ()
    """Python files to execute after torch was imported; each has an `install()`"""

    probes: Optional[str] = None
    """JSON file of probes (see `probe.read_probes`) to ask the model before its first step"""
    checkpoints: Tuple[str, ...] = ()
    """directories of saved checkpoints, absolute, that are read once the command has ended"""
    export: Optional[str] = None
    """directory, absolute, of the model that the command exports in the end; trained and exported, it is asked again"""
    memory: bool = False
    """count the bytes that are alive in each phase of every step, and record no tensors but the batch"""
    run_spec: Optional[Dict[str, Any]] = None
    """what the run is said to be: `framework`, `model`, `data` and `settings`; for the manifest alone"""

    @property
    def mode(self) -> str:
        """The manifest's word for what is kept of large tensors."""
        return "full" if self.full else "sketch"

    def to_environment(self) -> str:
        """Return the value of the environment variable."""
        return json.dumps(dataclasses.asdict(self))


def read_environment() -> Optional[Settings]:
    """Return the settings of this process, or None where it is not to be recorded."""
    value = os.environ.get(VARIABLE)
    return parse_settings(value) if value else None


def parse_settings(value: str) -> Settings:
    """Return the settings that `to_environment` wrote."""
    content = json.loads(value)
    return Settings(
        out=content["out"],
        steps=tuple(content["steps"]),
        full=content["full"],
        modules=content["modules"],
        full_parameters=content["full_parameters"],
        names=content.get("names"),
        hooks=tuple(content.get("hooks", ())),
        preload=tuple(content["preload"]),
        probes=content["probes"],
        checkpoints=tuple(content["checkpoints"]),
        export=content.get("export"),
        memory=content.get("memory", False),
        run_spec=content.get("run_spec"),
    )
