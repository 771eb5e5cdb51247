"""On one card, in five minutes: noise of bf16, the recorder's cost, a second pass, memory, and whole verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.models import resolve_model
from checks.spec import Precision
from checks.verdict import Status
from tests.gpu.end_to_end import validate_on
from tests.gpu.noise import make_batch, measure_noise
from tests.gpu.runs import hash_sketches, measure_overhead, read_memory, run_loop

pytestmark = pytest.mark.gpu

CUDA = "cuda"
SCALE_LIMIT = 0.01
"""Of the pooled signed scale of a healthy bf16 step."""

IDLE_LIMIT = 2.0
"""Plain steps that one may take that the recorder does not capture: its hooks wait for nothing on the device."""

WORKSPACE = 64 * 1024**2
"""Bytes that cuBLAS and cuBLASLt may hold in torch's allocator
(https://docs.pytorch.org/docs/stable/notes/cuda.html#cublas-workspaces): 32 MiB on Hopper, and as much again."""

KERNELS = 0.1
"""Of a peak: what kernels take for themselves while they run, such as the float32 sums of a flash backward."""


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_healthy_bf16_step_stays_below_the_thresholds_with_every_attention_kernel(family: str) -> None:
    noise = measure_noise(
        resolve_model(f"tiny:{family}").path, make_batch(rows=2, positions=128, vocabulary=512), device=CUDA
    )
    for kernel, found in noise.items():
        print(
            f"\n{family}, {kernel}: {found.ratio:.2f} of the threshold in {found.name}, pooled scale {found.scale:.5f}"
        )
    assert set(noise) >= {"math", "flash"}
    assert all(found.ratio <= 1.0 for found in noise.values())
    assert all(abs(found.scale - 1.0) <= SCALE_LIMIT for found in noise.values())


def test_the_recorder_leaves_the_run_bitwise_as_it_is_a_second_pass_repeats_it_and_the_cost_is_told(
    tmp_path: Path,
) -> None:
    plain = run_loop(CUDA, size="large", steps=8)
    options = ("--steps", "1,4,8")
    first = run_loop(CUDA, size="large", steps=8, out=tmp_path / "first", options=options)
    second = run_loop(CUDA, size="large", steps=8, out=tmp_path / "second", options=options)
    assert plain.digest == first.digest == second.digest
    assert first.capture is not None
    assert second.capture is not None
    assert first.capture.missing == ()
    assert hash_sketches(first.capture) == hash_sketches(second.capture)
    overhead = measure_overhead(plain, first)
    print(f"\n{overhead.sentence}")
    assert overhead.idle / overhead.plain <= IDLE_LIMIT


def test_live_bytes_are_those_of_the_allocator_in_every_phase(tmp_path: Path) -> None:
    run = run_loop(CUDA, size="large", steps=5, out=tmp_path / "memory", options=("--memory", "--steps", "1,5"))
    assert run.capture is not None
    assert run.capture.missing == ()
    measured = read_memory(run)
    assert measured.device == "cuda:0"
    for phase in measured.phases:
        assert phase.allocator is not None
        assert phase.allocator_peak is not None
        assert phase.end <= phase.allocator <= phase.end + WORKSPACE, phase
        assert phase.peak <= phase.allocator_peak <= (1.0 + KERNELS) * phase.peak + WORKSPACE, phase
    last = measured.moments[-1]
    assert (last.parameters, last.gradients) == (4 * run.parameters, 4 * run.parameters)
    # The counts of steps of AdamW are on the CPU.
    assert last.states == 2 * 4 * run.parameters
    after = [moment for moment in measured.moments if moment.name == "after the update"]
    assert after[-1].allocator == after[-2].allocator == after[-3].allocator
    assert all(survivors.bytes == 0 for survivors in last.survivors)
    peak = max(measured.phases, key=lambda phase: phase.peak)
    print(f"\npeak in the {peak.name}: {peak.peak:,} bytes counted, {peak.allocator_peak:,} of the allocator")


@pytest.mark.parametrize("precision", ["float32", "bf16", "bf16_params", "fp16"])
def test_a_small_validation_has_no_false_alarm(precision: Precision, tmp_path: Path) -> None:
    verdicts = validate_on(CUDA, precision, tmp_path)
    wrong = {
        name: verdict.sentence for name, verdict in verdicts.items() if verdict.status in (Status.FAIL, Status.ERROR)
    }
    print(f"\n{precision}: {sum(verdict.status is Status.PASS for verdict in verdicts.values())} checks pass")
    assert wrong == {}
    assert verdicts["run.completes"].status is Status.PASS
    assert verdicts["step.gradients"].status is Status.PASS


def test_the_memory_of_a_step_on_the_card_is_what_its_shapes_imply(tmp_path: Path) -> None:
    verdict = validate_on(CUDA, "bf16", tmp_path, checks=("memory.step",))["memory.step"]
    print(f"\n{verdict.sentence}")
    assert verdict.status is Status.PASS
    assert verdict.evidence["device"] == "cuda:0"
