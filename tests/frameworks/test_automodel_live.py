"""NeMo AutoModel itself, in an environment that has it; PLUMBLINE_ENV_AUTOMODEL names it as `plumbline env list` does.

    plumbline env create nemo-automodel==0.7.0
    PLUMBLINE_ENV_AUTOMODEL=nemo-automodel-0.7.0 pytest -n 0 tests/frameworks/test_automodel_live.py

On a machine without a GPU its calls to CUDA land on the CPU (`shims/automodel_on_cpu.py`), and the verdicts say so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from checks.verdict import Status, Verdict
from workers.environments.store import Store
from workers.environments.using import running_in
from workers.request import ValidationRequest
from workers.validate import validate

ENVIRONMENT = os.environ.get("PLUMBLINE_ENV_AUTOMODEL", "")
SHIM = Path(__file__).with_name("shims") / "automodel_on_cpu.py"
STAND_IN = "(ran on tests' stand-in for torch.cuda: says nothing about that code)"

pytestmark = pytest.mark.skipif(
    not ENVIRONMENT, reason="PLUMBLINE_ENV_AUTOMODEL names no environment with nemo-automodel"
)

STEP = {
    *("step.precision", "step.settings", "step.loss", "step.denominator", "step.gradients", "step.update"),
    *("step.schedule", "step.frozen", "step.accumulation", "step.grad_norm"),
}
DATA = {"data.template", "data.mask", "data.coverage"}
WITHOUT_DEFINITION = {"glm4_moe", "qwen2"}
"""families that there is no plain reference of"""
FORCED = ("force_hf=true", "tp_plan=attention")
LAYOUTS = {
    "dp2": ("qwen3", {"dp_size": 2, "sharding": "fsdp2"}),
    "ddp2": ("qwen3", {"dp_size": 2, "sharding": "ddp"}),
    "tp2": ("qwen3", {"tp_size": 2}),
    "tp2 with experts": ("qwen3_moe", {"tp_size": 2, "options": FORCED}),  # AutoModel refuses it of its own classes
    "pp2": ("qwen3", {"pp_size": 2}),
    "dp2 with experts": ("qwen3_moe", {"dp_size": 2, "sharding": "fsdp2"}),
    "pp2 with experts": ("qwen3_moe", {"pp_size": 2}),
    "ep2": ("qwen3_moe", {"ep_size": 2}),
}
FAULTS = {
    "dp2 with experts": "shard-of-another-rank",
    "tp2": "shard-of-another-rank",
    "tp2 with experts": "shard-of-another-rank",
    "pp2 with experts": "stage-scaled-alone",
    "ep2": "shard-of-another-rank",
}
RESUMED = {
    "alone": ("qwen3_moe", {}),
    "dp2": ("qwen3_moe", {"dp_size": 2, "sharding": "fsdp2"}),
    "tp2": ("qwen3", {"tp_size": 2}),
    "tp2 with experts": ("qwen3_moe", {"tp_size": 2, "options": FORCED}),
    "pp2": ("qwen3_moe", {"pp_size": 2}),
    "ep2": ("qwen3_moe", {"ep_size": 2}),
}


@pytest.fixture(autouse=True)
def _in_its_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not torch.cuda.is_available():
        monkeypatch.setenv("PLUMBLINE_SHIMS", str(SHIM))
    with running_in(ENVIRONMENT, store=Store()):
        yield


def run(
    family: str, settings: dict[str, object], *, checks: tuple[str, ...] | None = None, inject: str | None = None
) -> dict[str, Verdict]:
    request = ValidationRequest(
        framework="automodel",
        model=f"tiny:{family}",
        data="gsm8k_sample",
        checks=checks,
        settings=settings,
        inject=inject,
        out=None,
    )
    result = validate(request, on_progress=lambda progress: None, cancelled=lambda: False)
    return {verdict.check: verdict for verdict in result.verdicts}


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2", "qwen3_moe", "deepseek_v3", "glm4_moe"])
def test_the_step_of_one_process_is_right(family: str) -> None:
    found = run(family, {})
    if family in WITHOUT_DEFINITION:
        assert found.pop("model.definition").status is Status.INCONCLUSIVE
    said = {name: verdict.sentence for name, verdict in found.items() if verdict.status is not Status.SKIPPED}
    assert {verdict.status for name, verdict in found.items() if name in said} == {Status.PASS}, said
    assert said.keys() >= STEP | DATA
    if not torch.cuda.is_available():
        assert all(sentence.endswith(STAND_IN) for sentence in said.values())


@pytest.mark.parametrize("layout", RESUMED)
def test_a_run_that_is_saved_and_resumed_goes_on_bit_by_bit(layout: str) -> None:
    family, settings = RESUMED[layout]
    found = run(family, settings, checks=("checkpoint.resume", "checkpoint.roundtrip"))
    assert found["checkpoint.resume"].status is Status.PASS, found["checkpoint.resume"].sentence
    assert "is the uninterrupted run's within 0:" in found["checkpoint.resume"].sentence
    assert found["checkpoint.roundtrip"].status is Status.PASS, found["checkpoint.roundtrip"].sentence
    assert found["checkpoint.roundtrip"].evidence["compared"] == {"saved": 25, "loaded": 25, "states": 75}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_step_of_two_processes_is_that_of_one(layout: str) -> None:
    family, settings = LAYOUTS[layout]
    found = run(family, settings, checks=("run", "data", "parallel", "step.grad_norm"))
    statuses = {name: verdict.status for name, verdict in found.items()}
    assert Status.FAIL not in statuses.values(), {name: verdict.sentence for name, verdict in found.items()}
    assert statuses["parallel.data"] is statuses["parallel.gradients"] is Status.PASS
    assert statuses["step.grad_norm"] is Status.PASS
    assert {statuses[name] for name in DATA} == {Status.PASS}


def test_tensor_parallel_by_automodels_own_plan_halves_the_gradients_of_the_heads_norms() -> None:
    """Its default plan divides the heads and says nothing of q_norm and k_norm."""
    settings: dict[str, object] = {"tp_size": 2, "options": ("force_hf=true",)}
    verdict = run("qwen3_moe", settings, checks=("parallel.gradients",))["parallel.gradients"]
    assert verdict.status is Status.FAIL
    assert "4 of 25 gradients are 0.5 times those of one process on every rank alike" in verdict.sentence
    assert "k_norm.weight" in verdict.sentence
    assert "is averaged where it is to be added up" in verdict.sentence


@pytest.mark.parametrize("layout", FAULTS)
def test_a_fault_of_one_rank_is_seen_in_every_layout_and_the_rank_is_named(layout: str) -> None:
    family, settings = LAYOUTS[layout]
    # What the fault would be divided by, were nothing said: one axis at a time.
    alone = {"dp_size": 1, "sharding": "none", "steps": 1} | settings
    verdict = run(family, alone, checks=("parallel.gradients",), inject=FAULTS[layout])["parallel.gradients"]
    assert verdict.status is Status.FAIL
    assert verdict.evidence["ranks"] == [1]
    assert "rank 1" in verdict.sentence


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({"lora": True}, {"step.lora"}),
        ({"packing": True}, {"data.packing"}),
        ({"options": ("loss=chunked",)}, {"step.loss"}),
    ],
    ids=["lora", "packed", "chunked"],
)
def test_adapters_packs_and_a_chunked_loss_take_the_step_of_the_definition(
    settings: dict[str, object], more: set[str]
) -> None:
    said = {name: each for name, each in run("qwen3", settings).items() if each.status is not Status.SKIPPED}
    assert {each.status for each in said.values()} == {Status.PASS}, {n: each.sentence for n, each in said.items()}
    assert said.keys() >= STEP | DATA | more
