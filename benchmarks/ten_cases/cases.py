"""The ten cases: what each changes in the step, and where a right answer puts the fault."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from checks.errors import BadRequest
from checks.spec import Attention, Precision, RunSpec

SCRIPT = Path(__file__).parent / "step.py"
BASELINE = "plain"
"""variant of the healthy float32 step, eager attention, one batch: what the published rules compare with"""
ROWS = 8
"""rows of the step's batch, as in step.py"""
LONGEST = 96

Kind = Literal["healthy", "forward fault", "loss fault"]


@dataclass(frozen=True)
class Case:
    """One row of the table. `variant`: argument of step.py; `module`: the one that computes wrongly, in a forward
    fault."""

    slug: str
    title: str
    variant: str
    kind: Kind
    module: str | None = None
    micro_batches: int = 1
    precision: Precision = "float32"
    attention: Attention = "eager"

    @property
    def healthy(self) -> bool:
        return self.kind == "healthy"

    def make_spec(self, checkpoint: Path, data: Path) -> RunSpec:
        """What the step was asked to do: a healthy run of this precision, attention and number of micro-batches."""
        return RunSpec(
            framework="script",
            model=checkpoint,
            data=data,
            steps=1,
            batch=ROWS // self.micro_batches,
            accumulation=self.micro_batches,
            seq_len=LONGEST,
            precision=self.precision,
            attention=self.attention,
        )


CASES: tuple[Case, ...] = (
    Case("rerun", "healthy: rerun", "plain", "healthy"),
    Case("sdpa", "healthy: eager → SDPA", "sdpa", "healthy", attention="sdpa"),
    Case("micro-batches", "healthy: 2 micro-batches", "micro-batches", "healthy", micro_batches=2),
    Case("bf16", "healthy: bf16 autocast against fp32", "bf16", "healthy", precision="bf16"),
    Case("scale-double", "attention scale × 2, one layer", "scale-double", "forward fault", "model.layers.1.self_attn"),
    Case("scale-percent", "attention scale + 1 %", "scale-percent", "forward fault", "model.layers.1.self_attn"),
    # Every norm is wrong; the first to run is the first wrong module.
    Case("eps", "RMSNorm eps 1e-6 → 1e-5", "eps", "forward fault", "model.layers.0.input_layernorm"),
    Case("weight", "one weight + 0.1 %", "weight", "forward fault", "model.layers.0.mlp.down_proj"),
    Case("not-divided", "accumulation not divided", "not-divided", "loss fault", micro_batches=2),
    Case("labels-twice", "labels shifted twice", "labels-twice", "loss fault"),
)


def find_cases(slugs: tuple[str, ...] | None) -> tuple[Case, ...]:
    """The named cases in the table's order, all for None; BadRequest for a name that none has."""
    known = tuple(case.slug for case in CASES)
    for slug in slugs or ():
        if slug not in known:
            raise BadRequest("cases", f"there is no case {slug!r}", f"use {', '.join(known)}")
    return tuple(case for case in CASES if slugs is None or case.slug in slugs)
