"""The helpers of the GPU tests do on a CPU, in small, what they are to do on a card."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from checks.models import resolve_model
from checks.verdict import Status
from tests.gpu.end_to_end import validate_on
from tests.gpu.noise import make_batch, measure_noise
from tests.gpu.runs import ROOT, LoopRun, build_environment, hash_sketches, measure_overhead, read_memory, run_loop

CPU = "cpu"
HEAVY = ("django", "celery", "redis", "psycopg", "trl", "peft", "datasets", "pyarrow", "rich", "accelerate")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> LoopRun:
    out = tmp_path_factory.mktemp("loop") / "capture"
    return run_loop(CPU, size="tiny", steps=5, out=out, options=("--steps", "1,3,5"))


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> LoopRun:
    out = tmp_path_factory.mktemp("memory") / "capture"
    return run_loop(CPU, size="tiny", steps=5, out=out, options=("--memory", "--steps", "1,5"))


def test_the_loop_repeats_itself_recorded_or_metered_or_not(recorded: LoopRun, metered: LoopRun) -> None:
    plain = run_loop(CPU, size="tiny", steps=5)
    assert plain.digest == recorded.digest == metered.digest
    overhead = measure_overhead(plain, recorded)
    assert overhead.plain > 0
    assert f"{overhead.captured / overhead.plain:.2f} × where a step is" in overhead.sentence


def test_sketches_of_a_capture_have_a_digest_each(recorded: LoopRun) -> None:
    assert recorded.capture is not None
    digests = hash_sketches(recorded.capture)
    names = set(recorded.capture.tensors(1, "gradient"))
    assert set(digests) == {f"{step} {name}" for step in (1, 3, 5) for name in names}
    assert len(set(digests.values())) == len(digests)


def test_the_meter_sees_the_loops_memory_and_no_allocator_on_a_cpu(metered: LoopRun) -> None:
    measured = read_memory(metered)
    assert measured.device == CPU
    assert {phase.allocator for phase in measured.phases} == {None}
    last = measured.moments[-1]
    assert (last.parameters, last.gradients) == (4 * metered.parameters, 4 * metered.parameters)
    assert all(survivors.bytes == 0 for survivors in last.survivors)


def test_bf16_steps_with_every_kernel_of_the_cpu_stay_below_their_thresholds() -> None:
    batch = make_batch(rows=1, positions=24, vocabulary=512)
    noise = measure_noise(resolve_model("tiny:llama").path, batch, device=CPU)
    assert set(noise) == {"math", "flash"}
    for found in noise.values():
        assert 0.0 < found.ratio <= 1.0
        assert abs(found.scale - 1.0) < 0.02
        assert found.loss < 0.05


def test_a_small_validation_comes_to_its_verdicts(tmp_path: Path) -> None:
    verdicts = validate_on(CPU, "bf16", tmp_path, checks=("run.completes", "environment.settings", "memory.step"))
    assert {name: verdict.status for name, verdict in verdicts.items()} == dict.fromkeys(verdicts, Status.PASS)


def test_without_a_card_the_tests_are_skipped_on_a_machine_that_has_neither_database_nor_frameworks() -> None:
    refuse = f"import sys; sys.modules.update(dict.fromkeys({HEAVY!r}))"  # None in sys.modules: cannot be imported
    options = ["-c", "tests/gpu/bare.ini", "--rootdir", ".", "--confcutdir", "tests/gpu", "-m", "gpu", "tests/gpu"]
    program = f"{refuse}; import pytest; sys.exit(pytest.main({options!r}))"
    environment = {name: value for name, value in build_environment(CPU).items() if not name.startswith("PYTEST")}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torch sees no CUDA device on this machine" in done.stdout
    assert "9 skipped" in done.stdout
