"""Miles, from a checkout: its training step on recorded rollouts, with Megatron-core; tensor and context parallel."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from checks.captures.log import LogRecord
from checks.errors import BadRequest
from checks.models.checkpoint import read_config
from checks.spec import RunSpec
from workers.frameworks.base import Launch
from workers.frameworks.interpreter import require_module
from workers.frameworks.megatron_core.layout import layout_of
from workers.frameworks.megatron_core.requests import DENSE, check_megatron
from workers.frameworks.miles.arguments import ESTIMATORS, build_arguments
from workers.frameworks.miles.checkout import VARIABLE, find_checkout
from workers.frameworks.miles.names import build_name_map, read_shapes
from workers.frameworks.miles.rollouts import record_rollouts
from workers.frameworks.processes import refuse_axes
from workers.frameworks.requests import check_request
from workers.frameworks.trainer import read_run_log, write_run
from workers.frameworks.trl.objectives import check_prompts

HERE = Path(__file__).parent
DRIVER, HOOKS = HERE / "train.py", HERE / "hooks.py"
COMMIT = "PLUMBLINE_MILES_COMMIT"
REMEDY = "build an environment with plumbline env create megatron-core==0.16.1 --with ray --with transformers==5.12.1"
COPIED = (
    *("seed", "batch", "steps", "optimizer", "lr", "beta1", "beta2", "eps", "weight_decay", "momentum"),
    *("max_grad_norm", "schedule", "warmup_steps", "gradient_checkpointing", "num_iterations"),
)


class MilesAdapter:
    """Miles' losses, advantages and training step on rollouts that `rollouts.py` records of the data's prompts."""

    name = "miles"

    def check(self, spec: RunSpec) -> None:
        """Raise BadRequest for what Miles is not run with here, and for what no framework can run."""
        if (spec.objective, spec.grpo_loss) not in ESTIMATORS:
            asked = spec.grpo_loss if spec.objective == "grpo" else spec.objective
            listed = ", ".join(dict.fromkeys(loss if goal == "grpo" else goal for goal, loss in ESTIMATORS))
            where = "grpo_loss" if spec.objective == "grpo" else "objective"
            raise BadRequest(where, f"Miles is not run with {asked}", f"give one of {listed}")
        if spec.packing or spec.assistant_only:
            where = "packing" if spec.packing else "assistant_only"
            raise BadRequest(where, "true has no meaning for completions", "leave it out")
        refuse_axes(spec, "dp_size", "pp_size", "ep_size", framework="Miles, as it is run here,")
        check_megatron(spec, framework="Miles")
        if read_config(spec.model).get("model_type") not in DENSE:
            raise BadRequest("model", "Miles is run with dense models here", f"give one of {', '.join(sorted(DENSE))}")
        check_request(spec, check_prompts(spec))

    def prepare(self, spec: RunSpec, scratch: Path) -> Launch:
        """Write the driver's configuration, the recorded rollouts and the name map into `scratch`."""
        self.check(spec)
        checkout = find_checkout()
        for module in ("megatron.core", "ray"):
            require_module(module, framework="miles", remedy=REMEDY)
        layout, names = layout_of(spec), scratch.resolve() / "names.json"
        config: dict[str, Any] = {name: getattr(spec, name) for name in COPIED}
        config |= {
            "checkout": str(checkout.path),
            "model": str(spec.model.resolve()),
            "names": str(names),
            "tp": layout.tp,
            "cp": layout.cp,
            "micro_batches": spec.accumulation,
            "compares": spec.beta > 0.0,
            "miles": build_arguments(spec),
            "arguments": {"output_dir": str(scratch.resolve() / "output")},
        }
        launch = write_run(config, record_rollouts(spec), driver=DRIVER, scratch=scratch, spec=spec)
        found = build_name_map(read_shapes(spec.model), layout, style="te")
        names.write_text(json.dumps(found), encoding="utf-8")
        environment = MappingProxyType({**launch.environment, COMMIT: checkout.commit})
        return replace(launch, names=names, hooks=(HOOKS,), environment=environment)

    def read_log(self, output: Path, log: Path) -> tuple[LogRecord, ...]:
        """The loop's log, in the Trainer's form."""
        return read_run_log(output, log)


__all__ = ["VARIABLE", "MilesAdapter"]
