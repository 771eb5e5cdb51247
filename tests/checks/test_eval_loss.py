"""eval.loss: the definition, the mean of batch means beside it, and what is neither."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from checks.captures.log import FILE, LogRecord, load_log
from checks.lifecycle import eval_loss
from checks.material import Material
from checks.references.batch import read_step
from checks.references.convention import NoConvention, learn_convention
from checks.references.evaluation import Evaluation, choose_rows
from checks.references.kept import IGNORED
from checks.roles import Role
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.data_runs import batch_up, make_material, make_spec, tokenize_all, write_data
from workers.frameworks import adapter
from workers.frameworks.transformers.logs import read_log

BATCHES = ((2, 100, 6.0), (2, 300, 7.0), (1, 50, 5.0))
TOKEN_MEAN = (100 * 6.0 + 300 * 7.0 + 50 * 5.0) / 450
ROW_MEAN = (2 * 6.0 + 2 * 7.0 + 1 * 5.0) / 5
KNOWN = Evaluation(TOKEN_MEAN, ROW_MEAN, 1e-6, 1e-6, 450, BATCHES)
THRESHOLD = 8.0 * 1e-6


def judge(material: Material, edit: Editor, value: float | None, reference: Evaluation | None = KNOWN) -> Verdict:
    """The verdict on one logged figure."""
    probed = material.others[Role.PROBED]
    editing = edit(probed.capture)
    editing.log = (LogRecord(0, None, None, None, eval_loss=value), LogRecord(1, 6.9, 1.0, 1e-3))
    others = {**material.others, Role.PROBED: replace(probed, capture=editing.save())}
    return eval_loss.judge(replace(material, others=others, evaluation=reference))


def test_the_trainers_own_figure_is_told_apart_from_the_mean_over_tokens(probed: Material) -> None:
    verdict = eval_loss.judge(probed)
    reference = probed.evaluation
    assert reference is not None
    assert (len(reference.batches), reference.tokens, reference.undecided) == (4, 805, 0)
    assert verdict.status is Status.INCONCLUSIVE
    assert "is the mean of batch means weighted by rows" in verdict.sentence
    assert "evaluate in one batch (batch=8)" in verdict.sentence
    by_row, by_token = verdict.measurements
    assert (by_row.holds, by_token.holds) == (True, False)
    assert by_row.value < 1e-6
    assert by_token.value == pytest.approx(abs(reference.token_mean - reference.row_mean), abs=1e-6)
    assert by_token.value > 1e-4
    assert verdict.evidence["source"] == "https://github.com/huggingface/transformers/issues/39241"


def test_an_evaluation_is_a_record_of_step_zero_beside_the_steps(probed: Material) -> None:
    capture = probed.capture_of(Role.PROBED)
    assert capture is not None
    first, *rest = capture.log
    assert (first.step, first.loss, first.learning_rate) == (0, None, None)
    assert first.eval_loss == pytest.approx(6.990193, abs=1e-5)
    assert [record.step for record in rest] == [1]
    assert probed.capture is not None
    assert [record.eval_loss for record in probed.capture.log] == [None] * 3


def test_the_mean_over_tokens_passes_with_its_limit(probed: Material, edit: Editor) -> None:
    verdict = judge(probed, edit, TOKEN_MEAN + 0.9 * THRESHOLD)
    assert verdict.status is Status.PASS
    assert verdict.detection_limits == {"evaluation loss": pytest.approx(9e-6 / TOKEN_MEAN)}
    assert judge(probed, edit, TOKEN_MEAN + 1.1 * THRESHOLD).status is Status.FAIL


def test_where_batches_count_alike_both_means_pass_and_the_sentence_says_so(probed: Material, edit: Editor) -> None:
    alike = replace(KNOWN, row_mean=TOKEN_MEAN + 1e-7)
    verdict = judge(probed, edit, TOKEN_MEAN, alike)
    assert verdict.status is Status.PASS
    assert "cannot be told from it here" in verdict.sentence
    assert verdict.evidence["told_apart"] is False


@pytest.mark.parametrize(
    ("value", "said", "pattern", "where"),
    [
        (
            (300 * 7.0 + 50 * 5.0) / 350,
            "that of the last 2 of 3 batches",
            Pattern.LOSS_MASK,
            "rows of the evaluation",
        ),
        (6.5, "that of the first 2 of 3 batches", Pattern.LOSS_MASK, "rows of the evaluation"),
        (6.0, "that of the first 1 of 3 batches", Pattern.LOSS_MASK, "rows of the evaluation"),
        (3 * TOKEN_MEAN, "it is 3 times that", Pattern.OBJECTIVE_SCALE, "evaluation loss denominator"),
        (ROW_MEAN / 64, "it is 1/64 of that", Pattern.OBJECTIVE_SCALE, "evaluation loss denominator"),
        (6.77, "other rows, another mask", None, "evaluation loss"),
        (math.nan, "other rows, another mask", None, "evaluation loss"),
    ],
)
def test_a_figure_that_is_neither_fails_with_the_simplest_reason(
    probed: Material, edit: Editor, value: float, said: str, pattern: Pattern | None, where: str
) -> None:
    verdict = judge(probed, edit, value)
    assert verdict.status is Status.FAIL
    assert said in verdict.sentence
    assert (verdict.pattern, verdict.first_wrong) == (pattern, where)
    json.dumps(verdict.evidence, allow_nan=False)


def test_a_short_last_batch_that_counts_as_a_whole_one_is_named(probed: Material, edit: Editor) -> None:
    verdict = judge(probed, edit, (6.0 + 7.0 + 5.0) / 3 + 1e-9, replace(KNOWN, batches=((2, 9, 6.0), *BATCHES[1:])))
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "rows of the evaluation")  # 6.0 is also the first's
    whole = judge(probed, edit, (6.25 + 7.0 + 5.0) / 3, replace(KNOWN, batches=((2, 100, 6.25), *BATCHES[1:])))
    assert whole.first_wrong == "weight of the last batch"
    assert "the last batch, of 1 rows, counts as much as one of 2" in whole.sentence


@pytest.mark.parametrize(
    ("value", "reference", "said"),
    [
        (None, KNOWN, "transformers logged no evaluation loss"),
        (6.5, replace(KNOWN, undecided=2), "2 of the evaluated rows hold an expert choice"),
        (6.5, replace(KNOWN, token_floor=0.05), "would not be seen in this precision"),
    ],
)
def test_what_cannot_be_judged_says_why(
    probed: Material, edit: Editor, value: float | None, reference: Evaluation, said: str
) -> None:
    verdict = judge(probed, edit, value, reference)
    assert verdict.status is Status.INCONCLUSIVE
    assert said in verdict.sentence


def test_without_an_evaluation_the_reason_is_the_materials(probed: Material) -> None:
    verdict = eval_loss.judge(replace(probed, evaluation=None, no_evaluation="the samples cannot be rendered"))
    assert (verdict.status, verdict.sentence) == (Status.INCONCLUSIVE, "the samples cannot be rendered")


def test_only_a_probed_run_evaluates(tmp_path: Path) -> None:
    spec = make_spec("gsm8k_sample", batch=3)
    for probed in (False, True):
        scratch = tmp_path / str(probed)
        adapter("transformers").prepare(replace(spec, probed=probed), scratch)
        config = json.loads((scratch / "config.json").read_text())
        assert config.get("evaluated_rows") == (8 if probed else None)
        evaluates = {name: value for name, value in config["arguments"].items() if "eval" in name}
        assert evaluates == ({"eval_on_start": True, "per_device_eval_batch_size": 3} if probed else {})


def test_tokens_at_which_conventions_differ_count_as_the_captured_rows_count_them(tmp_path: Path) -> None:
    spec = make_spec("tulu3_sample", assistant_only=True)
    examples = [one for one in tokenize_all(spec) if any(label != IGNORED for label in one["labels"][1:])]
    material = make_material(spec, batch_up(examples[:4]), tmp_path, captured=None)
    assert material.dataset is not None
    samples = {tuple(one["input_ids"]): one["labels"] for one in examples}
    assert material.capture is not None
    corpus = material.dataset.corpus
    micro_batches = [micro for step in (1, 2) for micro in read_step(material.capture, step, corpus=corpus)]
    convention = learn_convention(material.dataset, micro_batches)
    assert convention.votes
    checked = 0
    for index in range(len(material.dataset.documents)):
        labels = samples.get(material.dataset.cut(index))
        if labels is not None:
            assert convention.counted(index) == tuple(
                place > 0 and label != IGNORED for place, label in enumerate(labels)
            )
            checked += 1
    assert checked > 20
    unknown = replace(convention, votes={})
    torn = replace(convention, votes=dict.fromkeys(convention.votes, frozenset({True, False})))
    undecided = next(i for i in range(checked) if None in material.dataset.mark(i).expected[1:120])
    with pytest.raises(NoConvention, match="no captured row says whether"):
        unknown.counted(undecided)
    with pytest.raises(NoConvention, match="captured rows do not agree on whether"):
        torn.counted(undecided)


def test_a_row_without_a_token_to_learn_leaves_the_evaluation_open(tmp_path: Path) -> None:
    rows = [{"prompt": "a long question " * 60, "completion": "yes"}, {"prompt": "why", "completion": "because"}]
    spec = make_spec(write_data(tmp_path, rows), assistant_only=True, seq_len=32)
    material = make_material(spec, batch_up(tokenize_all(spec)[1:]), tmp_path)
    assert material.dataset is not None
    with pytest.raises(NoConvention, match=r"sample 1 \(line 1\) has no token to learn within seq_len"):
        choose_rows(learn_convention(material.dataset, ()))


def test_a_log_of_an_earlier_release_has_no_evaluation(tmp_path: Path) -> None:
    entry = {"step": 1, "loss": 2.0, "grad_norm": 1.0, "learning_rate": 1e-3, "tokens": None, "seconds": None}
    (tmp_path / FILE).write_text(json.dumps([entry]))
    assert load_log(tmp_path) == (LogRecord(1, 2.0, 1.0, 1e-3),)


def test_the_trainers_log_gives_its_evaluations(tmp_path: Path) -> None:
    history = [
        {"eval_loss": 6.5, "eval_runtime": 0.1, "step": 0},
        {"loss": 6.9, "step": 1},
        {"train_loss": 6.9, "step": 1},
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert read_log(tmp_path) == (LogRecord(0, None, None, None, eval_loss=6.5), LogRecord(1, 6.9, None, None))
