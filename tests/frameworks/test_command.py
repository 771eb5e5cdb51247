"""A command line of the user's own, validated: what is stated of it is judged, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from checks.errors import BadRequest
from checks.registry import CHECKS
from checks.verdict import Status, Verdict
from tests.frameworks.conftest import MakeSpec
from workers.cli import main
from workers.frameworks import adapter
from workers.frameworks.command.stated import JUDGED_BY, why_not_stated
from workers.frameworks.interpreter import framework_python
from workers.request import ValidationRequest
from workers.settings import parse_settings
from workers.validate import build_spec, validate

TRAIN = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained(sys.argv[1]).train(), AutoTokenizer.from_pretrained(sys.argv[1])
rows = [tokenizer(json.loads(line)["text"] + tokenizer.eos_token)["input_ids"][:64] for line in open(sys.argv[2])]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
for step in range(3):
    batch = [torch.tensor([row]) for row in rows[2 * step : 2 * step + 2]]
    tokens = torch.tensor(sum(ids.numel() - 1 for ids in batch))
    [model(input_ids=ids, labels=ids, num_items_in_batch=tokens).loss.backward() for ids in batch]
    optimizer.step(), optimizer.zero_grad()
"""
TRAIN_TOGETHER = """
import json, os, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, AutoTokenizer

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = DistributedDataParallel(AutoModelForCausalLM.from_pretrained(sys.argv[1]).train())
rows = [tokenizer(json.loads(line)["text"] + tokenizer.eos_token)["input_ids"][:64] for line in open(sys.argv[2])]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
for step in range(1):
    batch = [torch.tensor([row]) for row in rows[2 * rank : 2 * rank + 2]]
    tokens = torch.tensor(float(sum(ids.numel() - 1 for ids in batch)))
    if sys.argv[3] == "all":
        dist.all_reduce(tokens)
        tokens /= ranks
    [model(input_ids=ids, labels=ids, num_items_in_batch=tokens).loss.backward() for ids in batch]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(), optimizer.zero_grad()
dist.destroy_process_group()
"""
"""The tokens that a rank's loss is divided by are those of all ranks, or its own: a mean of means."""

MUST = ("precision=float32", "steps=3")
STATED = (
    *(*MUST, "seq_len=64", "batch=1", "accumulation=2", "attention=sdpa", "gradient_checkpointing=false"),
    *("lora=false", "assistant_only=false", "lr=1e-3", "schedule=constant", "warmup_steps=0", "optimizer=adamw"),
    *("weight_decay=0", "max_grad_norm=0", "beta1=0.9", "beta2=0.999", "eps=1e-8"),
)
ALWAYS = {"run.completes", "step.precision", "step.loss", "step.denominator", "step.gradients", "model.definition"}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": f"Row {n} counts {n} hens in {n % 7} rows."}) + "\n" for n in range(6)))
    return file


def judge(
    data: Path, *command: str, settings: tuple[str, ...] = MUST, inject: str | None = None, **more: object
) -> dict[str, Verdict]:
    given = {**parse_settings(list(settings), defaults={}), "command": command}
    request = ValidationRequest("command", "tiny:qwen3", str(data), settings=given, inject=inject, **more)  # type: ignore[arg-type]
    result = validate(request, on_progress=lambda progress: None, cancelled=lambda: False)
    return {verdict.check: verdict for verdict in result.verdicts}


@pytest.mark.usefixtures("_shared_cache")
def test_a_training_script_of_ten_lines_passes_what_is_stated_of_it(texts: Path) -> None:
    script = str(texts.with_name("train.py"))
    found = judge(texts, "python", script, "{model}", "{data}", settings=STATED)
    passed = {name for name, verdict in found.items() if verdict.status is Status.PASS}
    others = {name: (verdict.status, verdict.sentence) for name, verdict in found.items() if name not in passed}
    stated = {"environment.settings", "data.template", "data.mask", "data.coverage", "step.settings"}
    assert passed >= ALWAYS | stated | {"step.update", "step.frozen", "convergence.curve"}
    assert not {name for name, (status, _) in others.items() if status in (Status.FAIL, Status.ERROR)}, others
    assert others["step.schedule"][0] is Status.INCONCLUSIVE  # it logs nothing
    assert others["step.accumulation"] == (
        Status.SKIPPED,
        "takes a merged run, and a command is run as it is given",
    )


@pytest.mark.usefixtures("_shared_cache")
def test_a_fault_injected_into_it_fails(texts: Path) -> None:
    script = str(texts.with_name("train.py"))
    found = judge(texts, "python", script, "{model}", "{data}", inject="gradient-zeroed")
    assert found["step.gradients"].status is Status.FAIL
    assert found["step.update"].status is Status.SKIPPED
    assert found["step.update"].sentence.startswith(
        "lr, schedule, warmup_steps, optimizer, weight_decay, max_grad_norm"
    )


@pytest.mark.usefixtures("_shared_cache")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (", optimizer.zero_grad()", ""),
        ("optimizer.zero_grad()", "optimizer.zero_grad(), [p.data.mul_(0.999) for p in model.parameters()]"),
    ],
    ids=["gradients left over", "weights changed between steps"],
)
def test_what_goes_wrong_after_the_first_step_fails_too(texts: Path, right: str, wrong: str) -> None:
    script = texts.with_name("train.py")
    script.write_text(TRAIN.replace(right, wrong))
    found = judge(texts, "python", str(script), "{model}", "{data}", settings=STATED)
    failing = {name: verdict.sentence for name, verdict in found.items() if verdict.status is Status.FAIL}
    assert set(failing) == {"convergence.curve"}
    assert "was not that of the step's own gradients (left over ones, for example" in failing["convergence.curve"]


@pytest.mark.usefixtures("_shared_cache")
def test_what_is_frozen_after_the_first_step_is_named(texts: Path) -> None:
    script = texts.with_name("train.py")
    script.write_text(TRAIN.replace("zero_grad()", "zero_grad(), model.lm_head.requires_grad_(False)"))
    found = judge(texts, "python", str(script), "{model}", "{data}", settings=STATED)
    assert {name for name, verdict in found.items() if verdict.status is Status.FAIL} == {"step.update"}
    assert (
        found["step.update"].sentence == "lm_head.weight is not trained at step 3: it is frozen (1 parameters in all)"
    )
    assert found["convergence.curve"].sentence == "loss of step 3 leaves the band as well; see step.update"


@pytest.mark.usefixtures("_shared_cache")
@pytest.mark.parametrize("counted", ["all", "own"])
def test_what_ranks_made_together_is_held_against_the_reference(texts: Path, counted: str) -> None:
    script = texts.with_name("together.py")
    script.write_text(TRAIN_TOGETHER)
    lengths = (3, 9, 1, 6)
    texts.write_text("".join(json.dumps({"text": " ".join(["hens lay"] * length)}) + "\n" for length in lengths))
    found = judge(
        texts,
        *("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *(str(script), "{model}", "{data}", counted),
        settings=(*MUST[:1], "steps=1", "batch=1", "accumulation=2", "dp_size=2", "sharding=ddp"),
        checks=("step.gradients", "step.loss", "parallel"),
    )
    gradients = found["step.gradients"]
    assert gradients.status is (Status.PASS if counted == "all" else Status.FAIL), gradients.sentence
    assert gradients.sentence.startswith(
        "25 gradients agree" if counted == "all" else "the forward agrees and 25 of 25 gradients differ"
    )
    assert found["parallel.replicas"].status is Status.PASS
    assert found["step.loss"].sentence == (
        "the run is of 2 processes and this check reads one; step.gradients holds what they made together against the "
        "reference"
    )
    assert found["parallel.gradients"].sentence == "takes a single run, and a command is run as it is given"


@pytest.mark.usefixtures("_shared_cache")
def test_one_that_exits_with_3_fails_to_complete_and_nothing_else_is_judged(texts: Path) -> None:
    found = judge(texts, "sh", "-c", "echo $0 is read; exit 3", "{model}", checks=("run", "step"))
    assert found["run.completes"].status is Status.FAIL
    assert "3" in found["run.completes"].sentence
    assert {verdict.status for name, verdict in found.items() if name != "run.completes"} <= {
        Status.SKIPPED,
        Status.INCONCLUSIVE,
    }


def test_arguments_are_filled_and_split_once_and_no_shell_reads_them(make_spec: MakeSpec, tmp_path: Path) -> None:
    settings = parse_settings(["command=python 'a b.py' --at={output} ';' $HOME {other}", "steps=1"], defaults={})
    assert settings["command"] == ("python", "a b.py", "--at={output}", ";", "$HOME", "{other}")
    spec = make_spec("command", **settings)
    launch = adapter("command").prepare(spec, tmp_path / "run")
    assert launch.command[1:] == ("a b.py", f"--at={tmp_path / 'run' / 'output'}", ";", "$HOME", "{other}")
    here = Path(framework_python("command")).parent
    assert launch.command[0] == str(here / "python")
    assert launch.environment["PATH"].split(os.pathsep)[0] == str(here)


def test_it_is_run_where_it_is_told_to(make_spec: MakeSpec, tmp_path: Path) -> None:
    program = tmp_path / "run.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    spec = make_spec("command", command=("./run.sh",), options=(f"directory={tmp_path}",))
    launch = adapter("command").prepare(spec, tmp_path / "scratch")
    assert (launch.command, launch.directory) == ((str(program),), tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "command: is not given; give command=…, or after -- on the command line"),
        ({"command": ("no-such-program",)}, "command: there is no program 'no-such-program' on the path; correct"),
        ({"command": ("./no-such-file",)}, "command: ./no-such-file is no program that can be executed; give it after"),
        ({"command": ("sh",), "unstated": ("steps",)}, "steps: is not stated, and of a command nobody else knows it"),
        ({"command": ("sh",), "options": ("directory=here",)}, "options: directory here is no directory that is there"),
        ({"command": ("sh",), "options": ("names=/no/such",)}, "options: names: "),
        ({"command": ("sh",), "options": ("shell=true",)}, "options: command is run with no option 'shell'; use"),
    ],
)
def test_what_cannot_be_run_or_judged_is_refused_by_name(
    make_spec: MakeSpec, changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        adapter("command").check(make_spec("command", **changes))
    assert str(refused.value).startswith(sentence)


def test_other_frameworks_have_commands_of_their_own(make_spec: MakeSpec) -> None:
    with pytest.raises(BadRequest, match="command: trl is run by a command of its own; use framework command"):
        adapter("trl").check(make_spec("trl", data="tulu3_sample", command=("sh",)))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("command='", "cannot be split .No closing quotation.; close"), ("command=''", "is empty; give a program")],
)
def test_a_command_that_is_none_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        parse_settings([text], defaults={})


@pytest.mark.usefixtures("_shared_cache")
def test_what_was_not_stated_is_known_and_no_other_framework_has_it() -> None:
    settings = {**parse_settings(["precision=bf16", "steps=1"], defaults={}), "command": ("sh",)}
    spec, _, _ = build_spec(ValidationRequest("command", "tiny:qwen3", "gsm8k_sample", settings=settings))
    assert {"lr", "attention", "seq_len"} <= set(spec.unstated)
    assert not {"precision", "steps", "command"} & set(spec.unstated)
    assert build_spec(ValidationRequest("trl", "tiny:qwen3", "tulu3_sample"))[0].unstated == ()


def test_each_check_that_is_left_out_is_one_and_names_what_to_set(make_spec: MakeSpec) -> None:
    assert set(JUDGED_BY) <= set(CHECKS)
    spec = make_spec("command", command=("sh",), unstated=("momentum", "beta1"), optimizer="sgd")
    check = CHECKS["step.update"]
    assert why_not_stated(check, spec) == "momentum of the command is not stated; set what it has"
    assert why_not_stated(check, make_spec("plain", unstated=("lr",))) is None


def test_the_command_line_takes_it_after_two_dashes(
    texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def note(request: ValidationRequest, *, launcher: object) -> None:
        seen.append(request)
        raise BadRequest("data", "was read", "end here")

    monkeypatch.setattr("workers.commands.validate_here", note)
    monkeypatch.chdir(texts.parent)
    asked = ["validate", "--local", "--framework", "command", "--model", "tiny:qwen3", "--data", "gsm8k_sample"]
    main([*asked, "--", "python", "train.py", "--lr", "1,5"])
    assert seen[0].settings == {
        "command": ("python", "train.py", "--lr", "1,5"),
        "options": (f"directory={texts.parent}",),
    }
    assert main([*(each for each in asked if each != "--local"), "--", "sh"]) == 3
    assert "command: a server does not see this machine's files; add --local" in capsys.readouterr().err
    assert main([*asked, "--set", "command=sh", "--", "sh"]) == 3
    assert "command: is given twice" in capsys.readouterr().err
