"""Megatron-core by itself: its GPTModel with local layers, its schedules and optimizer, a plain loop around them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from checks.captures.log import LogRecord
from checks.errors import BadRequest
from checks.samples import read_samples
from checks.spec import RunSpec
from workers.frameworks.base import Launch
from workers.frameworks.interpreter import require_module
from workers.frameworks.megatron_core.layout import layout_of
from workers.frameworks.megatron_core.names import build_name_map, read_shapes
from workers.frameworks.megatron_core.requests import check_megatron
from workers.frameworks.processes import refuse_axes
from workers.frameworks.requests import check_request, refuse_objective
from workers.frameworks.trainer import read_run_log, write_run

HERE = Path(__file__).parent
DRIVER, HOOKS = HERE / "train.py", HERE / "hooks.py"
REMEDY = "build an environment with plumbline env create megatron-core==0.16.1 --with transformers==5.24.0"
COPIED = (
    *("seed", "seq_len", "assistant_only", "batch", "steps", "optimizer", "lr", "beta1", "beta2", "eps"),
    *("weight_decay", "momentum", "max_grad_norm", "schedule", "warmup_steps", "gradient_checkpointing"),
)


class MegatronCoreAdapter:
    """Data, tensor, pipeline and expert parallel of Megatron-core, on rows that are prepared as for the plain loop."""

    name = "megatron_core"

    def check(self, spec: RunSpec) -> None:
        """Raise BadRequest for what Megatron-core is not run with here, and for what no framework can run."""
        refuse_objective(spec, framework="Megatron-core, as it is run here,")
        if spec.packing:
            raise BadRequest("packing", "Megatron-core does not pack", "set packing=false or framework megatron_swift")
        refuse_axes(spec, "cp_size", framework="Megatron-core's local attention")
        check_megatron(spec, framework="Megatron-core")
        check_request(spec, read_samples(spec.data))

    def prepare(self, spec: RunSpec, scratch: Path) -> Launch:
        """Write the driver's configuration, the rows and the name map into `scratch`."""
        self.check(spec)
        for module in ("megatron.core", "transformers"):
            require_module(module, framework="megatron_core", remedy=REMEDY)
        layout, names = layout_of(spec), scratch.resolve() / "names.json"
        config: dict[str, Any] = {name: getattr(spec, name) for name in COPIED}
        config |= {
            "model": str(spec.model.resolve()),
            "names": str(names),
            "tp": layout.tp,
            "pp": layout.pp,
            "ep": layout.ep,
            "micro_batches": spec.accumulation // spec.ep_size,
            "arguments": {"output_dir": str(scratch.resolve() / "output")},
        }
        launch = write_run(config, read_samples(spec.data), driver=DRIVER, scratch=scratch, spec=spec)
        found = build_name_map(read_shapes(spec.model), layout, style="local")
        names.write_text(json.dumps(found), encoding="utf-8")
        return replace(launch, names=names, hooks=(HOOKS,))

    def read_log(self, output: Path, log: Path) -> tuple[LogRecord, ...]:
        """The loop's log, in the Trainer's form."""
        return read_run_log(output, log)
