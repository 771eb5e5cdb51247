"""data.coverage: samples that are dropped, come twice, are shared by ranks, or come in one order, from rows' prints."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plumbline_capture.fingerprints import fingerprint
from torch.utils.data import RandomSampler

from checks.assemble import assemble
from checks.captures.capture import open_capture
from checks.captures.row_prints import read_forwards
from checks.errors import CaptureError
from checks.faults import fault, was_in_force
from checks.lifecycle import data_coverage, data_mask, data_template
from checks.lifecycle.unprinted_rows import find_unprinted
from checks.material import Material, RunOutcome
from checks.references.dataset import read_dataset
from checks.registry import CHECKS
from checks.roles import Role
from checks.spec import RunSpec
from checks.verdict import Pattern, Status, Verdict
from tests.capture.running import PLAIN_LM, run_recorded
from tests.checks.conftest import Recording
from tests.checks.data_runs import Batch, batch_up, inject, make_material, make_spec, pack, tokenize_all, write_data
from tests.checks.editing import Edit
from workers.frameworks import adapter
from workers.frameworks.interpreter import framework_python
from workers.runner import run_framework

COUNT = 10
"""samples of the small data set"""


@pytest.fixture
def small(tmp_path: Path) -> RunSpec:
    rows = [{"text": f"{number} hens lay {5 * number} eggs" + " and more" * (number % 3)} for number in range(COUNT)]
    return make_spec(write_data(tmp_path, rows))


def shuffle(seed: int, count: int = COUNT) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def make_batches(spec: RunSpec, order: Sequence[int], *, batch: int = 2) -> list[Batch]:
    """Micro-batches of the samples in this order."""
    examples = tokenize_all(spec)
    return batch_up([examples[index] for index in order], batch=batch)


def judge(spec: RunSpec, order: Sequence[int], directory: Path) -> Verdict:
    return data_coverage.judge(make_material(spec, make_batches(spec, order), directory))


def judge_ranks(spec: RunSpec, orders: Sequence[Sequence[int]], directory: Path, **options: Any) -> Verdict:
    batches = [make_batches(spec, order) for order in orders]
    return data_coverage.judge(make_material(spec, batches, directory, ranks=True, **options))


def test_two_epochs_and_a_rest_pass_and_say_what_was_counted(small: RunSpec, tmp_path: Path) -> None:
    verdict = judge(small, [*shuffle(1), *shuffle(2), 3, 4], tmp_path)
    assert verdict.status is Status.PASS
    assert verdict.sentence == (
        "each of 10 samples is trained on once in each of 2 epochs, in different orders; "
        "no sample comes twice in the 2 rows after them"
    )
    assert {m.name: m.value for m in verdict.measurements} == {
        "samples that an epoch leaves out": 0.0,
        "samples that come twice in an epoch": 0.0,
        "rows that two ranks share": 0.0,
        "epochs in the order of the one before": 0.0,
    }
    assert verdict.evidence["times_seen"] == {"2": 8, "3": 2}
    assert verdict.evidence["order"][:2] == [[1, 0, shuffle(1)[0]], [1, 0, shuffle(1)[1]]]
    assert [one["whole"] for one in verdict.evidence["epochs"]] == [True, True, False]


def test_a_run_shorter_than_an_epoch_says_how_much_it_saw(small: RunSpec, tmp_path: Path) -> None:
    verdict = judge(small, shuffle(1)[:6], tmp_path)
    assert verdict.status is Status.PASS
    assert verdict.sentence == (
        "no sample comes twice in the 6 rows of steps 1 to 3, which are 60% of an epoch of 10; "
        "samples left out, and order, need more steps"
    )
    assert [m.name for m in verdict.measurements] == [
        "samples that come twice in an epoch",
        "rows that two ranks share",
    ]


def keep_rows(manifest: dict[str, Any], *, steps: set[int], asked: tuple[int, ...] = (1, 3), rank: int = 0) -> None:
    """Leave the rows of some steps only, of a recorder that was asked for others."""
    manifest["recorder"] = {"steps": list(asked)}
    part = manifest["ranks"][rank]
    part["rows"] = [entry for entry in part["rows"] if entry["step"] in steps]


@pytest.mark.parametrize(
    ("kept", "named"), [({1}, "steps 2 to 3"), ({1, 3}, "step 2"), ({2}, "step 1, step 3"), ({1, 2, 3}, None)]
)
def test_steps_without_rows_leave_it_open(small: RunSpec, tmp_path: Path, kept: set[int], named: str | None) -> None:
    batches = make_batches(small, shuffle(1)[:6])
    verdict = data_coverage.judge(make_material(small, batches, tmp_path, edit=lambda m: keep_rows(m, steps=kept)))
    if named is None:
        assert verdict.status is Status.PASS
    else:
        assert verdict.status is Status.INCONCLUSIVE
        assert verdict.sentence == (
            f"no rows of {named} were recorded, so that samples cannot be counted; record the capture again"
        )


def test_a_step_that_was_not_reached_is_not_missed(small: RunSpec, tmp_path: Path) -> None:
    def end_early(manifest: dict[str, Any]) -> None:
        keep_rows(manifest, steps={1, 2})
        manifest["missing"] = [{"rank": 0, "step": 3, "what": "step", "why": "the command ended before"}]

    material = make_material(small, make_batches(small, shuffle(1)[:6]), tmp_path, edit=end_early)
    verdict = data_coverage.judge(material)
    assert verdict.status is Status.PASS
    assert "in the 4 rows of steps 1 to 2" in verdict.sentence


def test_a_rank_without_its_rows_is_named(small: RunSpec, tmp_path: Path) -> None:
    orders = [shuffle(1)[:4], shuffle(1)[4:8]]
    verdict = judge_ranks(small, orders, tmp_path, edit=lambda m: keep_rows(m, steps={1}, asked=(1, 2), rank=1))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith("no rows of step 2 were recorded on rank 1, so that")
    other = tmp_path / "other"
    other.mkdir()
    verdict = judge_ranks(small, orders, other, edit=lambda m: keep_rows(m, steps=set(), asked=(1,), rank=1))
    assert verdict.sentence.startswith("no rows of step 1 were recorded on rank 1, so that")


@pytest.mark.parametrize("step", [1, 2])
def test_a_micro_batch_without_its_rows_leaves_it_open(
    recordings: dict[str, Recording], tmp_path: Path, step: int
) -> None:
    run = recordings["run"]
    editing = Edit(open_capture(run.capture), tmp_path / "edited")
    rows = editing.manifest["ranks"][0]["rows"]
    rows.remove(next(entry for entry in rows if (entry["step"], entry["micro_batch"]) == (step, 1)))
    outcome = RunOutcome("completed", 0, 1.0, None, editing.save(), None)
    verdict = data_coverage.judge(Material(run.spec, outcome, dataset=read_dataset(run.spec), total_steps=3))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith(f"only the rows of 1 of 2 micro-batches of step {step} were recorded, so that")


def test_the_last_step_of_an_epoch_may_have_fewer_micro_batches(recordings: dict[str, Recording]) -> None:
    forwards = read_forwards(open_capture(recordings["run"].capture))
    capture, rows = open_capture(recordings["run"].capture), sum(len(one.rows) for one in forwards)
    short = [one for one in forwards if (one.step, one.micro_batch) != (2, 1)]
    for size, expected in (
        (rows + 100, "only the rows of 1 of 2 micro-batches of step 2 were recorded"),
        (rows // 2, None),
    ):
        assert find_unprinted(capture, short, ranks=(0,), size=size) == expected


def test_a_sample_that_is_never_seen_fails(small: RunSpec, tmp_path: Path) -> None:
    first, second = ([index for index in shuffle(seed) if index != 7] for seed in (1, 2))
    verdict = judge(small, [*first, *second], tmp_path)
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith(
        "epoch 1 (10 rows for 10 samples) leaves out sample 8 (line 8), 1 of them in the whole run and repeats sample "
    )
    assert (verdict.pattern, verdict.first_wrong) == (Pattern.LOSS_MASK, "sampler")
    assert verdict.measurements[0].value == 1.0
    assert verdict.evidence["epochs"][0]["missing"] == ["sample 8 (line 8)"]


def test_a_sample_that_comes_twice_fails_in_an_epoch_and_in_a_part_of_one(small: RunSpec, tmp_path: Path) -> None:
    order = shuffle(1)
    twice = [*order[:4], order[1], *order[5:]]
    for name in ("whole", "part"):
        (tmp_path / name).mkdir()
    whole = judge(small, twice, tmp_path / "whole")
    assert whole.sentence == (
        f"epoch 1 (10 rows for 10 samples) leaves out sample {order[4] + 1} (line {order[4] + 1}), 1 of them in the "
        f"whole run and repeats sample {order[1] + 1} (line {order[1] + 1}) (again in step 3, micro-batch 0, rank 0)"
    )
    part = judge(small, twice[:6], tmp_path / "part")
    assert part.status is Status.FAIL
    assert part.sentence.startswith("epoch 1 (6 rows for 10 samples) repeats sample ")


def test_one_order_in_two_epochs_fails_from_eight_samples_on(small: RunSpec, tmp_path: Path) -> None:
    verdict = judge(small, [*shuffle(1), *shuffle(2), *shuffle(2)], tmp_path)
    assert verdict.status is Status.FAIL
    assert verdict.sentence == (
        "epochs 2 and 3 hold the 10 samples in the same order: "
        "the shuffle is not seeded with the epoch, or there is none"
    )
    for count in (7, 8):
        directory = tmp_path / str(count)
        directory.mkdir()
        spec = make_spec(write_data(directory, [{"text": f"{number} eggs"} for number in range(count)]))
        order = shuffle(3, count)
        examples = tokenize_all(spec)
        batches = batch_up([examples[index] for index in [*order, *order]], batch=1)
        few = data_coverage.judge(make_material(spec, batches, directory))
        assert few.status is (Status.FAIL if count == 8 else Status.PASS)
        if count == 7:
            assert few.sentence.endswith(", whose order 7 samples do not tell")


def test_samples_of_equal_tokens_are_due_as_often_as_the_data_hold_them(tmp_path: Path) -> None:
    spec = make_spec(write_data(tmp_path, [{"text": text} for text in ("a", "b", "a", "c")]))
    for name in ("right", "wrong"):
        (tmp_path / name).mkdir()
    assert judge(spec, [2, 1, 0, 3], tmp_path / "right").status is Status.PASS
    wrong = judge(spec, [2, 1, 1, 3], tmp_path / "wrong")
    assert wrong.status is Status.FAIL
    assert "leaves out sample 1 (line 1)" in wrong.sentence


def test_samples_without_an_answer_within_seq_len_may_be_left_out_but_no_others(tmp_path: Path) -> None:
    talks = [[("user", "word " * (60 if number == 2 else 1)), ("assistant", f"{number}.")] for number in range(4)]
    rows = [{"messages": [{"role": role, "content": text} for role, text in talk]} for talk in talks]
    spec = make_spec(write_data(tmp_path, rows), seq_len=40, assistant_only=True)
    for name in ("kept", "dropped", "other"):
        (tmp_path / name).mkdir()
    dropped = judge(spec, [0, 1, 3], tmp_path / "dropped")
    assert dropped.status is Status.PASS
    assert dropped.sentence == (
        "each of 3 samples is trained on once in each of 1 epochs; "
        "1 samples have no answer within seq_len and are left out"
    )
    assert dropped.evidence["left_out_without_answer"] == ["sample 3 (line 3)"]
    assert "each of 4 samples" in judge(spec, [0, 1, 2, 3], tmp_path / "kept").sentence
    assert judge(spec, [0, 1, 2, 0], tmp_path / "other").status is Status.FAIL


def test_ranks_that_divide_the_samples_pass(small: RunSpec, tmp_path: Path) -> None:
    first, second = shuffle(1), shuffle(2)
    ranks = [[*first[0:2], *first[4:6], first[8]], [*first[2:4], *first[6:8], first[9]]]
    verdict = judge_ranks(small, ranks, tmp_path)
    assert verdict.status is Status.PASS
    assert verdict.sentence == "each of 10 samples is trained on once in each of 1 epochs over 2 ranks"
    assert second != first


def test_the_last_batches_may_be_filled_up_over_ranks_and_only_there(small: RunSpec, tmp_path: Path) -> None:
    order = shuffle(1)
    filled = [*order, *order[:2]]  # 12 rows: three batches of two rows for two ranks
    ranks = [[*filled[0:2], *filled[4:6], *filled[8:10]], [*filled[2:4], *filled[6:8], *filled[10:12]]]
    for name in ("filled", "early", "lost"):
        (tmp_path / name).mkdir()
    assert judge_ranks(small, ranks, tmp_path / "filled").status is Status.PASS
    early = [[*order[0:2], *order[0:2], *order[6:8]], [*order[2:4], *order[4:6], *order[8:10]]]
    verdict = judge_ranks(small, early, tmp_path / "early")
    assert verdict.status is Status.FAIL
    assert "(again in step 2, micro-batch 0, rank 0)" in verdict.sentence
    lost = [[*filled[0:2], *filled[4:6], *filled[0:2]], [*filled[2:4], *filled[6:8], *filled[10:12]]]
    assert judge_ranks(small, lost, tmp_path / "lost").status is Status.FAIL


def test_ranks_on_the_same_rows_fail_as_a_parallelism_fault(small: RunSpec, tmp_path: Path) -> None:
    order = shuffle(1)
    verdict = judge_ranks(small, [order, order], tmp_path)
    assert verdict.status is Status.FAIL
    assert verdict.pattern is Pattern.PARALLELISM
    assert verdict.sentence == (
        f"ranks train on the same rows 10 times, first on sample {order[0] + 1} (line {order[0] + 1}) in step 1, "
        "micro-batch 0: the data are not divided over the ranks, or ranks shuffle each for itself"
    )


def test_ranks_that_shuffle_each_for_itself_repeat_and_leave_out(small: RunSpec, tmp_path: Path) -> None:
    verdict = judge_ranks(small, [shuffle(1)[:5], shuffle(2)[:5]], tmp_path)
    assert verdict.status is Status.FAIL
    assert verdict.measurements[0].value > 0


def test_ranks_of_a_tensor_parallel_mesh_leave_it_open(small: RunSpec, tmp_path: Path) -> None:
    def place(manifest: dict[str, Any]) -> None:
        manifest["tensors"][0]["placement"] = {"tp": "shard"}

    order = shuffle(1)
    verdict = judge_ranks(small, [order, order], tmp_path, edit=place)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith("ranks of the mesh axis tp may read the same rows")


def test_a_missing_rank_leaves_it_open(small: RunSpec, tmp_path: Path) -> None:
    def lose(manifest: dict[str, Any]) -> None:
        manifest["ranks"] = [manifest["ranks"][0], manifest["ranks"][2]]

    verdict = judge_ranks(small, [shuffle(1)[:2], shuffle(1)[2:4], shuffle(1)[4:6]], tmp_path, edit=lose)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "rank 1 left no record, so that its rows are not known; record all ranks"


def test_rows_of_no_sample_leave_it_open(small: RunSpec, tmp_path: Path) -> None:
    batches = make_batches(small, shuffle(1))
    batches[2]["input_ids"][0, 0] += 1
    verdict = data_coverage.judge(make_material(small, batches, tmp_path))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == (
        "1 of 10 rows are no sample of the data set (see data.template), so that samples cannot be counted"
    )


def test_rows_that_are_padded_without_a_mask_are_found(small: RunSpec, tmp_path: Path) -> None:
    batches = make_batches(small, shuffle(1))
    lengths = {int(batch["attention_mask"].sum()) for batch in batches}
    assert len(lengths) > 1
    for batch in batches:
        del batch["attention_mask"]
    assert data_coverage.judge(make_material(small, batches, tmp_path)).status is Status.PASS


def test_packed_documents_are_counted_one_by_one(small: RunSpec, tmp_path: Path) -> None:
    spec = replace(small, packing=True)
    ids = [example["input_ids"] for example in tokenize_all(spec)]

    def packs(order: Sequence[int]) -> list[Batch]:
        return [pack([ids[index] for index in order[start : start + 3]]) for start in range(0, len(order), 3)]

    for name in ("right", "wrong", "lost"):
        (tmp_path / name).mkdir()
    right = data_coverage.judge(make_material(spec, packs([*shuffle(1), *shuffle(2)]), tmp_path / "right"))
    assert right.status is Status.PASS
    assert right.sentence.startswith("each of 10 samples is trained on once in each of 2 epochs")
    wrong = data_coverage.judge(make_material(spec, packs([*shuffle(1)[:5], shuffle(1)[0]]), tmp_path / "wrong"))
    assert wrong.sentence.startswith("epoch 1 (6 rows for 10 samples) repeats sample ")
    rows = packs(shuffle(1))
    del rows[0]["position_ids"]
    lost = data_coverage.judge(make_material(spec, rows, tmp_path / "lost"))
    assert lost.status is Status.INCONCLUSIVE
    assert lost.sentence.startswith("1 of 8 documents are no sample of the data set")


def test_padding_of_a_packed_row_is_no_document(small: RunSpec, tmp_path: Path) -> None:
    spec = replace(small, packing=True)
    ids = [example["input_ids"] for example in tokenize_all(spec)]
    row = pack(ids)
    padded = {name: torch.nn.functional.pad(value, (0, 3), value=0) for name, value in row.items()}
    verdict = data_coverage.judge(make_material(spec, [padded], tmp_path))
    assert verdict.status is Status.PASS
    assert verdict.evidence["rows"] == COUNT


def test_what_was_not_recorded_leaves_it_open(small: RunSpec, tmp_path: Path) -> None:
    def forget(manifest: dict[str, Any]) -> None:
        del manifest["ranks"][0]["rows"]

    def overflow(manifest: dict[str, Any]) -> None:
        manifest["missing"] = [{"rank": 0, "step": 9, "what": "rows", "why": "more than 8 rows were trained on"}]

    def garble(manifest: dict[str, Any]) -> None:
        manifest["ranks"][0]["rows"][0]["rows"][0] = [7, 7]

    sentences = {
        forget: "no row was printed by the recorder; record again with the present plumbline-capture",
        overflow: "not all rows were printed: more than 8 rows were trained on",
    }
    material: Material | None = None
    for number, edit in enumerate((forget, overflow, garble)):
        (tmp_path / str(number)).mkdir()
        material = make_material(small, make_batches(small, shuffle(1)), tmp_path / str(number), edit=edit)
        verdict = data_coverage.judge(material)
        assert verdict.status is Status.INCONCLUSIVE
        assert verdict.sentence == sentences.get(edit, verdict.sentence)
    assert material is not None
    assert material.capture is not None
    with pytest.raises(CaptureError, match="has rows without a valid fingerprint"):
        read_forwards(material.capture)
    unknown = replace(material, dataset=None, no_dataset="the samples cannot be rendered: no chat template")
    assert data_coverage.judge(unknown).sentence == "the samples cannot be rendered: no chat template"
    crashed = replace(material, run=replace(material.run, capture=None))
    assert data_coverage.judge(crashed).status is Status.INCONCLUSIVE


@pytest.mark.parametrize("slug", ["sample-repeated", "sample-dropped", "same-order-each-epoch"])
def test_a_fault_in_the_sampler_is_seen(
    slug: str, small: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inject(slug, monkeypatch)
    sampler = RandomSampler(range(COUNT), generator=torch.Generator().manual_seed(3))
    verdict = judge(small, [index for _ in range(3) for index in sampler], tmp_path)
    assert fault(slug).marker in capsys.readouterr().err
    assert verdict.status is Status.FAIL
    assert (verdict.check, verdict.pattern) == (fault(slug).check, fault(slug).pattern)
    assert verdict.sentence.startswith(
        "epochs 1 and 2" if slug == "same-order-each-epoch" else "epoch 1 (10 rows for 10"
    )


def test_torchs_own_sampler_passes(small: RunSpec, tmp_path: Path) -> None:
    sampler = RandomSampler(range(COUNT), generator=torch.Generator().manual_seed(3))
    assert judge(small, [index for _ in range(3) for index in sampler], tmp_path).status is Status.PASS


def test_a_print_is_that_of_the_format_page() -> None:
    assert fingerprint([1, 2, 3]) == "e2e2033ae7e19d68"
    assert fingerprint([]) == "e3b0c44298fc1c14"


def test_the_recorder_prints_the_rows_of_every_step_and_of_training_alone(tmp_path: Path) -> None:
    recorded = run_recorded(tmp_path / "capture", framework_python(), str(PLAIN_LM), "everyday")
    (rank,) = recorded.manifest["ranks"]
    assert [record["step"] for record in rank["steps"]] == [1, 3]
    assert [(entry["step"], entry["micro_batch"]) for entry in rank["rows"]] == [
        (step, micro_batch) for step in (1, 2, 3) for micro_batch in (0, 1)
    ]
    for step in (1, 3):
        for index in (0, 1):
            tokens = recorded.tensor("full", kind="batch", name="tokens", step=step, micro_batch=index).tolist()
            (entry,) = [e for e in rank["rows"] if (e["step"], e["micro_batch"]) == (step, index)]
            assert entry["rows"] == [[fingerprint(row), 12] for row in tokens]
            assert (entry["width"], entry["masked"], entry["documents"]) == (12, False, None)


def read(capture: Path, spec: RunSpec) -> Material:
    outcome = RunOutcome("completed", 0, 1.0, None, open_capture(capture), None)
    return assemble(spec, {Role.RUN: outcome}, references=False, definition=False)


@pytest.mark.parametrize("label", ["run", "packed"])
def test_runs_of_both_frameworks_pass_all_checks_of_the_data(label: str, recordings: dict[str, Recording]) -> None:
    material = read(recordings[label].capture, recordings[label].spec)
    for check in (data_template, data_mask, data_coverage):
        assert check.judge(material).status is Status.PASS, check.judge(material).sentence
    assert "of steps 1 to 3" in data_coverage.judge(material).sentence


def test_a_run_of_the_trainer_with_one_order_for_all_epochs_is_seen(small: RunSpec, tmp_path: Path) -> None:
    each = fault("same-order-each-epoch")
    spec = replace(small, steps=11, accumulation=1)
    done = run_framework(
        adapter("transformers").prepare(spec, tmp_path / "scratch"),
        out=tmp_path / "capture",
        scratch=tmp_path / "scratch",
        log=tmp_path / "log",
        steps=(1, 11),
        full=False,
        preload=(each.file,),
        time_limit_s=300.0,
        memory_limit_bytes=None,
        on_line=lambda line: None,
        cancelled=lambda: False,
    )
    assert done.ending == "completed", done.last_error
    assert was_in_force(each, log=tmp_path / "log")
    material = read(tmp_path / "capture", spec)
    verdict = data_coverage.judge(material)
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith("epochs 1 and 2 hold the 10 samples in the same order")
    assert data_template.judge(material).status is Status.PASS
    assert data_mask.judge(material).status is Status.PASS


def test_the_checks_are_registered_and_their_pages_have_every_paragraph() -> None:
    for module in (data_template, data_mask, data_coverage):
        assert CHECKS[module.NAME] is module.CHECK
        words = ["Reference:", "Catches:", "Cannot see:", "Cost:"]
        places = [module.CHECK.description.index(f"\n{word}") for word in words]
        assert places == sorted(places)
        assert json.dumps(module.CHECK.description)
