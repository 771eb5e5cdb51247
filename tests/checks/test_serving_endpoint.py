"""serving.logprobs with an OpenAI-compatible endpoint: a real server, healthy and with the faults of real ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.lifecycle import serving_logprobs
from checks.material import Material
from checks.models import resolve_model
from checks.references.dataset import read_dataset
from checks.roles import Role
from checks.samples import resolve_data
from checks.serving.endpoint import judge_endpoint
from checks.serving.questions import LONGEST, plan_questions
from checks.serving.served import Served, ServedChat, ServedRow
from checks.verdict import Pattern, Status, Verdict
from tests.checks.serving import Behaviour, Model, serve
from workers.endpoint import ask_endpoint
from workers.serving_variables import serving_variables


@pytest.fixture(scope="module")
def few(probed: Material) -> Material:
    """Three probes of the Trainer's run, so that a case is a few requests."""
    kept = {name: probed.probes[name] for name in ("length 17", "length 33", "one future")}
    return replace(probed, probes=kept)


@pytest.fixture(scope="module")
def trained(probed: Material) -> Model:
    """The directory that the run has exported after its step."""
    capture = probed.capture_of(Role.PROBED)
    assert capture is not None
    return Model(Path(capture.manifest["exports"][0]["directory"]))


@pytest.fixture(scope="module")
def prepared() -> Model:
    return Model(resolve_model("tiny:qwen3").path)


def ask(material: Material, model: Model, behaviour: Behaviour | None = None, **variables: str) -> Verdict:
    with serve(model, behaviour or Behaviour()) as url:
        environment = {"PLUMBLINE_SERVING_URL": url, **{f"PLUMBLINE_SERVING_{k}": v for k, v in variables.items()}}
        served = ask_endpoint(material, environment=environment)
    return serving_logprobs.judge(replace(material, served=served))


def test_an_endpoint_of_the_trained_model_passes_with_its_numbers(few: Material, trained: Model) -> None:
    behaviour = Behaviour()
    verdict = ask(few, trained, behaviour)
    assert verdict.status is Status.PASS, verdict.sentence
    assert verdict.sentence.startswith("export at 127.0.0.1:")
    assert "gives 71 tokens the trainer's log-probabilities, within " in verdict.sentence
    assert "; the exported model gives " in verdict.sentence
    assert [each.name for each in verdict.measurements] == ["exported against trained", "endpoint against trained"]
    evidence = verdict.evidence["endpoint"]
    assert (evidence["rows"], evidence["tokens"], evidence["ids_returned"]) == (3, 71, True)
    assert evidence["importance_ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert evidence["moved_by_temperature"] == 0.0
    asked = [each for each in behaviour.asked if each["path"] == "/v1/completions"]
    assert [(each["temperature"], len(each["prompt"])) for each in asked] == [
        *((1.0, 17), (1.0, 33), (1.0, 24)),
        (0.5, 33),
    ]
    assert evidence["chat"]["read"] == evidence["chat"]["expected"]
    json.dumps(verdict.evidence, allow_nan=False)


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(extensions=False),
        Behaviour(prompt_logprobs=False),
        Behaviour(extensions=False, usage=False),
        Behaviour(extensions=False, generates=0),
    ],
    ids=["strict", "echo", "no usage", "nothing generated"],
)
def test_each_way_of_answering_is_read(few: Material, trained: Model, behaviour: Behaviour) -> None:
    verdict = ask(few, trained, behaviour)
    assert verdict.status is Status.PASS, verdict.sentence
    assert verdict.evidence["endpoint"]["ids_returned"] is behaviour.extensions


def test_the_checkpoint_itself_can_be_what_is_served(few: Material, prepared: Model) -> None:
    verdict = ask(few, prepared, WEIGHTS="checkpoint")
    assert verdict.status is Status.PASS, verdict.sentence
    assert "gives 71 tokens the prepared model's log-probabilities" in verdict.sentence


def test_older_weights_are_seen(few: Material, prepared: Model) -> None:
    verdict = ask(few, prepared)
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.STATE_TRANSFER)
    assert "departs from the trainer's log-probabilities first at position 0 of 'length 17'" in verdict.sentence
    assert "in 71 of 71 tokens" in verdict.sentence
    assert verdict.first_wrong == "endpoint behind position 0"


def test_a_temperature_that_is_applied_to_log_probabilities_is_named(few: Material, trained: Model) -> None:
    verdict = ask(few, trained, Behaviour(temperature=True))
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "temperature")
    assert "change with the temperature of the request, by up to" in verdict.sentence


@pytest.mark.parametrize("extensions", [True, False])
def test_a_token_that_the_server_puts_before_the_row_is_named(few: Material, trained: Model, extensions: bool) -> None:
    verdict = ask(few, trained, Behaviour(bos=True, extensions=extensions))
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "tokens of the prompt")
    assert "reads 18 tokens where 17 were given" in verdict.sentence
    assert ("it puts token 1 before the row, as a server does that adds BOS" in verdict.sentence) is extensions


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (Behaviour(echo=False, extensions=False), "gives no log-probabilities of the prompt; it must serve echo"),
        (Behaviour(vocabulary=64), "refuses completions (400: Token id "),
        (Behaviour(key="secret"), "refuses completions (401: no valid key)"),
    ],
    ids=["no logprobs", "other vocabulary", "no key"],
)
def test_an_endpoint_that_cannot_be_used_leaves_the_check_open(
    few: Material, trained: Model, behaviour: Behaviour, said: str
) -> None:
    verdict = ask(few, trained, behaviour)
    assert verdict.status is Status.INCONCLUSIVE
    assert said in verdict.sentence
    assert "the exported model gives" in verdict.sentence


def test_the_key_is_sent_and_never_said(few: Material, trained: Model) -> None:
    verdict = ask(few, trained, Behaviour(key="secret"), KEY="secret", MODEL="named")
    assert verdict.status is Status.PASS
    assert verdict.sentence.startswith("named at 127.0.0.1:")
    assert "secret" not in repr(verdict)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"URL": "http://127.0.0.1:9"}, "127.0.0.1:9 does not answer ("),
        ({"URL": "ftp://u:secret@host"}, "PLUMBLINE_SERVING_URL is no http address"),
        ({"URL": "http://127.0.0.1:9", "WEIGHTS": "old"}, "PLUMBLINE_SERVING_WEIGHTS is 'old'; set it to trained"),
    ],
    ids=["down", "scheme", "weights"],
)
def test_a_wrong_address_is_one_sentence(few: Material, variables: dict[str, str], said: str) -> None:
    served = ask_endpoint(few, environment={f"PLUMBLINE_SERVING_{k}": v for k, v in variables.items()})
    assert served is not None
    result = judge_endpoint(few, served)
    assert result.status is Status.INCONCLUSIVE
    assert said in result.sentence
    assert "secret" not in result.sentence


def test_nothing_is_asked_where_no_endpoint_is_named(few: Material) -> None:
    assert ask_endpoint(few, environment={"HOME": "/"}) is None
    assert serving_variables({"PLUMBLINE_SERVING_URL": "u", "PLUMBLINE_SERVING_KEY": "", "X": "y"}) == {
        "PLUMBLINE_SERVING_URL": "u"
    }
    served = ask_endpoint(
        replace(few, probes={}, no_probes="too large"), environment={"PLUMBLINE_SERVING_URL": "http://h"}
    )
    assert served is not None
    assert served.failure == "there is no row to ask the endpoint about (too large)"


def test_rows_with_padding_and_long_ones_are_not_asked(probed: Material) -> None:
    questions = plan_questions(probed, "trained")
    assert len({each.row for each in questions}) == len(questions) > 10
    assert all(len(each.row) <= LONGEST for each in questions)
    assert not any(each.probe.startswith("padded") for each in questions)


@pytest.fixture
def chatting(few: Material) -> Material:
    spec = replace(few.spec, data=resolve_data("tulu3_sample"))
    return replace(few, dataset=read_dataset(spec))


@pytest.mark.parametrize("bos", [False, True])
def test_the_endpoint_s_own_rendering_has_as_many_tokens(chatting: Material, trained: Model, bos: bool) -> None:
    with serve(trained, Behaviour()) as url:
        served = ask_endpoint(chatting, environment={"PLUMBLINE_SERVING_URL": url})
    assert served is not None
    assert served.chat is not None
    assert served.chat.read == served.chat.expected > 10
    changed = replace(served, chat=replace(served.chat, read=served.chat.read + bos))
    result = judge_endpoint(chatting, changed)
    assert (result.status, result.first_wrong) == (
        (Status.FAIL, "rendering of conversations") if bos else (Status.PASS, None)
    )


def rows_of(material: Material, **details: Any) -> tuple[ServedRow, ...]:
    return tuple(
        ServedRow(q.row, **{"read": len(q.row), "read_ids": q.row, "log_probs": tuple(q.log_probs.tolist()), **details})
        for q in plan_questions(material, "trained")
    )


def test_what_was_read_otherwise_is_said_before_any_number(few: Material) -> None:
    rows = rows_of(few)
    row = rows[0].row
    cases = {
        "reads token 3 at position 2, given": replace(rows[0], read_ids=(*row[:2], 3, *row[3:])),
        "reads 16 tokens of the 17 that were given: it cuts the row": replace(rows[0], read=16, read_ids=None),
    }
    for said, changed in cases.items():
        result = judge_endpoint(few, Served("m at h", rows=(changed, *rows[1:])))
        assert (result.status, result.first_wrong) == (Status.FAIL, "tokens of the prompt")
        assert said in result.sentence
    chat = ServedChat(12, 11, "sample 1", "<s>")
    result = judge_endpoint(few, Served("m at h", rows=rows, chat=chat))
    assert result.sentence == (
        "m at h reads 12 tokens of sample 1, whose chat template gives 11, one more, as where '<s>' is put before a "
        "text that begins with it"
    )


def test_the_threshold_is_that_of_the_run_s_noise(few: Material) -> None:
    rows = rows_of(few)
    (measurement,) = [judge_endpoint(few, Served("m", rows=rows)).measurement]
    assert measurement is not None
    assert measurement.threshold == 8.0 * (measurement.floor or 0.0)
    for factor, status in ((0.9, Status.PASS), (1.1, Status.FAIL)):
        values = list(rows[1].log_probs)
        values[7] += factor * measurement.threshold
        moved = (rows[0], replace(rows[1], log_probs=tuple(values)), *rows[2:])
        result = judge_endpoint(few, Served("m", rows=moved))
        assert result.status is status
    assert result.first_wrong == "endpoint behind position 7"
    cut = judge_endpoint(few, Served("m", rows=(replace(rows[0], log_probs=rows[0].log_probs[:-1]), *rows[1:])))
    assert cut.status is Status.FAIL
    assert judge_endpoint(few, Served("m", rows=())).status is Status.INCONCLUSIVE
    assert torch.tensor(rows[0].log_probs).numel() == 16
