"""Hugging Face transformers: `Trainer` on rendered rows, full parameters or LoRA."""

from __future__ import annotations

from pathlib import Path

from checks.captures.log import LogRecord
from checks.errors import BadRequest
from checks.samples import read_samples
from checks.spec import RunSpec
from workers.frameworks.base import Launch
from workers.frameworks.processes import check_processes, refuse_axes
from workers.frameworks.requests import check_request, refuse_objective
from workers.frameworks.trainer import build_config, read_run_log, write_run

DRIVER = Path(__file__).with_name("train.py")


class TransformersAdapter:
    """`transformers.Trainer` with a right-padding collator; it has no packing of its own."""

    name = "transformers"

    def check(self, spec: RunSpec) -> None:
        """Raise BadRequest for packing, for what Trainer cannot divide, and for what no framework can run."""
        refuse_objective(spec, framework="transformers' Trainer")
        if spec.packing:
            raise BadRequest("packing", "transformers' Trainer does not pack", "set packing=false or framework trl")
        _check_division(spec)
        check_request(spec, read_samples(spec.data))

    def prepare(self, spec: RunSpec, scratch: Path) -> Launch:
        """Write the driver's configuration and rows into `scratch`."""
        self.check(spec)
        config = build_config(spec, scratch=scratch)
        return write_run(config, read_samples(spec.data), driver=DRIVER, scratch=scratch, spec=spec)

    def read_log(self, output: Path, log: Path) -> tuple[LogRecord, ...]:
        """The Trainer's log."""
        return read_run_log(output, log)


def _check_division(spec: RunSpec) -> None:
    """Trainer on a CPU divides the rows and nothing else: it takes `fsdp` and trains with DDP without a word."""
    for axis, found in (("tp_size", "tensor parallel"), ("ep_size", "expert parallel")):
        if getattr(spec, axis) > 1:
            remedy = f"set {axis}=1 or framework plain"
            raise BadRequest(axis, f"transformers' Trainer refuses {found} on a CPU", remedy)
    if spec.sharding == "fsdp2":
        found = "fsdp2 is ignored by transformers' Trainer on a CPU, in silence"
        raise BadRequest("sharding", found, "set sharding=ddp or framework plain")
    refuse_axes(spec, "pp_size", "cp_size", framework="transformers' Trainer")
    check_processes(spec)
