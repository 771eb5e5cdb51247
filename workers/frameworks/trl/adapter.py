"""TRL: `SFTTrainer`, plain, packed or assistant-only, or the trainers of preferences and of GRPO; full or LoRA."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from checks.captures.log import LogRecord
from checks.errors import BadRequest
from checks.samples import read_preferences, read_samples
from checks.spec import RunSpec
from workers.frameworks.base import Launch
from workers.frameworks.processes import refuse_processes
from workers.frameworks.requests import check_request, refuse_objective
from workers.frameworks.trainer import build_config, read_run_log, write_run
from workers.frameworks.trl.objectives import BUILDERS, check_prompts, check_rows, make_rows

DRIVER = Path(__file__).with_name("train.py")
HEAD = r"^score\.weight$"
"""What RewardTrainer's model has beside the checkpoint."""
PACKING_STRATEGY = "bfd"
"""TRL's default, best fit decreasing: documents stay whole or are cut at seq_len, batches are one row, unpadded"""


class TrlAdapter:
    """TRL's trainers, which tokenise, mask, pack and pair the rows themselves; GRPOTrainer generates them."""

    name = "trl"

    def check(self, spec: RunSpec) -> None:
        """Raise BadRequest for an adapter on the head, for what an objective has not, and for what nobody can run."""
        if spec.lora and "lm_head" in spec.lora_targets:
            found = "TRL computes log-probabilities from lm_head.weight directly and refuses an adapter on lm_head"
            raise BadRequest("lora_targets", found, "leave lm_head out")
        refuse_processes(spec, framework="trl")
        if spec.objective not in ("sft", *BUILDERS):
            refuse_objective(spec, framework="TRL, as it is run here,")
        if spec.objective == "sft":
            check_request(spec, read_samples(spec.data))
            return
        check_rows(spec)
        if spec.objective == "grpo":
            check_request(spec, check_prompts(spec))
            return
        check_request(spec, tuple(side for one in read_preferences(spec.data) for side in one.sides))

    def prepare(self, spec: RunSpec, scratch: Path) -> Launch:
        """Write the driver's configuration and rows into `scratch`."""
        self.check(spec)
        config = build_config(spec, scratch=scratch)
        config["objective"] = spec.objective
        if spec.objective != "sft":
            config["arguments"] |= BUILDERS[spec.objective](spec)
            if spec.objective == "grpo" and spec.probed:
                # An evaluation would generate and reward as well, and is not what a probed run is for.
                for name in ("eval_on_start", "per_device_eval_batch_size"):
                    del config["arguments"][name]
                del config["evaluated_rows"]
            launch = write_run(config, make_rows(spec), driver=DRIVER, scratch=scratch, spec=spec)
            return replace(launch, full_parameters=HEAD) if spec.objective == "reward" else launch
        samples = read_samples(spec.data)
        config["arguments"] |= _build_sft_arguments(spec, form=samples[0].form)
        return write_run(config, samples, driver=DRIVER, scratch=scratch, spec=spec)

    def read_log(self, output: Path, log: Path) -> tuple[LogRecord, ...]:
        """The Trainer's log."""
        return read_run_log(output, log)


def _build_sft_arguments(spec: RunSpec, *, form: str) -> dict[str, Any]:
    """What `trl.SFTConfig` adds to TrainingArguments."""
    conversational = form == "messages"
    return {
        "max_length": spec.seq_len,
        "truncation_mode": "keep_start",
        "packing": spec.packing,
        "packing_strategy": PACKING_STRATEGY,
        **({"eval_packing": False} if spec.probed else {}),
        "assistant_only_loss": spec.assistant_only and conversational,
        # TRL's default for prompt and completion is to learn the completion alone.
        "completion_only_loss": spec.assistant_only and not conversational,
        "loss_type": "nll",
    }
