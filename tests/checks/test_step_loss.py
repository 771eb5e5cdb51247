"""step.loss: the token threshold from both sides, what positions say, and misplaced targets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from checks.architecture import step_loss
from checks.diagnosis.first_divergence import Divergence, ModuleError
from checks.material import Material
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, first_reference, swap
from tests.checks.test_loss_targets import aim


def judge(material: Material, editing: Edit) -> Verdict:
    return step_loss.judge(swap(material, editing.save()))


def move_tokens(material: Material, editing: Edit, micro_batch: int, where: object, ratio: float) -> Edit:
    """Let the token losses at `where` be off by `ratio` thresholds, and all others of the micro-batch exact."""
    reference = first_reference(material)
    losses = reference.token_losses[micro_batch].clone()
    losses[where] += ratio * 8.0 * reference.token_floor  # type: ignore[index]
    recorded = editing.tensor("token_loss", "token_loss", micro_batch=micro_batch)
    return editing.put("token_loss", "token_loss", losses[:, : recorded.shape[1]], micro_batch=micro_batch)


def test_a_healthy_step_passes_with_token_and_objective_measured(healthy: Material) -> None:
    verdict = step_loss.judge(healthy)
    reference = first_reference(healthy)
    assert verdict.status is Status.PASS
    assert verdict.sentence.startswith("335 tokens agree within ")
    token, objective = verdict.measurements
    assert (token.name, token.unit, objective.name) == ("largest token error", "nats", "objective")
    assert token.floor == reference.token_floor
    assert token.threshold == 8.0 * reference.token_floor
    assert token.limit == 9.0 * reference.token_floor
    assert objective.floor == pytest.approx(reference.loss_floor / reference.loss)
    assert objective.threshold == pytest.approx(8.0 * reference.loss_floor / reference.loss)
    assert objective.limit == pytest.approx(9.0 * reference.loss_floor / reference.loss)
    # The mean token loss is the loss.
    assert verdict.detection_limits == {"token": pytest.approx(9.0 * reference.token_floor / reference.loss, rel=1e-9)}
    assert verdict.evidence["loss"]["reference"] == reference.loss
    assert verdict.evidence["loss"]["framework"] == pytest.approx(reference.loss, rel=1e-6)


def test_the_floor_of_a_token_is_the_worst_of_any_variant_and_the_largest_losss_round_off(healthy: Material) -> None:
    reference = first_reference(healthy)
    worst = max(float(v.token_errors.max()) for v in reference.variants)
    largest = max(float(losses.max()) for losses in reference.token_losses)
    assert largest > 1.0
    assert reference.token_floor == pytest.approx(worst + 2.0**-24 * largest, rel=1e-12)
    off = max(abs(v.loss - reference.loss) for v in reference.variants)
    assert reference.loss_floor == pytest.approx(off + 2.0**-24 * reference.loss, rel=1e-12)


def test_the_evidence_lists_every_token(healthy: Material) -> None:
    rows = step_loss.judge(healthy).evidence["tokens"]
    micro = healthy.batches[1][1]
    assert rows[1]["input_ids"] == micro.input_ids.tolist()
    assert rows[1]["counted"] == micro.counted.tolist()
    assert rows[1]["documents"] == [[0, 0, 50], [1, 0, 53]]
    assert rows[1]["framework"][0][:3] == pytest.approx(rows[1]["reference"][0][:3], abs=1e-4)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("micro_batch", [0, 1])
def test_a_token_loss_holds_up_to_its_threshold(healthy: Material, edit: Editor, micro_batch: int, sign: float) -> None:
    def judged(ratio: float) -> Verdict:
        return judge(healthy, move_tokens(healthy, edit(healthy.capture), micro_batch, (1, 3), sign * ratio))

    assert judged(0.999).status is Status.PASS
    verdict = judged(1.001)
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith("token losses differ from the start (1 of 335 tokens, largest ")
    assert verdict.pattern is Pattern.MODEL_DEFINITION
    assert [m.holds for m in verdict.measurements] == [False, True]


def test_a_token_that_does_not_count_is_not_compared(healthy: Material, edit: Editor) -> None:
    assert not bool(healthy.batches[1][0].counted[0, 118])
    assert judge(healthy, move_tokens(healthy, edit(healthy.capture), 0, (0, 118), 100.0)).status is Status.PASS


def test_the_multiple_is_that_of_the_runs_precision(healthy: Material, edit: Editor) -> None:
    material = swap(healthy, move_tokens(healthy, edit(healthy.capture), 0, (0, 3), 0.6).save())
    assert step_loss.judge(material).status is Status.PASS
    assert step_loss.judge(replace(material, spec=replace(material.spec, precision="bf16"))).status is Status.FAIL


@pytest.mark.parametrize(
    ("start", "sentence", "pattern"),
    [
        (8, "token losses differ from position 8 of their document on (", Pattern.SEQUENCE_LENGTH),
        (30, "token losses differ from position 30 of their document on (", Pattern.SEQUENCE_LENGTH),
        (7, "token losses differ from the start (", Pattern.MODEL_DEFINITION),
    ],
)
def test_the_first_position_that_differs_is_named(
    healthy: Material, edit: Editor, start: int, sentence: str, pattern: Pattern
) -> None:
    editing = move_tokens(healthy, edit(healthy.capture), 0, (slice(None), slice(start, 40)), 2.0)
    verdict = judge(healthy, editing)
    assert verdict.sentence.startswith(sentence)
    assert f"{2 * (40 - start)} of 335 tokens" in verdict.sentence
    assert verdict.pattern is pattern


def test_positions_are_counted_from_the_start_of_their_document(packed: Material, edit: Editor) -> None:
    editing = edit(packed.capture)
    move_tokens(packed, editing, 0, (0, slice(20, 30)), 2.0)
    losses = editing.tensor("token_loss", "token_loss", micro_batch=0).clone()
    second = packed.batches[1][0].documents[1]
    losses[0, second.start + 12 : second.start + 15] += 1.0
    editing.put("token_loss", "token_loss", losses, micro_batch=0)
    assert judge(packed, editing).sentence.startswith(
        "token losses differ from position 12 of their document on (13 of"
    )


def test_differences_in_later_documents_only_are_a_leak(packed: Material, edit: Editor) -> None:
    second = packed.batches[1][0].documents[1]

    def judged(*columns: int) -> Verdict:
        return judge(packed, move_tokens(packed, edit(packed.capture), 0, (0, list(columns)), 2.0))

    leak = judged(second.start + 2, second.start + 3)
    assert leak.sentence.startswith(
        "token losses differ only from the second packed document on: a leak across documents (2 of 451 tokens"
    )
    assert leak.pattern is Pattern.SEQUENCE_LENGTH
    assert judged(2, second.start + 2).sentence.startswith("token losses differ from the start (2 of")
    assert judged(2).sentence.startswith("token losses differ from the start (1 of")


def test_the_module_of_a_second_pass_is_where_a_wrong_loss_starts(healthy: Material, edit: Editor) -> None:
    module = ModuleError("model.layers.1.mlp", "Qwen3MLP", 1.0, 0.1, 0.8)
    material = replace(healthy, divergence=Divergence((module,), (), True))
    editing = move_tokens(healthy, edit(healthy.capture), 0, (0, 3), 2.0)
    assert judge(material, editing).first_wrong == "model.layers.1.mlp"
    assert judge(healthy, editing_again(healthy, edit)).first_wrong is None
    right = replace(healthy, divergence=Divergence((), (), True))
    assert judge(right, editing_again(healthy, edit)).first_wrong is None


def editing_again(material: Material, edit: Editor) -> Edit:
    return move_tokens(material, edit(material.capture), 0, (0, 3), 2.0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_scalar_that_is_off_while_its_tokens_agree_is_a_wrong_denominator(
    healthy: Material, edit: Editor, sign: float
) -> None:
    reference = first_reference(healthy)

    def judged(ratio: float) -> Verdict:
        editing = edit(healthy.capture)
        first, second = editing.step()["micro_batches"]
        first["backward"] = reference.loss + sign * ratio * 8.0 * reference.loss_floor - second["backward"]
        return judge(healthy, editing)

    assert judged(0.999).status is Status.PASS
    verdict = judged(1.001)
    assert verdict.status is Status.FAIL
    off = verdict.measurements[1].value
    assert off == pytest.approx(1.001 * 8.0 * reference.loss_floor / reference.loss, rel=1e-6)
    assert verdict.sentence.startswith(
        f"every token's loss agrees, but the scalar that is back-propagated is off by {off:.3g} of itself"
    )
    assert (verdict.pattern, verdict.first_wrong) == (Pattern.OBJECTIVE_SCALE, "loss denominator")
    assert [m.holds for m in verdict.measurements] == [True, False]


def test_a_scalar_that_was_not_recorded_leaves_the_tokens(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    editing.step()["micro_batches"][0]["backward"] = None
    verdict = judge(healthy, editing)
    assert verdict.status is Status.PASS
    assert [m.name for m in verdict.measurements] == ["largest token error"]


@pytest.mark.parametrize("micro_batch", [0, 1])
def test_a_token_loss_that_is_not_a_number_never_passes(healthy: Material, edit: Editor, micro_batch: int) -> None:
    editing = move_tokens(healthy, edit(healthy.capture), micro_batch, (0, 20), float("nan"))
    verdict = judge(healthy, editing)
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith("token losses differ from position 20 of their document on (1 of 335 tokens")


def test_losses_that_were_not_recorded_leave_it_open(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit(healthy.capture).drop("token_loss", "token_loss", micro_batch=1))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "the per-token losses were not recorded, so they cannot be compared"


def test_without_a_reference_only_targets_are_judged(healthy: Material, edit: Editor) -> None:
    bare = replace(healthy, references={}, no_reference={1: "dropout is on"})
    assert step_loss.judge(bare).status is Status.INCONCLUSIVE
    assert step_loss.judge(bare).sentence == "dropout is on"
    assert judge(bare, aim(healthy, edit(healthy.capture), 2)).status is Status.FAIL
    crashed = replace(healthy, run=replace(healthy.run, capture=None))
    assert step_loss.judge(crashed).sentence == "the run left no capture to judge; see run.completes"
    assert step_loss.judge(replace(healthy, batches={}, no_reference={1: "no targets"})).sentence == "no targets"


def test_a_forward_differs_only_where_token_losses_do_and_targets_do_not(healthy: Material, edit: Editor) -> None:
    def differs(editing: Edit) -> bool:
        return step_loss.forward_differs(first_reference(swap(healthy, editing.save())), precision="float32")

    assert not step_loss.forward_differs(first_reference(healthy), precision="float32")
    assert differs(move_tokens(healthy, edit(healthy.capture), 1, (0, 3), 1.001))
    assert not differs(move_tokens(healthy, edit(healthy.capture), 1, (0, 3), 0.999))
    both = aim(healthy, move_tokens(healthy, edit(healthy.capture), 1, (0, 3), 5.0), 2)
    assert not differs(both)
    assert differs(edit(healthy.capture).drop("token_loss", "token_loss", micro_batch=0))


def test_noise_that_would_hide_a_quarter_of_a_tokens_loss_is_no_pass(healthy: Material) -> None:
    reference = first_reference(healthy)
    largest = max(float(losses.max()) for losses in reference.token_losses)

    def judged(limit: float) -> Verdict:
        worst = limit * reference.loss / 9.0 - 2.0**-24 * largest
        noisy = replace(reference.variants[0], token_errors=torch.tensor([worst], dtype=torch.float64))
        return step_loss.judge(replace(healthy, references={1: replace(reference, variants=(noisy,))}))

    assert judged(0.2499).status is Status.PASS
    verdict = judged(0.2501)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith(
        "nothing differs beyond the noise, but the noise would hide an error of 0.25 of a token's loss; "
        "run with precision=float32"
    )
    assert len(verdict.measurements) == 2


def test_a_wrong_objective_fails_however_large_the_noise_of_a_token(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    editing.step()["micro_batches"][0]["backward"] *= 1.1
    material = swap(healthy, editing.save())
    reference = first_reference(material)
    noisy = replace(reference.variants[0], token_errors=torch.tensor([1.0], dtype=torch.float64))
    verdict = step_loss.judge(replace(material, references={1: replace(reference, variants=(noisy,))}))
    assert verdict.status is Status.FAIL
    assert verdict.detection_limits["token"] > 1.0


def test_the_largest_of_no_errors_is_zero_and_losses_that_were_not_recorded_have_none(healthy: Material) -> None:
    assert step_loss.largest([]) == step_loss.largest([torch.empty(0)]) == 0.0
    assert step_loss.largest([torch.empty(0), torch.tensor([0.5, 2.0]), torch.tensor([1.0])]) == 2.0
    reference = first_reference(healthy)
    silent = tuple(replace(micro, token_losses_seen=None) for micro in reference.micro_batches)
    assert step_loss.largest(step_loss.token_errors(replace(reference, micro_batches=silent))) == 0.0
