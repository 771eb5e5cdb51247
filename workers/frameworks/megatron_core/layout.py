"""Which part of a model each rank of Megatron holds: its coordinates in the order tensor, context, data, pipeline.

That is the order in which `megatron.core.parallel_state` counts ranks by default, tp-cp-ep-dp-pp
(https://github.com/NVIDIA/Megatron-LM/blob/core_v0.16.1/megatron/core/parallel_state.py). Experts are divided over the
ranks that otherwise are data parallel, one next to the other, and not by tensor parallelism: the adapters set
`expert_tensor_parallel_size` to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from checks.spec import RunSpec


@dataclass(frozen=True)
class Place:
    """One rank's coordinates."""

    tp: int
    cp: int
    dp: int
    pp: int
    ep: int


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism. `dp`: ranks that train on rows of their own, those that share experts among them."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def ranks(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    def place(self, rank: int) -> Place:
        """The coordinates of a rank.

        >>> Layout(tp=2, pp=2).place(3)
        Place(tp=1, cp=0, dp=0, pp=1, ep=0)
        """
        within = rank % (self.ranks // self.pp)
        return Place(
            tp=within % self.tp,
            cp=within // self.tp % self.cp,
            dp=within // (self.tp * self.cp),
            pp=rank // (self.ranks // self.pp),
            ep=within % self.ep,
        )


def layout_of(spec: RunSpec) -> Layout:
    """The layout of a run: each rank of an expert-parallel group trains on rows of its own."""
    return Layout(tp=spec.tp_size, cp=spec.cp_size, dp=spec.dp_size * spec.ep_size, pp=spec.pp_size, ep=spec.ep_size)
