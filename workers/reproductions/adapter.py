"""An adapter whose driver is a case's: what is asked, and how it is recorded, are those of every validation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from checks.captures.log import LogRecord
from checks.samples import Sample, read_preferences, read_samples
from checks.spec import PREFERENCE_OBJECTIVES, RunSpec
from workers.frameworks.base import Launch
from workers.frameworks.requests import check_request
from workers.frameworks.trainer import build_config, read_run_log, write_run
from workers.frameworks.trl.objectives import check_prompts, make_rows
from workers.reproductions.case import Case

SPEC = (
    *("objective", "beta", "grpo_loss", "num_generations", "num_iterations", "max_completion_length", "temperature"),
    *("steps", "batch", "accumulation", "packing", "lr", "warmup_steps", "max_grad_norm", "weight_decay"),
)
"""Fields of the run spec that a driver reads by their own names; the rest is in the arguments of a Trainer."""


ADAPTERS = r"\.lora_"
"""Parameters that no checkpoint holds, those of embeddings too."""


class CaseAdapter:
    """Runs a case's driver, whatever the framework; stateless but for its case."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.name = case.framework

    def check(self, spec: RunSpec) -> None:
        """Raise BadRequest for what no framework could run."""
        check_request(spec, _samples(spec), options=None)

    def prepare(self, spec: RunSpec, scratch: Path) -> Launch:
        """Write the driver's configuration and rows into `scratch`."""
        self.check(spec)
        config: dict[str, Any] = build_config(spec, scratch=scratch)
        config |= {"spec": {name: getattr(spec, name) for name in SPEC}, "case": dict(self._case.options)}
        if spec.synced is not None:
            config["dump"] = str(spec.synced)
        rows = read_samples(spec.data) if spec.objective == "sft" else make_rows(spec)
        launch = write_run(config, rows, driver=self._case.driver, scratch=scratch, spec=spec)
        full = ADAPTERS if spec.lora else None
        return replace(launch, environment={**launch.environment, "OMP_NUM_THREADS": "1"}, full_parameters=full)

    def read_log(self, output: Path, log: Path) -> tuple[LogRecord, ...]:
        """The Trainer's log."""
        return read_run_log(output, log)


def _samples(spec: RunSpec) -> tuple[Sample, ...]:
    if spec.objective in PREFERENCE_OBJECTIVES:
        return tuple(side for pair in read_preferences(spec.data) for side in pair.sides)
    return check_prompts(spec) if spec.objective == "grpo" else read_samples(spec.data)
