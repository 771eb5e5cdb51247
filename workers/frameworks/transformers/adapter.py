"""Hugging Face transformers: `Trainer` on rendered rows, full parameters or LoRA."""

from __future__ import annotations

from pathlib import Path

from checks.errors import BadRequest
from checks.samples import read_samples
from checks.spec import RunSpec
from workers.frameworks.base import Launch
from workers.frameworks.logs import LogRecord
from workers.frameworks.requests import check_request
from workers.frameworks.trainer import build_config, read_run_log, write_run

DRIVER = Path(__file__).with_name("train.py")


class TransformersAdapter:
    """`transformers.Trainer` with a right-padding collator; it has no packing of its own."""

    name = "transformers"

    def check(self, spec: RunSpec) -> None:
        """Raise BadRequest for packing, and for what no framework can run."""
        if spec.packing:
            raise BadRequest("packing", "transformers' Trainer does not pack", "set packing=false or framework trl")
        check_request(spec, read_samples(spec.data))

    def prepare(self, spec: RunSpec, scratch: Path) -> Launch:
        """Write the driver's configuration and rows into `scratch`."""
        self.check(spec)
        config = build_config(spec, scratch=scratch)
        return write_run(config, read_samples(spec.data), driver=DRIVER, scratch=scratch, spec=spec)

    def read_log(self, output: Path, log: Path) -> tuple[LogRecord, ...]:
        """The Trainer's log."""
        return read_run_log(output, log)
