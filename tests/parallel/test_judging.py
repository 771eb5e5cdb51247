"""The judges on captures made by hand: three ranks, steps without a majority, and what cannot be judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from checks.captures.capture import Capture
from checks.material import Material, RunOutcome
from checks.parallel import parallel_data, parallel_gradients, parallel_replicas
from checks.parallel.parallel_data import compare_rows
from checks.parallel.scope import OVER_RANKS, why_not_over_ranks
from checks.registry import CHECKS
from checks.roles import Role, spec_of
from checks.spec import RunSpec
from checks.verdict import Status, Verdict
from tests.parallel.making import Held, RankPart, cut, make_capture
from workers.planner import make_plan

W = "model.layers.0.mlp.up_proj.weight"
EACH, PAIRS = {0: 0, 1: 1}, {0: 0, 1: 0, 2: 1, 3: 1}
"""rank → its place on the data-parallel axis"""
A, B, C, D = ("a" * 16, 5), ("b" * 16, 6), ("c" * 16, 7), ("d" * 16, 8)

judges = pytest.mark.parametrize("check", [parallel_data.CHECK, parallel_replicas.CHECK, parallel_gradients.CHECK])


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def run_spec(**settings: object) -> RunSpec:
    return RunSpec("plain", Path("model"), Path("data"), **settings)  # type: ignore[arg-type]


def outcome(capture: Capture | None, unreadable: str | None = None) -> RunOutcome:
    return RunOutcome("completed", 0, 1.0, None, capture, unreadable)


class Two:
    """A run of several ranks and the same of one, made of tensors."""

    def __init__(self, directory: Path, *, dp_size: int = 2) -> None:
        self.directory = directory
        self.spec = run_spec(dp_size=dp_size, sharding="ddp")

    def judge(self, check: object, ranks: Sequence[RankPart], single: RankPart | None) -> Verdict:
        run = outcome(make_capture(self.directory / "run", ranks))
        alone = outcome(None if single is None else make_capture(self.directory / "single", [single]))
        return check.judge(Material(self.spec, run, {Role.SINGLE: alone}))  # type: ignore[attr-defined, no-any-return]


def test_of_three_ranks_the_one_outside_the_majority_is_named(tmp_path: Path) -> None:
    whole = draw(3, 4)
    ranks = [
        RankPart(rank, (Held(W, whole * 1.001 if rank == 0 else whole, kind="parameter_after"),)) for rank in range(3)
    ]
    verdict = Two(tmp_path, dp_size=3).judge(parallel_replicas.CHECK, ranks, None)
    assert verdict.status is Status.FAIL
    assert (verdict.evidence["ranks"], verdict.first_wrong) == ([0], f"rank 0: {W}")


def test_of_two_ranks_the_one_farther_from_one_process_is_named(tmp_path: Path) -> None:
    whole = draw(3, 4)
    ranks = [RankPart(rank, (Held(W, whole * (1.001 if rank == 0 else 1 + 1e-6)),)) for rank in range(2)]
    verdict = Two(tmp_path).judge(parallel_replicas.CHECK, ranks, RankPart(0, (Held(W, whole),)))
    assert verdict.evidence["ranks"] == [0]
    distances = verdict.evidence["differing"][0]["distance_from_one_process"]
    assert distances == pytest.approx({"0": 1e-3, "1": 1e-6}, rel=0.2)


def test_two_ranks_without_a_run_of_one_process_are_both_named(tmp_path: Path) -> None:
    ranks = [RankPart(rank, (Held(W, draw(3, 4, seed=rank)),)) for rank in range(2)]
    verdict = Two(tmp_path).judge(parallel_replicas.CHECK, ranks, None)
    assert verdict.status is Status.FAIL
    assert verdict.evidence["ranks"] == [0, 1]


def test_one_unit_in_the_last_place_of_one_element_is_seen(tmp_path: Path) -> None:
    whole = draw(3, 4)
    other = whole.clone()
    other[1, 2] = torch.nextafter(other[1, 2], torch.tensor(9.0))
    ranks = [RankPart(rank, (Held(W, each),)) for rank, each in enumerate((whole, other))]
    verdict = Two(tmp_path).judge(parallel_replicas.CHECK, ranks, RankPart(0, (Held(W, whole),)))
    assert (verdict.status, verdict.evidence["ranks"]) == (Status.FAIL, [1])


def test_shards_alone_are_no_replicas(tmp_path: Path) -> None:
    whole = draw(4, 3)
    ranks = [RankPart(rank, (cut(whole, W, [(2 * rank, 2 * rank + 2), (0, 3)]),)) for rank in range(2)]
    verdict = Two(tmp_path).judge(parallel_replicas.CHECK, ranks, None)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith("no tensor is on two ranks")


def test_stages_of_a_pipeline_have_no_replicas_to_compare(tmp_path: Path) -> None:
    ranks = [RankPart(rank, (Held(f"layers.{rank}.weight", draw(2, 3)),)) for rank in range(2)]
    two = Two(tmp_path)
    two.spec = run_spec(pp_size=2)
    verdict = two.judge(parallel_replicas.CHECK, ranks, None)
    assert verdict.status is Status.SKIPPED
    assert verdict.sentence.startswith("each stage holds its own parameters")


def gradients(tmp_path: Path, parts: Sequence[torch.Tensor], whole: torch.Tensor, *, norm: float = 2.0) -> Verdict:
    half = whole.shape[0] // 2
    wheres = [[(0, half), (0, whole.shape[1])], [(half, whole.shape[0]), (0, whole.shape[1])]]
    ranks = [
        RankPart(
            r, (Held(W, part, shape=tuple(whole.shape), where=wheres[r]),), norm=norm, rows=((A if r == 0 else B,),)
        )
        for r, part in enumerate(parts)
    ]
    single = RankPart(0, (Held(W, whole),), losses=(0.5, 0.5), norm=2.0, rows=((A,), (B,)))
    return Two(tmp_path).judge(parallel_gradients.CHECK, ranks, single)


def test_the_shard_that_is_off_is_named_and_the_other_is_not(tmp_path: Path) -> None:
    whole = draw(4, 3)
    verdict = gradients(tmp_path, [whole[:2], whole[2:] * 1.01], whole)
    assert verdict.status is Status.FAIL
    assert (verdict.evidence["ranks"], verdict.first_wrong) == ([1], f"rank 1, [2:4, 0:3]: {W}")
    assert "the gradients that rank 1 holds are not those of one process" in verdict.sentence


def test_a_shard_within_round_off_passes(tmp_path: Path) -> None:
    whole = draw(4, 3)
    verdict = gradients(tmp_path, [whole[:2] * (1 + 1e-7), whole[2:]], whole)
    assert verdict.status is Status.PASS
    assert "the round-off of its precision" in verdict.sentence


def test_the_round_off_grows_with_the_square_root_of_the_longest_sum(tmp_path: Path) -> None:
    whole = draw(64, 3)
    verdict = gradients(tmp_path, [whole[:32], whole[32:]], whole)
    (measured,) = (m for m in verdict.measurements if m.name == W)
    # floor: ε √64 of the norm, once for the tensor and once for its summands; threshold: 8 floors of each side
    assert measured.floor == pytest.approx(2.0**-24 * 8.0 * 2.0, rel=1e-6)
    assert measured.threshold == pytest.approx(16.0 * 2.0**-24 * 8.0 * 2.0, rel=1e-6)


def test_a_norm_that_is_not_that_of_one_process_fails_where_the_gradients_agree(tmp_path: Path) -> None:
    whole = draw(4, 3)
    verdict = gradients(tmp_path, [whole[:2], whole[2:]], whole, norm=2.001)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "gradient norm")
    assert verdict.evidence["ranks"] == [0, 1]


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        (
            (1.0, 0.5, 0.5),
            "2 of 3 gradients are 0.5 times those of one process on every rank alike, and the others are right: "
            "layers.0.q_norm.weight, layers.1.q_norm.weight; what the 2 ranks have of them is averaged where it is to "
            "be added up",
        ),
        (
            (1.0, 2.0, 1.0),
            "1 of 3 gradients is 2 times those of one process on every rank alike, and the others are right: "
            "layers.0.q_norm.weight; what the 2 ranks have of it is added up where it is to be averaged",
        ),
        # what is wrong is nearly all that there is of the gradient's norm
        (
            (0.5, 1.0, 1.0),
            "1 of 3 gradients is 0.5 times those of one process on every rank alike, and the others are",
        ),
        ((0.9999, 0.9999, 0.9999), "all gradients are 0.9999 times those of one process, on every rank alike"),
        ((0.5, 0.5, 0.5), "all gradients are 0.5 times those of one process: they are averaged twice over the 2 ranks"),
        ((1.0, 0.5, 0.7), "2 gradients are not those of one process on any rank, most of all that of layers.0.q_norm"),
    ],
)
def test_gradients_that_are_off_by_a_factor_on_every_rank_are_told_from_others(
    factors: tuple[float, ...], said: str, tmp_path: Path
) -> None:
    names = (W, "layers.0.q_norm.weight", "layers.1.q_norm.weight")
    wholes = [draw(8, 8), draw(8, seed=1) * 0.01, draw(8, seed=2) * 0.01]
    made = tuple(Held(name, whole * factor) for name, whole, factor in zip(names, wholes, factors, strict=True))
    alone = tuple(Held(name, whole) for name, whole in zip(names, wholes, strict=True))
    ranks = [RankPart(rank, made, norm=2.0, rows=((row,),)) for rank, row in enumerate((A, B))]
    single = RankPart(0, alone, losses=(0.5, 0.5), norm=2.0, rows=((A,), (B,)))
    verdict = Two(tmp_path).judge(parallel_gradients.CHECK, ranks, single)
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith(said)
    assert verdict.evidence["ranks"] == []


@judges
def test_a_missing_rank_is_inconclusive_and_named(check: object, tmp_path: Path) -> None:
    whole = (Held(W, draw(2, 2)),)
    verdict = Two(tmp_path).judge(check, [RankPart(0, whole, rows=((A,),))], RankPart(0, whole, rows=((A,),)))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "rank 1 of 2 left no record; record the capture again with all ranks"


@judges
def test_a_rank_whose_file_is_gone_is_inconclusive_and_named(check: object) -> None:
    said = "step00001-rank00001.safetensors: cannot be read (No such file); record the capture again."
    material = Material(run_spec(dp_size=2, sharding="ddp"), outcome(None, said))
    verdict = check.judge(material)  # type: ignore[attr-defined]
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == f"the run left no readable capture: {said.rstrip('.')}"


@pytest.mark.parametrize("check", [parallel_data.CHECK, parallel_gradients.CHECK])
def test_without_a_run_of_one_process_there_is_no_identity(check: object, tmp_path: Path) -> None:
    whole = (Held(W, draw(2, 2)),)
    ranks = [RankPart(rank, whole, rows=((A,),)) for rank in range(2)]
    verdict = Two(tmp_path).judge(check, ranks, None)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "the run of one process left no step to compare with (completed)"


def test_rows_that_were_not_printed_leave_the_data_open(tmp_path: Path) -> None:
    whole = (Held(W, draw(2, 2)),)
    verdict = Two(tmp_path).judge(parallel_data.CHECK, [RankPart(r, whole) for r in range(2)], RankPart(0, whole))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith("no row was printed by the recorder")


def test_rows_of_their_own_in_any_order_are_the_global_batch() -> None:
    found = compare_rows(1, {0: ((A, C),), 1: ((D, B),)}, ((A, B), (C, D)), sharing=EACH)
    assert found.holds
    assert found.wrong == (0, 1)  # not at their places, which alone is no fault


def test_rows_that_the_data_set_holds_twice_are_not_shared() -> None:
    assert compare_rows(1, {0: ((A,),), 1: ((A,),)}, ((A,), (A,)), sharing=EACH).holds


def test_a_rank_that_repeats_anothers_rows_is_the_one_out_of_place() -> None:
    found = compare_rows(1, {0: ((A, B),), 1: ((A, B),)}, ((A, B), (C, D)), sharing=EACH)
    assert (found.shared, found.lost, found.foreign, found.wrong) == (((0, 1, 2),), 2, 0, (1,))


def test_rows_of_another_step_are_foreign() -> None:
    found = compare_rows(1, {0: ((A,),), 1: ((C,),)}, ((A,), (B,)), sharing=EACH)
    assert (found.shared, found.lost, found.foreign, found.wrong, found.holds) == ((), 1, 1, (1,), False)


def test_ranks_of_one_model_that_read_different_rows_are_split() -> None:
    found = compare_rows(1, {0: ((A,),), 1: ((A,),), 2: ((B,),), 3: ((C,),)}, ((A,), (B,)), sharing=PAIRS)
    assert (found.split, found.holds) == ((3,), False)


def test_the_run_of_one_process_takes_all_ranks_micro_batches() -> None:
    spec = run_spec(dp_size=2, sharding="fsdp2", batch=3, accumulation=4)
    alone = spec_of(Role.SINGLE, spec)
    assert (alone.processes, alone.sharding, alone.batch, alone.accumulation) == (1, "none", 3, 8)
    assert replace(alone, dp_size=2, sharding="fsdp2", accumulation=4) == spec


def test_a_run_of_one_process_skips_the_parallel_checks_and_takes_no_second_run() -> None:
    checks = [CHECKS[name] for name in ("parallel.data", "parallel.replicas", "parallel.gradients")]
    plan = make_plan(run_spec(), checks)
    assert [reason for _, reason in plan.skipped] == ["the run is of one process"] * 3
    assert plan.runs == ()


def test_a_run_of_two_processes_skips_what_reads_one_and_says_what_does_instead() -> None:
    spec = run_spec(tp_size=2)
    plan = make_plan(spec, list(CHECKS.values()))
    judged = {check.name for check in plan.judged}
    assert judged <= OVER_RANKS
    assert judged >= {"run.completes", "data.coverage", "parallel.data", "parallel.replicas", "parallel.gradients"}
    assert [run.role for run in plan.runs] == [Role.RUN, Role.RESHARDED, Role.SINGLE]
    assert why_not_over_ranks("step.loss", spec) == (
        "the run is of 2 processes and this check reads one; parallel.gradients holds their step against a run of one "
        "process"
    )


def test_what_is_resumed_is_skipped_where_the_framework_saves_nothing() -> None:
    (skipped,) = make_plan(run_spec(), [CHECKS["checkpoint.resume"]]).skipped
    assert skipped[1] == "the plain loop saves nothing that could be resumed"
