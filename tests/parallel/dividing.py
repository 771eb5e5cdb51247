"""Divided runs with and without faults, and the same rows by one process: `dividing.py DIR [NAME …]`.

Each rank is a fork after the imports, which take most of a run's seconds; it has the variables that torchrun gives its
workers. What the launcher and the recorder's start do is done here; torchrun itself is in force in the healthy runs of
the tests beside this file.
"""

from __future__ import annotations

import gc
import os
import runpy
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plumbline_capture.format import utc_now
from plumbline_capture.install import install
from plumbline_capture.manifest import write_manifest
from plumbline_capture.settings import Settings

from checks.faults import fault
from checks.models import resolve_model
from checks.models.families import FAMILIES
from checks.models.tiny import write_checkpoint
from checks.models.tokenizer import write_tokenizer
from checks.roles import Role, spec_of
from checks.samples import resolve_data
from checks.spec import RunSpec
from workers.frameworks import adapter

BIASED = "llama with biases"
"""a family of its own here: o_proj and down_proj are row-parallel with a bias"""


@dataclass(frozen=True)
class Case:
    """One run: what its run spec has otherwise than a plain one of one step, and its fault."""

    settings: dict[str, Any] = field(default_factory=dict)
    family: str = "qwen3"
    inject: str | None = None
    role: Role = Role.RUN
    full: bool = False
    """whether tensors are recorded whole beside their sketches"""

    def spec(self, directory: Path) -> RunSpec:
        """The run spec; a model that is no tiny family is built in `directory`."""
        model = (
            build_biased(directory / "biased") if self.family == BIASED else resolve_model(f"tiny:{self.family}").path
        )
        asked = RunSpec("plain", model, resolve_data("gsm8k_sample"), steps=1, fault=self.inject, **self.settings)
        return spec_of(self.role, asked)


DDP: dict[str, Any] = {"dp_size": 2, "sharding": "ddp"}
FSDP2: dict[str, Any] = {"dp_size": 2, "sharding": "fsdp2"}
TP: dict[str, Any] = {"tp_size": 2}
EP: dict[str, Any] = {"ep_size": 2}
CASES = {
    "single-dp": Case(DDP, role=Role.SINGLE, full=True),
    "single-tp": Case(TP, role=Role.SINGLE),
    "single-tp-biased": Case(TP, family=BIASED, role=Role.SINGLE),
    "single-ep": Case(EP, family="qwen3_moe", role=Role.SINGLE),
    "fsdp2": Case(FSDP2, full=True),
    "tp-biased": Case(TP, family=BIASED),
    **{
        slug: Case(DDP, inject=slug)
        for slug in (
            *("gradients-summed-over-ranks", "gradients-averaged-twice", "rank-left-out", "gradients-not-reduced"),
            *("tokens-of-one-rank", "replica-drifts", "same-rows-on-every-rank"),
        )
    },
    "norm-of-one-rank": Case(FSDP2, inject="norm-of-one-rank"),
    "shard-of-another-rank": Case(FSDP2, inject="shard-of-another-rank"),
    "replica-drifts-tp": Case(TP, inject="replica-drifts"),
    "row-bias-on-every-rank": Case(TP, family=BIASED, inject="row-bias-on-every-rank"),
    "expert-output-dropped": Case(EP, family="qwen3_moe", inject="expert-output-dropped"),
}


def build_biased(directory: Path) -> Path:
    """A tiny llama whose linear layers have biases."""
    if not directory.exists():
        directory.mkdir(parents=True)
        settings = {"model_type": "llama", **FAMILIES["llama"], "attention_bias": True, "mlp_bias": True}
        write_checkpoint(settings, directory, seed=20)
        write_tokenizer(directory)
    return directory


def main(directory: Path, names: list[str]) -> None:
    """Run each case into `directory`/NAME: its capture and its log."""
    _warm_up()
    for name in names or CASES:
        run_case(CASES[name], directory / name)


def _warm_up() -> None:
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel  # noqa: F401
    from transformers import AutoModelForCausalLM

    for family in ("qwen3", "qwen3_moe", "llama"):
        AutoModelForCausalLM.from_pretrained(resolve_model(f"tiny:{family}").path)
    gc.freeze()  # else a gc.collect() copies every page of the parent in every fork


def run_case(case: Case, directory: Path) -> None:
    """Train as the adapter's command says, each rank in a fork, and write the manifest."""
    spec = case.spec(directory.parent)
    launch = adapter(spec.framework).prepare(spec, directory / "scratch")
    out = directory / "capture"
    out.mkdir(parents=True)
    settings = Settings(out=str(out), steps=(1,), full=case.full)
    driver, config = launch.command[-2:]
    started = utc_now()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**launch.environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    pids = []
    for rank in range(spec.processes):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(spec.processes)}
        variables = {**shared, **place} if spec.processes > 1 else dict(launch.environment)
        pids.append(
            _fork(directory, lambda variables=variables: _train(driver, config, settings, variables, case.inject))
        )
    codes = [os.waitpid(pid, 0)[1] for pid in pids]
    if any(codes):
        raise SystemExit(f"{directory.name}: {(directory / 'log').read_text()[-3000:]}")
    write_manifest(out, settings=settings, command=list(launch.command), exit_code=0, started=started)


def _train(driver: str, config: str, settings: Settings, variables: dict[str, str], slug: str | None) -> None:
    os.environ |= variables
    install(settings)
    if slug is not None:
        runpy.run_path(str(fault(slug).file))["install"]()
    sys.argv = [driver, config]
    runpy.run_path(driver, run_name="__main__")


def _fork(directory: Path, work: Callable[[], object]) -> int:
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    code = 1
    try:
        log = os.open(directory / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
